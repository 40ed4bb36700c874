//! Recorded requests as data sets: when they are due, what they share, what is left out.

mod support;

use std::path::Path;

use pb_contract::Nanos;
use pb_workloads::trace::{PromptTokens, TraceFormat, TraceReader, open_requests};
use pb_workloads::{DatasetError, Form, HitKnowledge, PlanOptions, Planned};
use support::*;

#[test]
fn row_52_a_replay_is_due_to_the_nanosecond() {
    let azure = file("trace", &fixture("azure_2023.csv"), "");
    let planned_azure = planned(&azure, "", &seeded(1)).unwrap();
    let offsets: Vec<u64> = planned_azure
        .plan
        .open
        .iter()
        .map(|r| r.offset_ns.0)
        .collect();
    // 50.9951690 s less 46.6805900 s, on 18:15.
    assert_eq!(offsets, [0, 4_314_579_000, 4_314_579_000]);
    let mooncake = file("trace", &fixture("mooncake.jsonl"), "");
    let planned_mooncake = planned(&mooncake, "", &seeded(1)).unwrap();
    let offsets: Vec<u64> = planned_mooncake
        .plan
        .open
        .iter()
        .map(|r| r.offset_ns.0)
        .collect();
    assert_eq!(offsets, [0, 27_000_000, 27_000_000, 3_027_000_000]);
    let half = file("trace", &fixture("mooncake.jsonl"), "time_scale = 0.5");
    let half = planned(&half, "", &seeded(1)).unwrap();
    assert_eq!(half.plan.open[3].offset_ns, Nanos(1_513_500_000));
}

#[test]
fn row_71_block_names_of_64_bits_and_partial_blocks_are_realised() {
    let data = file("trace", &fixture("mooncake.jsonl"), "");
    let planned = planned(&data, "", &seeded(1)).unwrap();
    let all = bodies(&planned.plan);
    assert_eq!(
        all.iter().map(|b| b.planned_tokens).collect::<Vec<_>>(),
        [600, 1300, 1300, 512]
    );
    // By hand, in blocks of 16: the second shares block 0 with the first, the third is the second
    // again and finds all full blocks but not its last 4 tokens, the fourth is another one.
    assert_eq!(
        all.iter().map(|b| b.planned_hit_tokens).collect::<Vec<_>>(),
        [Some(0), Some(512), Some(1296), Some(0)]
    );
    assert_eq!(planned.facts.hits, HitKnowledge::Ideal);
    assert!(
        planned
            .facts
            .evidence
            .iter()
            .any(|why| why.contains("block size 512"))
    );
    assert!(
        planned
            .facts
            .evidence
            .iter()
            .any(|why| why.contains("ask for one token"))
    );
    let options = PlanOptions {
        block_size: 512,
        ..seeded(1)
    };
    let coarse = support::planned(&data, "", &options).unwrap();
    assert_eq!(coarse.facts.planned_hit_tokens, 512 + 1024);
}

#[test]
fn rows_that_do_not_fit_are_counted_and_the_hits_are_those_of_the_rest() {
    let data = file("trace", &fixture("mooncake.jsonl"), "");
    let options = PlanOptions {
        max_model_len: Some(1301),
        ..seeded(1)
    };
    let fitting = planned(&data, "", &options).unwrap();
    // 1300 + 7 does not fit, 1300 + 1 does: it now finds block 0 of the first only.
    assert_eq!(fitting.facts.dropped["longer_than_max_model_len"], 1);
    assert_eq!((fitting.facts.rows_read, fitting.facts.requests), (4, 3));
    assert_eq!(fitting.facts.planned_hit_tokens, 512);
    let options = PlanOptions {
        max_model_len: Some(100),
        ..seeded(1)
    };
    let error = planned(&data, "", &options).unwrap_err().to_string();
    assert!(error.contains("all were dropped"), "{error}");
}

#[test]
fn lengths_are_scaled_and_sharing_stays() {
    let data = file("trace", &fixture("mooncake.jsonl"), "length_scale = 0.0625");
    let options = PlanOptions {
        block_size: 16,
        ..seeded(1)
    };
    let planned = planned(&data, "", &options).unwrap();
    let lengths: Vec<u32> = bodies(&planned.plan)
        .iter()
        .map(|b| b.planned_tokens)
        .collect();
    // Blocks of 32: 600 is one and 88 / 16 = 5.5; 1300 is two and 276 / 16 = 17.25; 512 is one.
    assert_eq!(lengths, [38, 81, 81, 32]);
    assert_eq!(planned.facts.planned_hit_tokens, 32 + 80);
}

