//! The experiment that decides about each hypothesis.
//!
//! Its arms get the same requests at the same instants, with the same lengths, seeds, state of the
//! cache and precision, in matched blocks; they differ in the one thing that the hypothesis is
//! about. What is expected under the hypothesis is written down before the run, so that the run
//! can refute it.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::case::CONSERVATIVENESS;
use super::rules::Facts;
use super::suite::{Expected, Servers, Suite, Varied};

/// Least and largest token budget that is proposed for a step.
const BUDGETS: (u64, u64) = (64, 2048);
/// Requests in flight that an experiment has at most.
const MOST_IN_FLIGHT: u64 = 256;
/// Address of the second server where this program cannot start it.
const SECOND: &str = "http://127.0.0.1:8001";
/// Address of the first, when the run does not tell it.
const FIRST: &str = "http://127.0.0.1:8000";

/// A controlled experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Experiment {
    /// What it asks.
    pub question: String,
    /// The one thing that differs between the arms.
    pub varies: String,
    /// What the hypothesis predicts.
    pub predicts: String,
    /// The suite file.
    pub suite: String,
}

/// The experiment for a hypothesis.
pub(super) fn of(id: &str, facts: &Facts<'_>) -> Experiment {
    match id {
        "unbounded_chunks" => chunks(facts),
        "lock_contention" => in_flight_and_context(facts, true),
        "decode_bandwidth" => in_flight_and_context(facts, false),
        "preemption_thrashing" => pool(facts),
        "pool_reservation" => reservation(facts),
        _ => evictions(facts),
    }
}

/// Servers of an experiment that changes settings of the engine: `changes` are those of this
/// project's engine, `by_hand` says what to change on another.
fn two_servers(
    facts: &Facts<'_>,
    candidate: &'static str,
    changes: Value,
    by_hand: String,
) -> Servers {
    let url = facts.case.base_url.clone().unwrap_or_else(|| FIRST.into());
    match (&facts.case.engine.own, changes) {
        (Some(own), Value::Object(changes)) => Servers::Engine {
            settings: own.clone(),
            arms: vec![("as-measured", Map::new()), (candidate, changes)],
        },
        _ => Servers::Running {
            arms: vec![("as-measured", url), (candidate, SECOND.into())],
            by_hand: Some(by_hand),
        },
    }
}

/// The server as it was measured, for an experiment that changes the load.
fn one_server(facts: &Facts<'_>) -> Servers {
    let url = facts.case.base_url.clone().unwrap_or_else(|| FIRST.into());
    match &facts.case.engine.own {
        Some(own) => Servers::Engine {
            settings: own.clone(),
            arms: vec![("as-measured", Map::new())],
        },
        None => Servers::Running {
            arms: vec![("as-measured", url)],
            by_hand: None,
        },
    }
}

fn chunks(facts: &Facts<'_>) -> Experiment {
    let longest = longest_prompt(facts);
    let largest = facts.sums.largest_prefill.max(longest.min(BUDGETS.1));
    let budget = (largest / 8)
        .clamp(BUDGETS.0, BUDGETS.1)
        .next_power_of_two();
    let streams = facts.sums.most_decodes.clamp(2, 32);
    let mut changes = json!({ "chunked": true, "max_batched_tokens": budget + streams });
    let own = facts.case.engine.own.as_ref();
    let policy = own.and_then(|own| own.get("policy")?.as_str());
    if policy.is_some_and(|policy| policy.contains("monolithic")) {
        changes["policy"] = "token_budget".into();
    }
    let by_hand = format!(
        "Start a second server like the first at {SECOND} whose steps hold at most {budget} tokens \
         (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size)."
    );
    let suite = Suite {
        name: "diagnose-chunks",
        question: "Do shorter chunks shorten the longest gaps between tokens?".into(),
        reading: format!(
            "The arms differ in the largest step: as measured against about {budget} tokens. The \
             hypothesis says that ITL p95 and p99 of the streams fall. If they do not, prefill in \
             one piece is not what the streams wait for. The first token of the long prompts is \
             the price."
        ),
        servers: two_servers(facts, "bounded", changes, by_hand),
        bench: table(json!({
            "dataset_name": "interference",
            "dataset_option": [
                format!("params.streams={streams}"),
                format!("params.long_prompt_min={longest}"),
                format!("params.long_prompt_max={longest}"),
            ],
        })),
        varied: Vec::new(),
        expected: vec![
            Expected::lower("classes.background.itl_ms.p99", "as-measured", "bounded"),
            Expected::lower("classes.background.itl_ms.p95", "as-measured", "bounded"),
            Expected::open("classes.long_prompt.ttft_ms.p50", "as-measured", "bounded"),
        ],
    };
    suite.experiment(
        format!("the largest step: as measured, or about {budget} tokens"),
        "ITL p95 and p99 of the decoding streams fall".into(),
    )
}

