//! Settings of every kind, broken at random: a plan or an error that names something, never a
//! panic.

mod support;

use pb_contract::Stream;
use pb_workloads::{Dataset, Form, LoadShape, PlanOptions, Source, plan};
use support::*;

const DATASETS: [&str; 12] = [
    "dataset_name = \"random\"\ninput_len = 40\noutput_len = 8\nrange_ratio = 0.5\n\
     prefix_len = 3\n",
    "dataset_name = \"shared-prefix\"\nnum_groups = 3\nprompts_per_group = 4\n\
     system_prompt_len = 40\nquestion_len = 9\noutput_len = 5\nrange_ratio = 0.4\nnum_turns = 2\n\
     ordered = true\nthink_s = 0.5\n",
    "dataset_name = \"prefix-repetition\"\nprefix_len = 20\nsuffix_len = 9\nnum_prefixes = 2\n\
     output_len = 3\n",
    "dataset_name = \"sessions\"\nsessions = 3\nsystem_len = 9\nturns = \"uniform:1,3\"\n\
     question = \"gamma:9,2\"\noutput = 4\nthink_s = \"lognormal:1,0.5\"\nanswers = \"auto\"\n",
    "dataset_name = \"agent\"\nsessions = 2\nsystem_len = 9\ntask = 20\ncalls = 3\n\
     observation = \"pareto:9,2\"\noutput = 4\nthink_s = 0.1\nanswers = \"planned\"\n",
    "dataset_name = \"interference\"\ncontrol = { starved = { slots = 3 } }\n[params]\n\
     streams = 2\nbackground_requests = 9\nlong_prompt_min = 40\nlong_prompt_max = 90\n",
    "dataset_name = \"synthetic\"\n\
     input = { dist = \"mixture\", parts = [{ weight = 1.0, of = 9 }, \
     { weight = 2.0, of = { dist = \"uniform\", min = 3, max = 9 } }] }\n\
     output = { dist = \"histogram\", values = [3, 9], weights = [1, 2] }\n\
     parts = [{ class = \"a\", weight = 1.0, input = 30, output = \"uniform:3,9\" }]\n",
    "dataset_name = \"trace\"\npath = \"TRACES/mooncake.jsonl\"\nformat = \"mooncake\"\n\
     unit = \"ms\"\nblock_size = 512\narrivals = \"spread\"\ntime_scale = 0.5\nlength_scale = 0.5\n\
     max_rows = 3\nturns = \"sessions\"\noutput_len = 9\n",
    "dataset_name = \"timed-trace\"\npath = \"TRACES/vllm_timed.jsonl\"\nsec_multiplier = 1.0\n\
     chunk_size = 16\n",
    "dataset_name = \"custom\"\npath = \"TRACES/vllm_custom.jsonl\"\noutput_len = 8\n\
     shuffle = true\n",
    "dataset_name = \"sharegpt\"\npath = \"TRACES/sharegpt.json\"\noutput_len = 8\nmin_len = 1\n\
     multi_turn = true\nshuffle = false\nmax_prompt_len = 90\nmax_total_len = 99\nthink_s = 1\n",
    "dataset_name = \"servegen\"\npath = \"TRACES/servegen\"\nstart_s = 1\nduration_s = 20\n\
     rate_scale = 0.5\n",
];

const SHAPES: [&str; 7] = [
    "num_prompts = 9\n",
    "request_rate = 9.5\nnum_prompts = 9\nburstiness = 0.5\n",
    "max_concurrency = 2\nnum_prompts = 9\nduration_s = 5\n",
    "ramp = \"1:2,3..9:2\"\narrival = \"constant\"\n",
    "ramp = \"index-linear:1..9\"\nnum_prompts = 9\n",
    "arrival = \"trace\"\nduration_s = 9.0\n",
    "arrival = \"closed\"\nmax_concurrency = 1\n",
];

/// Bytes that mean something in these settings.
const TELLING: &[u8] = b"[]{}\"=.,:0129-e\n_naif";