#[test]
fn a_part_of_a_long_file_is_read_as_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("azure.csv");
    let mut lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    for second in 0..50 {
        lines += &format!("2024-05-10 00:00:{second:02}.5+00:00,{},5\n", 20 + second);
    }
    lines += "this is no row\n";
    std::fs::write(&path, lines).unwrap();
    let error = planned(&file("trace", &path, ""), "", &seeded(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("azure.csv:52"), "{error}");
    let some = planned(&file("trace", &path, "max_rows = 7"), "", &seeded(1)).unwrap();
    assert_eq!((some.facts.rows_read, some.facts.requests), (7, 7));
    // Rows without names share nothing.
    assert_eq!(
        (some.facts.planned_hit_tokens, some.facts.hits),
        (0, HitKnowledge::Exact)
    );
}

#[test]
fn too_much_for_memory_is_refused_before_it_is_made() {
    let data = "dataset_name = \"random\"\ninput_len = 4096";
    let error = planned(data, "num_prompts = 200000", &seeded(1)).unwrap_err();
    assert!(
        matches!(
            error,
            DatasetError::TooLarge {
                mib: 3125,
                limit_mib: 2048
            }
        ),
        "{error}"
    );
    let error = planned(data, "num_prompts = 2000001", &seeded(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("at most 2000000"), "{error}");
    let agents = "dataset_name = \"agent\"\nsessions = 20000";
    let error = planned(agents, "request_rate = 9", &seeded(1)).unwrap_err();
    assert!(matches!(error, DatasetError::TooLarge { .. }), "{error}");
}

#[test]
fn a_duration_ends_a_replay_and_another_load_replaces_its_times() {
    let data = file("trace", &fixture("mooncake.jsonl"), "");
    let first_second = planned(&data, "duration_s = 1", &seeded(1)).unwrap();
    assert_eq!(first_second.facts.requests, 3);
    assert_eq!(first_second.plan.horizon_ns, Nanos::from_secs(1));
    let closed = planned(
        &data,
        "arrival = \"closed\"\nmax_concurrency = 1",
        &seeded(1),
    )
    .unwrap();
    assert_eq!(closed.plan.closed[0].bodies.len(), 4);
    assert_eq!(closed.facts.hits, HitKnowledge::Exact);
    let constant = "arrival = \"constant\"\nrequest_rate = 2";
    let paced = planned(&data, constant, &seeded(1)).unwrap();
    let offsets: Vec<u64> = paced
        .plan
        .open
        .iter()
        .map(|r| r.offset_ns.0 / 1_000_000)
        .collect();
    assert_eq!(offsets, [500, 1000, 1500, 2000]);
    let untimed = file("trace", &fixture("vidur_no_arrivals.csv"), "");
    let error = planned(&untimed, "", &seeded(1)).unwrap_err().to_string();
    assert!(error.contains("no arrivals"), "{error}");
    assert!(planned(&untimed, "request_rate = 2", &seeded(1)).is_ok());
}

#[test]
fn repeats_of_a_trace_follow_its_end() {
    let data = file("trace", &fixture("mooncake.jsonl"), "");
    let options = PlanOptions {
        allow_repeat: true,
        ..seeded(1)
    };
    let twice = planned(&data, "num_prompts = 6", &options).unwrap();
    let offsets: Vec<u64> = twice
        .plan
        .open
        .iter()
        .map(|r| r.offset_ns.0 / 1_000_000)
        .collect();
    assert_eq!(offsets, [0, 27, 27, 3027, 3027, 3054]);
    assert_eq!(twice.facts.unique_prompts, 3);
    assert!(planned(&data, "num_prompts = 6", &seeded(1)).is_err());
}

#[test]
fn timed_traces_take_the_flags_of_vllm() {
    let path = fixture("vllm_timed.jsonl");
    let seconds = planned(
        &file("timed-trace", &path, "chunk_size = 16"),
        "",
        &seeded(1),
    )
    .unwrap();
    let offsets = |planned: &Planned| -> Vec<u64> {
        planned
            .plan
            .open
            .iter()
            .map(|r| r.offset_ns.0 / 1_000)
            .collect()
    };
    assert_eq!(offsets(&seconds), [12_400_000, 12_400_000, 13_150_000]);
    let ms = file(
        "timed-trace",
        &path,
        "chunk_size = 16\nsec_multiplier = 0.001",
    );
    assert_eq!(
        offsets(&planned(&ms, "", &seeded(1)).unwrap()),
        [12_400, 12_400, 13_150]
    );
    // Too few names for a prompt are an error and not a shorter prompt.
    let error = planned(
        &file("timed-trace", &path, "chunk_size = 8"),
        "",
        &seeded(1),
    );
    assert!(error.unwrap_err().to_string().contains("must have"));
    let hits: Vec<_> = seconds
        .plan
        .open
        .iter()
        .map(|r| r.body.planned_hit_tokens.unwrap())
        .collect();
    assert_eq!(hits, [0, 16, 16]);
}

#[test]
fn delays_and_local_times_make_sessions() {
    let data = file("trace", &fixture("aiperf.jsonl"), "");
    let aiperf = told(&data, "", Form::Text).unwrap();
    assert_eq!((aiperf.facts.sessions, aiperf.facts.requests), (1, 4));
    assert_eq!(aiperf.facts.dropped["output_not_recorded"], 1);
    let turns = &aiperf.plan.sessions[0].turns;
    assert_eq!(turns[1].think_ns, Nanos::from_millis(250));
    // 512 words after the token at the start make 32 whole blocks and one token.
    assert_eq!(turns[1].body.planned_hit_tokens, Some(512));
    assert_eq!(said(&aiperf.plan.open[0].body), "Explain RAM");
    assert_eq!(aiperf.plan.open[1].offset_ns, Nanos::from_millis(300));
    let all = file("trace", &fixture("aiperf.jsonl"), "output_len = 6");
    assert_eq!(told(&all, "", Form::Chat).unwrap().facts.requests, 5);
    let weka = planned(&file("trace", &fixture("weka.json"), ""), "", &seeded(1)).unwrap();
    assert_eq!((weka.facts.sessions, weka.facts.requests), (2, 4));
    let thinks: Vec<u64> = weka.plan.sessions[0]
        .turns
        .iter()
        .map(|t| t.think_ns.0 / 1_000_000)
        .collect();
    assert_eq!(thinks, [0, 3_750, 250]);
    // Names are a conversation's own: the second one finds nothing of the first.
    assert_eq!(
        weka.plan.sessions[1].turns[0].body.planned_hit_tokens,
        Some(0)
    );
    let open = file("trace", &fixture("weka.json"), "turns = \"open\"");
    let open = planned(&open, "", &seeded(1)).unwrap();
    let offsets: Vec<u64> = open
        .plan
        .open
        .iter()
        .map(|r| r.offset_ns.0 / 1_000_000)
        .collect();
    assert_eq!(offsets, [0, 0, 3_750, 4_000]);
}

#[test]
fn client_models_give_requests_with_their_lengths() {
    let data = file("servegen", &fixture("servegen"), "duration_s = 300");
    let made = planned(&data, "", &seeded(5)).unwrap();
    assert!(made.facts.requests > 100);
    assert!(
        made.plan
            .open
            .iter()
            .all(|r| r.offset_ns < Nanos::from_secs(300))
    );
    assert_eq!(made.facts.planned_hit_tokens, 0);
    assert_ne!(
        made.plan.open,
        planned(&data, "", &seeded(6)).unwrap().plan.open
    );
}

#[test]
fn rows_become_requests_without_a_data_set_too() {
    let reader = TraceReader::open(&fixture("mooncake.jsonl"), TraceFormat::Mooncake).unwrap();
    let rows: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
    let requests = open_requests(&rows, &PromptTokens::new(0..32_000, 9).unwrap());
    let what: Vec<_> = requests
        .iter()
        .map(|r| {
            (
                r.id.0,
                r.offset_ns.0 / 1_000_000,
                r.body.planned_tokens,
                r.body.max_tokens,
            )
        })
        .collect();
    assert_eq!(
        what,
        [
            (0, 0, 600, 5),
            (1, 27, 1300, 7),
            (2, 27, 1300, 1),
            (3, 3027, 512, 1)
        ]
    );
    assert_eq!(
        shared(prompt(&requests[0].body), prompt(&requests[1].body)),
        512
    );
}

#[test]
fn a_file_that_is_not_there_or_not_named_says_so() {
    for kind in ["sharegpt", "custom", "trace", "timed-trace", "servegen"] {
        let none = planned(&format!("dataset_name = \"{kind}\""), "", &seeded(1));
        assert!(
            none.unwrap_err().to_string().contains("--dataset-path"),
            "{kind}"
        );
        let gone = file(kind, Path::new("no/such/file"), "");
        let error = planned(&gone, "", &seeded(1)).unwrap_err().to_string();
        assert!(error.contains("no/such/file"), "{kind}: {error}");
    }
}
