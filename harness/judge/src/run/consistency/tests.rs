//! Faults planted in one file of a run that was whole, each found and named.

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RequestRow, TokenRow};
use pb_record::{RunData, StepRecord};

use crate::run::fixture::{MS, Shape, data, data_from, notes, parts};
use crate::run::{CheckState, Outcome, RunNotes, RunVerdict, judge};

type Parts = (Vec<RequestRow>, Vec<TokenRow>, Vec<StepRecord>);

/// Whether the run is void for this one check, and says this.
#[track_caller]
fn assert_names(verdict: &RunVerdict, check: &str, says: &str) {
    assert_eq!(verdict.outcome, Outcome::Void, "{says}");
    let broken: Vec<_> = verdict
        .validity
        .checks
        .iter()
        .filter(|c| c.state == CheckState::Broken)
        .collect();
    let found = broken.iter().find(|c| c.name == check);
    let found = found.unwrap_or_else(|| panic!("{check} held; broken: {broken:?}"));
    assert!(found.measured.contains(says), "{}", found.measured);
}

fn planted(plant: impl FnOnce(&mut Parts)) -> RunVerdict {
    let mut all = parts(&Shape::default());
    plant(&mut all);
    judge(&data_from(RunState::Complete, all), &notes())
}

/// Without a reset, so that no probe explains a prompt token too many.
fn exact(plant: impl FnOnce(&mut Parts, &mut RunNotes)) -> RunVerdict {
    let mut all = parts(&Shape::default());
    let mut given = notes();
    given.resets.clear();
    given.comparison.as_mut().unwrap().cache_control = crate::run::CacheControl::Off;
    plant(&mut all, &mut given);
    judge(&data_from(RunState::Complete, all), &given)
}

const TOKENS: &str = "tokens.csv agrees with requests.csv";
const REQUESTS: &str = "requests.csv is whole";
const STEPS: &str = "steps.csv agrees with requests.csv";
const MANIFEST: &str = "manifest.json names what ran";

#[test]
fn whole_runs_hold() {
    let run = data(&Shape::default());
    let verdict = judge(&run, &notes());
    assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.sentence);
    let verdict = exact(|_, _| {});
    assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.sentence);
}

#[test]
fn token_rows_that_are_lost_or_doubled() {
    // Request 0 of mono block 0: events 0 to 10 are rows 0 to 10 of the fixture.
    let lost = planted(|all| drop(all.1.remove(3)));
    assert_names(
        &lost,
        TOKENS,
        "tokens.csv: no event 3, but an event 4 of request 0 of mono block 0",
    );
    let doubled = planted(|all| all.1.push(all.1[5].clone()));
    assert_names(
        &doubled,
        TOKENS,
        "two rows of event 5 of request 0 of mono block 0",
    );
    let tail = planted(|all| drop(all.1.remove(10)));
    assert_names(
        &tail,
        TOKENS,
        "10 tokens in events, 11 in requests.csv, of request 0 of mono",
    );
    let none = planted(|all| all.1.clear());
    assert_names(&none, TOKENS, "0 tokens in events, 11 in requests.csv");
}

#[test]
fn token_rows_with_wrong_values() {
    let zero = planted(|all| all.1[2].tokens = 0);
    assert_names(&zero, TOKENS, "no token in event 2 of request 0");
    let many = planted(|all| all.1[2].tokens = u32::MAX);
    assert_names(&many, TOKENS, "4294967305 tokens in events, 11 in");
    let back = planted(|all| all.1[2].at_ns = Nanos(all.1[1].at_ns.0 - 1));
    assert_names(&back, TOKENS, "a time that runs backwards at event 2");
    let first = planted(|all| all.1[0].at_ns.0 -= 1);
    assert_names(
        &first,
        TOKENS,
        "event 0 at another time than first_token_ns of request 0",
    );
    let last = planted(|all| all.1[10].at_ns.0 += 1);
    assert_names(
        &last,
        TOKENS,
        "event 10 at another time than last_token_ns of request 0",
    );
}

#[test]
fn a_token_row_needs_a_request_row_unless_the_run_was_stopped() {
    let remove = |all: &mut Parts| {
        let gone = |row: &RequestRow| row.arm == "chunk" && row.block == 3 && row.request.0 == 1;
        all.0.retain(|row| !gone(row));
    };
    let says =
        "tokens.csv: event 0 of request 1 of chunk block 3 has no row in requests.csv (11 such";
    assert_names(&planted(remove), TOKENS, says);
    let mut all = parts(&Shape::default());
    remove(&mut all);
    let stopped = judge(&data_from(RunState::Running, all), &notes());
    let broken = stopped
        .validity
        .checks
        .iter()
        .filter(|c| c.state == CheckState::Broken);
    assert_eq!(
        broken.map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["run complete"]
    );
}

