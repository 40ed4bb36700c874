//! Rules on runs made by hand, in which the time of every step is known.

use std::path::Path;

use pb_contract::manifest::{RUN_SCHEMA_VERSION, RunManifest, RunState};
use pb_contract::{FailKind, Nanos, RequestId, RequestRow, RequestStatus, StepRow, TokenRow};
use pb_record::{RunData, StepRecord};
use serde_json::json;

use super::*;

const MS: u64 = 1_000_000;
/// Streams, and steps of each kind.
const STREAMS: u64 = 4;
const CALM: u64 = 150;
const SLOW: u64 = 10;

fn manifest() -> RunManifest {
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "bench".into(),
        state: RunState::Complete,
        created: String::new(),
        command: Vec::new(),
        tool: Default::default(),
        machine: Default::default(),
        model: Default::default(),
        seed: 1,
        schedule_sha256: Default::default(),
        arms: Vec::new(),
        order: Vec::new(),
        workload: json!(null),
    }
}

pub(super) fn request(id: u64, intended: u64, first: u64, last: u64) -> RequestRow {
    let at = |ms: u64| Some(Nanos(ms * MS));
    RequestRow {
        arm: "a".into(),
        block: 0,
        request: RequestId(id),
        class: "c".into(),
        intended_ns: Nanos(intended * MS),
        sent_ns: at(intended),
        headers_ns: at(intended),
        first_event_ns: at(first),
        first_token_ns: at(first),
        last_token_ns: at(last),
        closed_ns: at(last),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: None,
        prompt_tokens_planned: 64,
        prompt_tokens: Some(64),
        cached_tokens: None,
        max_tokens: 200,
        completion_tokens: Some(200),
        streamed_tokens: 200,
    }
}

/// Streams that get a token a step: calm steps of 10 ms, and slow ones that `slow` makes longer.
pub(super) fn streams(slow: impl Fn(&mut StepRow)) -> RunData {
    let (mut steps, mut tokens) = (Vec::new(), Vec::new());
    let mut end = 1000 * MS;
    for step in 0..CALM + SLOW {
        let mut row = StepRow {
            step,
            duration_ns: Nanos(10 * MS),
            decode_gemm_ns: Nanos(6 * MS),
            decode_attention_ns: Nanos(4 * MS),
            decode_seqs: STREAMS as usize,
            context_tokens: 4000,
            running: STREAMS as usize,
            free_blocks: 50,
            active_blocks: 50,
            ..StepRow::default()
        };
        if step % 16 == 15 {
            slow(&mut row);
        }
        row.start_ns = Nanos(end) + row.lock_wait_ns;
        end = (row.start_ns + row.duration_ns).0;
        steps.push(StepRecord {
            arm: "a".into(),
            block: 0,
            row,
        });
        for stream in 0..STREAMS {
            tokens.push(TokenRow {
                arm: "a".into(),
                block: 0,
                request: RequestId(stream),
                event: step as u32,
                at_ns: Nanos(end + MS / 20),
                tokens: 1,
            });
        }
    }
    let requests = (0..STREAMS).map(|id| request(id, 900, 1010, end / MS));
    let requests = requests.collect();
    RunData::from_parts(Path::new(""), manifest(), requests, tokens, steps).unwrap()
}

/// A prompt of 64 tokens in one piece, for 90 ms.
fn prefill(row: &mut StepRow) {
    row.prefill_gemm_ns = Nanos(90 * MS);
    row.prefill_tokens = 64;
    row.duration_ns += row.prefill_gemm_ns;
}

pub(super) fn case(data: &RunData) -> Case<'_> {
    Case {
        run: "run".into(),
        data,
        arm: "a",
        void: Vec::new(),
        engine: EngineFacts::default(),
        server: None,
        ideal_hit_tokens: None,
        gates_missed: Vec::new(),
        base_url: None,
    }
}

fn state(diagnosis: &Diagnosis, id: &str) -> State {
    let found = diagnosis.hypotheses.iter().find(|h| h.id == id);
    found.unwrap().state
}

