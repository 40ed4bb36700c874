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
        "lock_contention" => sequences(facts, true),
        "decode_bandwidth" => sequences(facts, false),
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
            by_hand,
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
             hypothesis says that the longest gap of the streams and ITL p99 fall. If they do \
             not, prefill in one piece is not what the streams wait for. One long gap becomes \
             several shorter ones, so p95 may rise where few gaps were long. The first token of \
             the long prompts is the price."
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
        varied: None,
        expected: vec![
            Expected::lower("classes.background.itl_ms.max", "as-measured", "bounded"),
            Expected::lower("classes.background.itl_ms.p99", "as-measured", "bounded"),
            // Where fewer than one gap in twenty was long, the pieces are what p95 meets.
            Expected::open("classes.background.itl_ms.p95", "as-measured", "bounded"),
            Expected::open("classes.long_prompt.ttft_ms.p50", "as-measured", "bounded"),
        ],
    };
    suite.experiment(
        format!("the largest step: as measured, or about {budget} tokens"),
        "the longest gap and ITL p99 of the decoding streams fall".into(),
    )
}

/// Half the sequences at a time, under long and short contexts. A wait for the host goes with the
/// sequences, whatever their contexts; reading keys takes no time where there are few.
fn sequences(facts: &Facts<'_>, host: bool) -> Experiment {
    let (prompt, short) = (median_prompt(facts).max(64), 16);
    let many = facts.sums.most_in_flight.clamp(4, MOST_IN_FLIGHT);
    let few = many / 2;
    let arms = ("as-measured", "half-the-sequences");
    let predicts = match host {
        true => "ITL falls with half the sequences, whatever their contexts",
        false => "ITL falls with half the sequences where contexts are long, and not where short",
    };
    let at = |context: u64| format!("context={context}");
    let with_short = match host {
        true => Expected::lower("itl_ms.p50", arms.0, arms.1),
        false => Expected::equivalent("itl_ms.p50", arms.0, arms.1),
    };
    let by_hand = format!(
        "Start a second server like the first at {SECOND} that runs at most {few} sequences at a \
         time (vLLM: --max-num-seqs, SGLang: --max-running-requests)."
    );
    let suite = Suite {
        name: match host {
            true => "diagnose-host-wait",
            false => "diagnose-bandwidth",
        },
        question: "Does the time of a token go with the sequences or with the keys that they read?"
            .into(),
        reading: format!(
            "The arms differ in the sequences that run at a time, the conditions in the length of \
             their contexts. The hypothesis says: {predicts}. A wait for the host and the reading \
             of keys predict opposite results for the short contexts, so one of them is refuted."
        ),
        servers: two_servers(facts, arms.1, json!({ "max_num_seqs": few }), by_hand),
        bench: table(json!({
            "dataset_name": "random",
            "random_output_len": median_output(facts),
            "num_prompts": many * 4,
            "max_concurrency": many,
        })),
        varied: Some(Varied {
            factor: "context",
            key: "bench.random_input_len",
            values: vec![prompt, short],
        }),
        expected: vec![
            Expected::lower("itl_ms.p50", arms.0, arms.1).when(at(prompt)),
            with_short.when(at(short)),
        ],
    };
    suite.experiment(
        format!("the sequences at a time ({many}, {few}), under contexts of {prompt} and {short}"),
        predicts.into(),
    )
}

/// A larger pool under the run's own lengths.
fn pool(facts: &Facts<'_>) -> Experiment {
    let in_flight = facts.sums.most_in_flight.clamp(4, MOST_IN_FLIGHT);
    let by_hand = more_by_hand("twice");
    let suite = Suite {
        name: "diagnose-pool",
        question: "Do the longest gaps shrink when requests keep their blocks?".into(),
        reading: "The arms differ in the size of the pool. The hypothesis says that ITL p99 falls \
                  where every request finds blocks. If it does not, being thrown out is not what \
                  the streams wait for."
            .into(),
        servers: two_servers(facts, "twice-the-pool", blocks(facts, 2), by_hand),
        bench: table(json!({
            "dataset_name": "random",
            "random_input_len": median_prompt(facts),
            "random_output_len": median_output(facts),
            "num_prompts": in_flight * 4,
            "max_concurrency": in_flight,
        })),
        varied: None,
        expected: vec![
            Expected::lower("itl_ms.p99", "as-measured", "twice-the-pool"),
            Expected::open("rates.output_tps", "as-measured", "twice-the-pool"),
        ],
    };
    suite.experiment(
        "the number of KV blocks, once and twice".into(),
        "ITL p99 falls".into(),
    )
}