fn mutate(text: &str, stream: &mut Stream) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..stream.below(3) {
        let at = stream.below(bytes.len() as u64) as usize;
        let telling = TELLING[stream.below(TELLING.len() as u64) as usize];
        match stream.below(8) {
            0 => bytes.insert(at, telling),
            1 => bytes[at] = telling,
            2 => drop(bytes.remove(at)),
            3 => {
                let end = (at + stream.below(20) as usize).min(bytes.len());
                bytes.drain(at..end);
                bytes.push(b'\n');
            }
            _ => {
                let digit = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit());
                digit
                    .into_iter()
                    .for_each(|b| *b = b'0' + stream.below(10) as u8);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Settings whose plan would be large on purpose are not what is looked for here.
fn is_small(dataset: &Dataset, shape: &LoadShape) -> bool {
    let text = format!("{dataset:?} {shape:?}");
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let mut large = numbers
        .filter_map(|n| n.parse::<f64>().ok())
        .filter(|&n| n > 5_000.0);
    match dataset {
        // Its parameters are nanoseconds.
        Dataset::Interference(_) => true,
        _ => large.next().is_none(),
    }
}

#[test]
fn broken_settings_never_panic() {
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces");
    let mut stream = Stream::new(1, "settings fuzz");
    let (mut made, mut refused, mut unread) = (0, 0, 0);
    for round in 0..2_400usize {
        let data = DATASETS[round % DATASETS.len()].replace("TRACES", traces);
        let load = SHAPES[stream.below(SHAPES.len() as u64) as usize];
        let (data, load) = (mutate(&data, &mut stream), mutate(load, &mut stream));
        let read = (
            toml::from_str::<Dataset>(&data),
            toml::from_str::<LoadShape>(&load),
        );
        let (Ok(dataset), Ok(shape)) = read else {
            unread += 1;
            continue;
        };
        if !is_small(&dataset, &shape) {
            continue;
        }
        let form = [Form::Ids, Form::Text, Form::Chat][stream.below(3) as usize];
        let source = match form {
            Form::Ids => ids(),
            _ => Source::words(),
        };
        let options = PlanOptions {
            form,
            block_size: 1 + stream.below(20) as usize,
            allow_repeat: stream.below(2) == 0,
            max_model_len: (stream.below(2) == 0).then_some(200),
            ..seeded(round as u64)
        };
        match plan(&dataset, &shape, &source.with_tokenizer(&WORDS), &options) {
            Ok(planned) => {
                made += 1;
                let all = bodies(&planned.plan);
                assert_eq!(all.len(), planned.facts.requests);
                assert!(
                    all.iter()
                        .all(|body| body.max_tokens > 0 && body.planned_tokens > 0)
                );
                assert!(all.iter().all(|body| {
                    body.planned_hit_tokens
                        .is_none_or(|found| found < body.planned_tokens)
                }));
                serde_json::to_string(&planned.facts).unwrap();
            }
            Err(error) => {
                refused += 1;
                let message = error.to_string();
                assert!(
                    message.len() > 15 && !message.contains("Error {"),
                    "{message}"
                );
            }
        }
    }
    // All three happen, or the mutations are too mild or too wild to mean anything.
    assert!(
        made > 200 && refused > 200 && unread > 200,
        "{made} {refused} {unread}"
    );
}

#[test]
fn settings_are_written_as_they_are_read() {
    for data in DATASETS {
        let dataset: Dataset = toml::from_str(data).unwrap();
        let json = serde_json::to_string(&dataset).unwrap();
        assert_eq!(serde_json::from_str::<Dataset>(&json).unwrap(), dataset);
        let unknown = format!("unknown_key = 1\n{data}");
        let error = toml::from_str::<Dataset>(&unknown).unwrap_err().to_string();
        assert!(error.contains("unknown_key"), "{error}");
    }
    for load in SHAPES {
        let shape: LoadShape = toml::from_str(load).unwrap();
        let json = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<LoadShape>(&json).unwrap(), shape);
    }
    let options = seeded(3);
    let json = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<PlanOptions>(&json).unwrap(), options);
}