#[test]
fn what_alone_explains_leads_and_is_not_believed() {
    let data = streams(prefill);
    let found = diagnose(&case(&data));
    assert_eq!(
        (found.outcome, found.exit_code, found.next.as_deref()),
        (Outcome::Leading, 0, Some("unbounded_chunks"))
    );
    let gaps = &found.symptoms[0];
    // 4 streams of 160 tokens have 636 gaps; the 20 longest last 100 ms, the calm ones 10 ms, and
    // the 90 ms between are prefill.
    assert_eq!(
        (gaps.n, gaps.calm_ms, gaps.slow_ms),
        (636, Some(10.0), Some(100.0))
    );
    let prefill = gaps.parts.iter().find(|p| p.part == "prefill").unwrap();
    assert_eq!(
        (prefill.calm_ms, prefill.slow_ms, prefill.share),
        (0.0, 90.0, 1.0)
    );
    assert!(
        found.sentence.contains("to be tested"),
        "{}",
        found.sentence
    );
    let others = found
        .hypotheses
        .iter()
        .filter(|h| h.id != "unbounded_chunks");
    assert!(others.clone().all(|h| h.state != State::Leading));
    assert_eq!(state(&found, "lock_contention"), State::Against);
}

#[test]
fn two_that_explain_the_same_lead_nowhere() {
    let data = streams(|row| {
        prefill(row);
        row.lock_wait_ns = Nanos(90 * MS);
    });
    let found = diagnose(&case(&data));
    assert_eq!(
        (found.outcome, found.exit_code),
        (Outcome::InsufficientEvidence, 3)
    );
    assert_eq!(state(&found, "unbounded_chunks"), State::Supported);
    assert_eq!(state(&found, "lock_contention"), State::Supported);
    assert!(found.sentence.contains("several"), "{}", found.sentence);
    // 20 of 110 ms are no rival any more.
    let data = streams(|row| {
        prefill(row);
        row.lock_wait_ns = Nanos(20 * MS);
    });
    let found = diagnose(&case(&data));
    assert_eq!(state(&found, "unbounded_chunks"), State::Leading);
    assert_eq!(state(&found, "lock_contention"), State::Against);
}

#[test]
fn a_void_run_leads_nowhere() {
    let data = streams(prefill);
    let found = diagnose(&Case {
        void: vec!["the client was late".into()],
        ..case(&data)
    });
    assert_eq!((found.outcome, found.exit_code), (Outcome::Void, 3));
    assert_eq!(state(&found, "unbounded_chunks"), State::Supported);
    assert!(found.symptoms.iter().all(|s| s.leading.is_none()));
}

#[test]
fn a_hard_failure_allows_containment_and_names_no_cause() {
    let mut data = streams(|_| {});
    let found = diagnose(&case(&data));
    assert_eq!(found.containment, None);
    // Gaps that are all alike are no symptom, however much memory is reserved.
    assert_eq!(found.symptoms[0].present, Some(false));
    assert_eq!(found.outcome, Outcome::InsufficientEvidence);
    let mut failed = request(99, 900, 901, 902);
    failed.status = RequestStatus::Failed;
    failed.fail = Some(FailKind::HttpStatus);
    data.requests.push(failed);
    let found = diagnose(&Case {
        gates_missed: vec!["ttft:500@0.99".into()],
        ..case(&data)
    });
    let text = found.containment.unwrap();
    assert!(
        text.contains("1 requests failed") && text.contains("ttft:500@0.99"),
        "{text}"
    );
    assert_eq!(found.outcome, Outcome::InsufficientEvidence);
}

#[test]
fn too_few_values_are_no_symptom() {
    let mut data = streams(prefill);
    data.requests.truncate(1);
    // One stream of 160 tokens has 159 gaps.
    let found = diagnose(&case(&data));
    assert_eq!(
        (found.symptoms[0].n, found.symptoms[0].present),
        (159, None)
    );
    assert_eq!(state(&found, "unbounded_chunks"), State::Open);
    assert_eq!(found.outcome, Outcome::InsufficientEvidence);
}