#[test]
fn many_tokens_cost_no_memory_even_where_all_files_agree() {
    // Every stream of the run claims 2^32 - 1 tokens in its last event: samples of 34 GB each.
    let verdict = planted(|all| {
        let number = |row: &TokenRow| row.event == 10;
        all.1
            .iter_mut()
            .filter(|t| number(t))
            .for_each(|t| t.tokens = u32::MAX - 10);
        for row in all.0.iter_mut().filter(|row| row.class == "background") {
            (row.streamed_tokens, row.max_tokens) = (u32::MAX, u32::MAX);
        }
    });
    // In each arm 8 streams of 9 gaps and a last one of 2^32 - 11 tokens.
    let itl = verdict.performance.arm("mono").unwrap().all.itl;
    assert_eq!(itl.n, 8 * (9 + u64::from(u32::MAX) - 10));
    assert_eq!((itl.p50_ns, itl.max_ns), (Some(0), Some(520 * MS)));
}

#[test]
fn requests_that_ended_well_have_their_instants() {
    type Clear = fn(&mut RequestRow);
    let columns: [(&str, Clear); 5] = [
        ("sent_ns", |row| row.sent_ns = None),
        ("first_event_ns", |row| row.first_event_ns = None),
        ("first_token_ns", |row| row.first_token_ns = None),
        ("last_token_ns", |row| row.last_token_ns = None),
        ("closed_ns", |row| row.closed_ns = None),
    ];
    for (column, clear) in columns {
        let says =
            format!("requests.csv: request 1 of mono block 0 ended well but has no {column}");
        assert_names(&planted(|all| clear(&mut all.0[1])), REQUESTS, &says);
    }
    let over = planted(|all| all.0[0].max_tokens = 10);
    assert_names(
        &over,
        REQUESTS,
        "request 0 of mono block 0 streamed 11 tokens, 10 were asked for",
    );
    let cached = planted(|all| all.0[0].cached_tokens = Some(101));
    assert_names(&cached, REQUESTS, "found 101 of 100 prompt tokens cached");
    let early = planted(|all| all.0[0].headers_ns = Some(Nanos(0)));
    assert_names(&early, "instants in order", "1 requests");
}

#[test]
fn steps_are_numbered_and_come_one_after_the_other() {
    // Steps 1 and 2 of the fixture are steps 0 and 1 of chunk block 0.
    let doubled = planted(|all| all.2.insert(2, all.2[2].clone()));
    assert_names(
        &doubled,
        STEPS,
        "steps.csv: step 1 of chunk block 0 follows step 1",
    );
    let gap = planted(|all| all.2[2].row.step = 5);
    assert_names(
        &gap,
        STEPS,
        "steps.csv: step 5 of chunk block 0 follows step 0",
    );
    let early = planted(|all| all.2[2].row.start_ns.0 -= 1);
    assert_names(
        &early,
        STEPS,
        "step 1 of chunk block 0 starts before step 0 ended",
    );
    let endless = planted(|all| all.2[1].row.duration_ns = Nanos(u64::MAX));
    assert_names(
        &endless,
        STEPS,
        "step 1 of chunk block 0 starts before step 0 ended",
    );
}

#[test]
fn a_step_agrees_with_itself() {
    // Step 0 of chunk block 0: parts of 100 ms in all, 600 prompt tokens of one sequence, 2 decode
    // tokens of 2, 16 of 50 tokens found.
    type Change = fn(&mut pb_contract::StepRow);
    let cases: [(Change, &str); 7] = [
        (
            |row| row.duration_ns = Nanos(0),
            "lasted 0 ns, its parts 100000000 ns",
        ),
        (
            |row| row.schedule_ns = Nanos(u64::MAX),
            "its parts 18446744073808551615 ns",
        ),
        (
            |row| row.prefill_seqs = 601,
            "600 prompt tokens in 601 sequences",
        ),
        (
            |row| row.prefill_seqs = 0,
            "600 prompt tokens in 0 sequences",
        ),
        (
            |row| row.decode_tokens = 0,
            "0 decode tokens in 2 sequences",
        ),
        (
            |row| row.decode_seqs = usize::MAX,
            "2 decode tokens in 18446744073709551615",
        ),
        (|row| row.hit_tokens = 51, "found 51 of 50 tokens cached"),
    ];
    for (change, says) in cases {
        let verdict = planted(|all| change(&mut all.2[1].row));
        assert_names(&verdict, STEPS, says);
        assert_names(&verdict, STEPS, "steps.csv: step 0 of chunk block 0 ");
    }
}

#[test]
fn steps_compute_the_prompts_that_the_cache_did_not_give() {
    let lost = exact(|all, _| drop(all.2.remove(2)));
    let says = "steps.csv: 600 prompt tokens computed in chunk block 0 from step 0 on, 1000 needed";
    assert_names(&lost, STEPS, says);
    let more = exact(|all, _| all.2[0].row.prefill_tokens += 1);
    assert_names(&more, STEPS, "1001 prompt tokens computed in mono block 0");
    let huge = exact(|all, _| all.2[1].row.prefill_tokens = usize::MAX);
    assert_names(&huge, STEPS, "prompt tokens computed in chunk block 0");
    // A preempted request is computed again; a failed one may or may not have been.
    let again = exact(|all, _| {
        all.2[0].row.prefill_tokens += 1;
        all.2[0].row.preempted = 1;
    });
    assert_eq!(again.outcome, Outcome::Pass, "{}", again.sentence);
    let silent = exact(|all, _| {
        all.2[0].row.prefill_tokens += 1;
        all.0[0].prompt_tokens = None;
    });
    assert_eq!(silent.outcome, Outcome::Pass, "{}", silent.sentence);
}