/// The setting of this project's engine for `times` the blocks.
fn blocks(facts: &Facts<'_>, times: usize) -> Value {
    match facts.case.engine.num_blocks {
        Some(blocks) => json!({ "num_blocks": blocks.saturating_mul(times) }),
        None => Value::Null,
    }
}

fn more_by_hand(times: &str) -> String {
    format!("Start a second server like the first at {SECOND} with {times} the KV blocks.")
}

fn reservation(facts: &Facts<'_>) -> Experiment {
    let mut bench = table(json!({
        "dataset_name": "random",
        "random_input_len": median_prompt(facts),
        "random_output_len": median_output(facts),
        "num_prompts": facts.case.requests().count().clamp(32, 512),
        "ignore_eos": false,
    }));
    match rate(facts) {
        Some(rate) => bench.insert("request_rate".into(), json!(rate)),
        None => bench.insert("max_concurrency".into(), json!(MOST_IN_FLIGHT / 4)),
    };
    let own = facts.case.engine.own.as_ref();
    let kept = own.and_then(|own| own.get(CONSERVATIVENESS)?.as_f64());
    // Where the engine's own setting is not known, a larger pool leaves room beside what is kept.
    let (candidate, changes, by_hand, varies) = match (own, kept) {
        (Some(_), None) => (
            "twice-the-pool",
            blocks(facts, 2),
            more_by_hand("twice"),
            "the number of KV blocks, once and twice",
        ),
        (_, kept) => (
            "less-kept",
            json!({ CONSERVATIVENESS: kept.unwrap_or(1.0) * 0.2 }),
            format!(
                "Start a second server like the first at {SECOND} that keeps less room for output \
                 (SGLang: a lower --schedule-conservativeness)."
            ),
            "the share of the output that room is kept for",
        ),
    };
    let suite = Suite {
        name: "diagnose-reservation",
        question: "Do first tokens come earlier when less of the room is kept for output?".into(),
        reading: format!(
            "The arms differ in {varies}. The hypothesis says that TTFT p99 falls. Answers must \
             end as early as in the run: otherwise the room is needed, and less of it means \
             preemptions."
        ),
        servers: two_servers(facts, candidate, changes, by_hand),
        bench,
        varied: None,
        expected: vec![
            Expected::lower("ttft_ms.p99", "as-measured", candidate),
            Expected::open("itl_ms.p99", "as-measured", candidate),
        ],
    };
    suite.experiment(varies.into(), "TTFT p99 falls".into())
}

/// A pool that can keep the prefixes.
fn evictions(facts: &Facts<'_>) -> Experiment {
    let prompt = median_prompt(facts).max(8);
    let (before, after) = ("as-measured", "four-times-the-pool");
    let by_hand = more_by_hand("four times");
    let suite = Suite {
        name: "diagnose-eviction",
        question: "Are prefixes found, and first tokens earlier, when the cache can keep them?"
            .into(),
        reading: "The arms differ in the size of the pool. The hypothesis says that the hit rate \
                  rises and service TTFT falls. If the hit rate stays, prefixes are lost for \
                  another reason."
            .into(),
        servers: two_servers(facts, after, blocks(facts, 4), by_hand),
        bench: table(json!({
            "dataset_name": "shared-prefix",
            "gsp_num_groups": 16,
            "gsp_prompts_per_group": 4,
            "gsp_system_prompt_len": prompt * 3 / 4,
            "gsp_question_len": prompt / 4,
            "gsp_output_len": median_output(facts),
            "max_concurrency": 4,
        })),
        varied: None,
        expected: vec![
            Expected::higher("cache.hit_rate", before, after),
            Expected::lower("service_ttft_ms.p50", before, after),
        ],
    };
    suite.experiment(
        "the number of KV blocks, once and four times".into(),
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