/// Another arm's rows are not looked at.
#[test]
fn only_the_arm_counts() {
    let mut data = streams(prefill);
    let fast = streams(|_| {});
    data.steps
        .extend(fast.steps.into_iter().map(|step| StepRecord {
            arm: "b".into(),
            ..step
        }));
    assert_eq!(diagnose(&case(&data)).outcome, Outcome::Leading);
    let found = diagnose(&Case {
        arm: "b",
        ..case(&data)
    });
    assert_eq!(
        (found.symptoms[0].n, found.outcome),
        (0, Outcome::InsufficientEvidence)
    );
}

/// A table of an earlier day has no columns of the host's time, which is not a wait of zero.
#[test]
fn an_older_table_does_not_tell_the_lock_wait() {
    let mut data = streams(prefill);
    for step in &mut data.steps {
        step.row.schedule_ns = Nanos(1000);
    }
    let found = diagnose(&case(&data));
    assert_eq!(state(&found, "lock_contention"), State::Open);
    let host = found.evidence.iter().find(|e| e.name.starts_with("host"));
    assert!(!host.unwrap().present);
}

#[test]
fn the_settings_of_an_engine_are_those_of_a_suite() {
    let config = json!({
        "chunked": false, "max_batched_tokens": 4096, "block_size": 16, "num_blocks": 1e30,
        "threads": u64::MAX,
        "scheduling": {
            "policy": "monolithic",
            "reserved_decode": { "enabled": false, "conservativeness": 1.0 },
        },
    });
    let facts = EngineFacts::of(&config, "m");
    assert_eq!((facts.block_size, facts.num_blocks), (Some(16), None));
    let own = facts.own.unwrap();
    assert_eq!(own["policy"], "monolithic");
    assert!(!own.contains_key("schedule_conservativeness") && !own.contains_key("threads"));
    assert_eq!(EngineFacts::of(&json!({ "server": "vllm" }), "m").own, None);
}

/// Without the engine's steps the client's rows tell how large an experiment must be.
#[test]
fn experiments_are_as_large_as_the_client_saw() {
    let mut data = streams(prefill);
    data.steps.clear();
    let last = data.requests[0].last_token_ns.unwrap().0 / MS;
    // Two more beside the four, and one after all of them.
    data.requests.push(request(10, 900, 1010, last));
    data.requests.push(request(11, 900, 1010, last));
    data.requests.push(request(12, last, last + 1, last + 2));
    let found = diagnose(&case(&data));
    let suite = |id: &str| {
        let found = found.hypotheses.iter().find(|h| h.id == id);
        found.unwrap().experiment.suite.clone()
    };
    let chunks = suite("unbounded_chunks");
    assert!(chunks.contains("params.streams=6"), "{chunks}");
    let host = suite("lock_contention");
    assert!(host.contains("max_concurrency = 6"), "{host}");
}

#[test]
fn a_correlation_speaks_for_what_it_fits() {
    let mut data = streams(prefill);
    data.steps.clear();
    let chunks = |data: &RunData| diagnose(&case(data)).hypotheses[0].clone();
    // Nobody waits for a first token while the gaps last.
    let without = chunks(&data);
    assert_eq!(without.speaks_for, Vec::<String>::new());
    let missing = without.missing.join("; ");
    assert!(
        missing.contains("0 % of the longest gaps meet"),
        "{missing}"
    );
    // The last of the long gaps is from 3400 to 3500 ms.
    data.requests.push(request(98, 3410, 3450, 3451));
    let with = chunks(&data);
    let said = &with.speaks_for[0];
    let met = said.contains("of the longest gaps meet") && !said.contains(": 0 % of the longest");
    assert!(met && said.contains(", 0 % of the undisturbed"), "{said}");
    assert_eq!(with.state, State::Open);
}

#[test]
fn what_nobody_saw_is_not_tested_next() {
    let mut with = streams(prefill);
    with.steps.clear();
    let next = |data: &RunData| diagnose(&case(data)).next;
    assert_eq!(next(&with).as_deref(), Some("unbounded_chunks"));
    // Gaps that are all alike, and first tokens too few to tell: both hypotheses about these are
    // open, and neither is the next to look at.
    let mut without = streams(|_| {});
    without.steps.clear();
    let found = diagnose(&case(&without));
    assert_eq!(state(&found, "pool_reservation"), State::Open);
    assert_eq!(found.symptoms[1].present, None);
    assert_eq!(found.next, None);
}