fn without_steps(change: impl FnOnce(&mut RunData)) -> RunVerdict {
    let (rows, tokens, _) = parts(&Shape::default());
    let mut run = data_from(RunState::Complete, (rows, tokens, Vec::new()));
    change(&mut run);
    judge(&run, &notes())
}

#[test]
fn this_engine_always_tells_its_steps() {
    let own = without_steps(|run| {
        run.manifest.arms[1].version = "0.1.0".to_owned();
        run.manifest.arms[1].config = serde_json::json!({"chunked": true});
    });
    assert_names(&own, STEPS, "steps.csv: no step of chunk block 0");
    type Clear = fn(&mut RequestRow);
    let cases: [(Clear, &str); 2] = [
        (|row| row.prompt_tokens = None, "has no prompt_tokens"),
        (|row| row.cached_tokens = None, "has no cached_tokens"),
    ];
    for (clear, says) in cases {
        let mut run = data(&Shape::default());
        run.manifest.arms[1].version = "0.1.0".to_owned();
        run.manifest.arms[1].config = serde_json::json!({"chunked": true});
        let row = run
            .requests
            .iter_mut()
            .find(|row| row.arm == "chunk")
            .unwrap();
        clear(row);
        let says = format!("request 0 of chunk block 0 ended well but {says}");
        assert_names(&judge(&run, &notes()), REQUESTS, &says);
    }
    // A server that tells its version only is another one.
    let other = without_steps(|run| run.manifest.arms[1].version = "0.9".to_owned());
    assert_eq!(other.outcome, Outcome::Pass, "{}", other.sentence);
    let check = other
        .validity
        .checks
        .iter()
        .find(|c| c.name == STEPS)
        .unwrap();
    assert_eq!(check.state, CheckState::NotChecked);
    // Steps of some cells only.
    let part = planted(|all| all.2.retain(|s| !(s.arm == "mono" && s.block == 2)));
    assert_names(&part, STEPS, "steps.csv: no step of mono block 2");
}

#[test]
fn the_manifest_names_every_cell() {
    let changed = |change: fn(&mut RunData)| {
        let mut run = data(&Shape::default());
        change(&mut run);
        judge(&run, &notes())
    };
    type Change = fn(&mut RunData);
    let cases: [(Change, &str); 7] = [
        (
            |run| run.manifest.arms.clear(),
            "no arm of 0:mono, but requests.csv has request 0",
        ),
        (
            |run| run.manifest.order.clear(),
            "no place in the order of 0:mono",
        ),
        (
            |run| run.manifest.schedule_sha256.clear(),
            "no schedule digest of 0:mono",
        ),
        (
            |run| drop(run.manifest.schedule_sha256.remove("3:chunk")),
            "digest of 3:chunk",
        ),
        (
            |run| run.manifest.order.push("4:mono".to_owned()),
            "4:mono ran, but requests.csv has no",
        ),
        (
            |run| run.manifest.order.push("0:mono".to_owned()),
            "0:mono stands twice in the order",
        ),
        (
            |run| run.manifest.arms[1] = run.manifest.arms[0].clone(),
            "arm mono stands twice",
        ),
    ];
    for (change, says) in cases {
        assert_names(&changed(change), MANIFEST, says);
    }
}

#[test]
fn a_table_that_was_changed_after_the_run_voids_it() {
    let mut run = data(&Shape::default());
    run.changed_tables = vec!["requests.csv: 3 rows, 9 bytes".to_owned()];
    let verdict = judge(&run, &notes());
    assert_names(
        &verdict,
        "tables are as they were written",
        "requests.csv: 3 rows",
    );
}

#[test]
fn nothing_compared_is_no_pass() {
    let run = data(&Shape::default());
    let verdict = judge(&run, &RunNotes::default());
    assert_eq!(
        (verdict.outcome, verdict.outcome.exit_code()),
        (Outcome::Inconclusive, 3)
    );
    assert!(
        verdict.sentence.contains("nothing was compared"),
        "{}",
        verdict.sentence
    );
    assert_eq!(verdict.headline(), "INCONCLUSIVE");
    // An arm against itself.
    let mut given = notes();
    given.comparison.as_mut().unwrap().candidate = "mono".to_owned();
    assert_names(
        &judge(&run, &given),
        "two arms are compared",
        "mono against mono",
    );
    // Without logit checks the arms are compared all the same, and the sentence says so.
    let verdict = judge(&run, &notes());
    assert_eq!(verdict.outcome, Outcome::Pass);
    assert!(
        verdict.sentence.contains("Outputs were not checked."),
        "{}",
        verdict.sentence
    );
}