/// Requests in flight and their contexts, each at two levels. A wait for the host goes with the
/// requests and not with the contexts; reading keys goes with both.
fn in_flight_and_context(facts: &Facts<'_>, host: bool) -> Experiment {
    let prompt = median_prompt(facts).max(8);
    let many = facts.sums.most_in_flight.clamp(4, MOST_IN_FLIGHT);
    let (few, short) = (many / 2, prompt / 4);
    let [long, short_name] = [prompt, short].map(|tokens| format!("context={tokens}"));
    let [many_name, few_name] = [many, few].map(|n| format!("in-flight={n}"));
    let by_context = match host {
        true => Expected::equivalent("itl_ms.p50", &long, &short_name),
        false => Expected::lower("itl_ms.p50", &long, &short_name),
    };
    let by_requests = match host {
        true => Expected::lower("itl_ms.p50", &many_name, &few_name),
        false => Expected::open("itl_ms.p50", &many_name, &few_name),
    };
    let predicts = match host {
        true => "with half the requests ITL falls; with a quarter of the context it stays",
        false => "with a quarter of the context ITL falls, at the same number of requests",
    };
    let suite = Suite {
        name: match host {
            true => "diagnose-host-wait",
            false => "diagnose-bandwidth",
        },
        question: "Does the time of a token go with the requests in flight or with the keys that \
                   they read?"
            .into(),
        reading: format!(
            "All four arms are one server under a closed loop. The hypothesis says: {predicts}. \
             The two explanations predict opposite results for the contexts, so one of them is \
             refuted."
        ),
        servers: one_server(facts),
        bench: table(json!({
            "dataset_name": "random",
            "random_output_len": median_output(facts),
            "num_prompts": many * 4,
        })),
        varied: vec![
            Varied {
                factor: "in-flight",
                key: "bench.max_concurrency",
                values: vec![many, few],
            },
            Varied {
                factor: "context",
                key: "bench.random_input_len",
                values: vec![prompt, short],
            },
        ],
        expected: vec![by_context, by_requests],
    };
    suite.experiment(
        format!("requests in flight ({many}, {few}) and prompt lengths ({prompt}, {short} tokens)"),
        predicts.into(),
    )
}

