//! The schedule of a seed is frozen: a change of these bytes is a change of every result.

use pb_contract::plan::{PlannedPrompt, Session};
use pb_contract::{Nanos, RequestId};
use pb_load::schedule::{canonical, sha256_hex};
use pb_workloads::{InterferenceParams, TextSource, interference};

use crate::driver::{closed, open, plan};
use crate::recordings::repository;

/// The golden schedule: a synthetic text, so that it depends on no tokenizer.
fn golden_plan() -> pb_contract::plan::Plan {
    let tokens = (0..20_000u32)
        .map(|i| (i * 7_919 + i * i) % 4_093)
        .collect();
    let mut text = TextSource::new(tokens, 1).unwrap();
    let params = InterferenceParams {
        streams: 2,
        background_requests: 4,
        mean_gap_ns: Nanos::from_millis(1_500),
        ..InterferenceParams::default()
    };
    interference(&params, &mut text, 7).unwrap()
}

#[test]
fn the_schedule_of_a_seed_is_the_committed_one() {
    let path = repository("golden/schedules/interference_seed_7.jsonl");
    let bytes = canonical(&golden_plan());
    let text = String::from_utf8(bytes).unwrap();
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(text, golden, "the schedule of seed 7 has changed:\n{text}");
    let sums = repository("golden/schedules/sha256sums.txt");
    let sums = std::fs::read_to_string(sums).unwrap();
    let line = sums
        .lines()
        .find(|line| line.ends_with("interference_seed_7.jsonl"))
        .unwrap();
    assert_eq!(
        line.split_whitespace().next().unwrap(),
        sha256_hex(&golden_plan())
    );
}

/// Prompt hashes and the whole by `sha256sum` and `printf '\1\0\0\0\2\0\0\0\3\0\0\0'`.
#[test]
fn the_canonical_form_by_hand() {
    let plan = plan(vec![open(3, 2)], vec![closed(0, 1, 1)]);
    let prompt = "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d";
    let body = |class: &str| {
        format!(
            "\"class\":\"{class}\",\"prompt_tokens\":3,\"prompt_sha256\":\"{prompt}\",\
             \"max_tokens\":2,\"cache_salt\":null"
        )
    };
    let expected = format!(
        "{{\"prefillbench_schedule\":1,\"horizon_ns\":1000000000,\"drain_ns\":500000000,\
         \"open\":1,\"closed\":1}}\n{{\"id\":3,\"offset_ns\":2000000,{}}}\n\
         {{\"streams\":1,\"requests\":1}}\n{{\"id\":0,{}}}\n",
        body("open"),
        body("closed")
    );
    assert_eq!(String::from_utf8(canonical(&plan)).unwrap(), expected);
}

#[test]
fn any_change_changes_the_hash() {
    let base = golden_plan();
    let mut later = base.clone();
    later.open[0].offset_ns += Nanos(1);
    let mut other_token = base.clone();
    let PlannedPrompt::Ids(ids) = &mut other_token.closed[0].bodies[1].prompt else {
        panic!("a prompt of token ids");
    };
    ids[5] ^= 1;
    let mut other_id = base.clone();
    other_id.closed[0].first_id = RequestId(1_000);
    let mut salted = base.clone();
    salted.open[0].body.cache_salt = Some("s".into());
    let mut stopping = base.clone();
    stopping.open[0].body.ignore_eos = false;
    let mut texts = base.clone();
    texts.open[0].body.prompt = PlannedPrompt::Text("a".into());
    let mut chats = base.clone();
    chats.open[0].body.prompt = PlannedPrompt::Chat(vec![]);
    let mut talking = base.clone();
    talking.sessions = vec![Session {
        offset_ns: Nanos(1),
        turns: vec![],
    }];
    let all = [
        base,
        later,
        other_token,
        other_id,
        salted,
        stopping,
        texts,
        chats,
        talking,
    ];
    let hashes: std::collections::BTreeSet<String> = all.iter().map(sha256_hex).collect();
    assert_eq!(hashes.len(), all.len());
}