fn pool(facts: &Facts<'_>) -> Experiment {
    let in_flight = facts.sums.most_in_flight.clamp(4, MOST_IN_FLIGHT);
    let bench = |mut bench: Map<String, Value>| {
        bench.extend(table(json!({
            "dataset_name": "random",
            "random_input_len": median_prompt(facts),
            "random_output_len": median_output(facts),
            "num_prompts": in_flight * 4,
        })));
        bench
    };
    let question = "Do the longest gaps shrink when requests keep their blocks?".to_owned();
    let predicts = "ITL p99 falls".to_owned();
    if let Some(blocks) = facts.case.engine.num_blocks {
        let changes = json!({ "num_blocks": blocks.saturating_mul(2) });
        let suite = Suite {
            name: "diagnose-pool",
            question,
            reading: "The arms differ in the size of the pool. The hypothesis says that ITL p99 \
                      falls where every request finds blocks. If it does not, being thrown out is \
                      not what the streams wait for."
                .into(),
            servers: two_servers(facts, "twice-the-pool", changes, twice_by_hand()),
            bench: bench(table(json!({ "max_concurrency": in_flight }))),
            varied: Vec::new(),
            expected: vec![
                Expected::lower("itl_ms.p99", "as-measured", "twice-the-pool"),
                Expected::open("rates.output_tps", "as-measured", "twice-the-pool"),
            ],
        };
        return suite.experiment("the number of KV blocks, once and twice".into(), predicts);
    }
    let few = in_flight / 2;
    let [many_name, few_name] = [in_flight, few].map(|n| format!("in-flight={n}"));
    let suite = Suite {
        name: "diagnose-pool",
        question,
        reading: "The arms differ in the requests in flight. The hypothesis says that ITL p99 \
                  falls by far more than ITL p50 does, since preemptions end. Compare \
                  server.counters.preemptions of the cells."
            .into(),
        servers: one_server(facts),
        bench: bench(Map::new()),
        varied: vec![Varied {
            factor: "in-flight",
            key: "bench.max_concurrency",
            values: vec![in_flight, few],
        }],
        expected: vec![
            Expected::lower("itl_ms.p99", &many_name, &few_name),
            Expected::open("itl_ms.p50", &many_name, &few_name),
        ],
    };
    suite.experiment(format!("requests in flight ({in_flight}, {few})"), predicts)
}

fn twice_by_hand() -> String {
    format!("Start a second server like the first at {SECOND} with twice the KV blocks.")
}

fn reservation(facts: &Facts<'_>) -> Experiment {
    let mut bench = table(json!({
        "dataset_name": "random",
        "random_input_len": median_prompt(facts),
        "num_prompts": facts.case.requests().count().clamp(32, 512),
        "ignore_eos": false,
    }));
    match rate(facts) {
        Some(rate) => bench.insert("request_rate".into(), json!(rate)),
        None => bench.insert("max_concurrency".into(), json!(MOST_IN_FLIGHT / 4)),
    };
    let question = "Do first tokens come earlier when less room is kept for output?".to_owned();
    let predicts = "TTFT p99 falls".to_owned();
    let end = "Answers must end as early as in the run: otherwise the room is needed, and less of \
               it means preemptions.";
    let own = facts.case.engine.own.as_ref();
    let kept = own.and_then(|own| own.get(CONSERVATIVENESS)?.as_f64());
    if let Some(kept) = kept {
        bench.insert("random_output_len".into(), json!(median_output(facts)));
        let changes = json!({ CONSERVATIVENESS: kept * 0.2 });
        let suite = Suite {
            name: "diagnose-reservation",
            question,
            reading: format!(
                "The arms differ in the share of the output that admission keeps room for. The \
                 hypothesis says that TTFT p99 falls. {end}"
            ),
            servers: two_servers(facts, "less-kept", changes, String::new()),
            bench,
            varied: Vec::new(),
            expected: vec![
                Expected::lower("ttft_ms.p99", "as-measured", "less-kept"),
                Expected::open("itl_ms.p99", "as-measured", "less-kept"),
            ],
        };
        return suite.experiment("the share of output that room is kept for".into(), predicts);
    }
    let asked = median_output(facts).max(4);
    let came = (facts.output_share().unwrap_or(0.5) * asked as f64 * 1.5).ceil() as u64;
    let came = came.clamp(2, asked - 1);
    let [asked_name, came_name] = [asked, came].map(|n| format!("asked={n}"));
    let suite = Suite {
        name: "diagnose-reservation",
        question,
        reading: format!(
            "The arms differ in the output length that requests ask for. The hypothesis says that \
             TTFT p99 falls where they ask for little more than they get. {end}"
        ),
        servers: one_server(facts),
        bench,
        varied: vec![Varied {
            factor: "asked",
            key: "bench.random_output_len",
            values: vec![asked, came],
        }],
        expected: vec![Expected::lower("ttft_ms.p99", &asked_name, &came_name)],
    };
    suite.experiment(
        format!("output tokens asked for ({asked}, {came})"),
        predicts,
    )
}

fn evictions(facts: &Facts<'_>) -> Experiment {
    let prompt = median_prompt(facts).max(8);
    let bench = |groups: Option<u64>| {
        let mut bench = table(json!({
            "dataset_name": "shared-prefix",
            "gsp_prompts_per_group": 4,
            "gsp_system_prompt_len": prompt * 3 / 4,
            "gsp_question_len": prompt / 4,
            "gsp_output_len": median_output(facts),
            "max_concurrency": 4,
        }));
        bench.extend(groups.map(|groups| ("gsp_num_groups".to_owned(), json!(groups))));
        bench
    };
    let question = "Are prefixes found, and first tokens earlier, when the cache can keep them?";
    let (servers, varied, names, varies) = match facts.case.engine.num_blocks {
        Some(blocks) => {
            let changes = json!({ "num_blocks": blocks.saturating_mul(4) });
            let servers = two_servers(facts, "four-times-the-pool", changes, twice_by_hand());
            let names = ["as-measured", "four-times-the-pool"].map(str::to_owned);
            (servers, Vec::new(), names, "the number of KV blocks")
        }
        None => {
            let groups = Varied {
                factor: "groups",
                key: "bench.gsp_num_groups",
                values: vec![32, 4],
            };
            let names = ["groups=32", "groups=4"].map(str::to_owned);
            (
                one_server(facts),
                vec![groups],
                names,
                "the prefixes that are in use at a time",
            )
        }
    };
    let suite = Suite {
        name: "diagnose-eviction",
        question: question.into(),
        reading: format!(
            "The arms differ in {varies}. The hypothesis says that the hit rate rises and service \
             TTFT falls. If the hit rate stays, prefixes are lost for another reason."
        ),
        servers,
        bench: bench(varied.is_empty().then_some(16)),
        expected: vec![
            Expected::higher("cache.hit_rate", &names[0], &names[1]),
            Expected::lower("service_ttft_ms.p50", &names[0], &names[1]),
        ],
        varied,
    };
    suite.experiment(
        varies.to_owned(),
        "the hit rate rises and service TTFT falls".into(),
    )
}

fn table(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(table) => table,
        _ => Map::new(),
    }
}

fn median(values: impl Iterator<Item = u32>) -> u64 {
    let mut values: Vec<u32> = values.collect();
    values.sort_unstable();
    values
        .get(values.len() / 2)
        .copied()
        .map_or(128, u64::from)
        .max(1)
}

fn median_prompt(facts: &Facts<'_>) -> u64 {
    median(facts.case.requests().map(|row| row.prompt_tokens_planned))
}

fn median_output(facts: &Facts<'_>) -> u64 {
    median(facts.case.requests().map(|row| row.max_tokens))
}

fn longest_prompt(facts: &Facts<'_>) -> u64 {
    let planned = facts.case.requests().map(|row| row.prompt_tokens_planned);
    planned.max().map_or(1024, u64::from).max(1)
}

/// Requests a second between the first arrival and the last.
fn rate(facts: &Facts<'_>) -> Option<f64> {
    let arrivals = || facts.case.requests().map(|row| row.intended_ns);
    let span = arrivals().max()?.saturating_sub(arrivals().min()?);
    let gaps = arrivals().count().checked_sub(1)?;
    let rate = gaps as f64 / span.as_secs_f64();
    // Two digits are enough of a load that is to be like another.
    rate.is_finite().then(|| (rate * 100.0).ceil() / 100.0)
}
