//! Sessions: growing prompts, what they find, users that chat one after the other, and shards.

mod support;

use std::collections::BTreeMap;

use pb_contract::plan::{Plan, PlannedPrompt, Session};
use pb_contract::{Nanos, RequestId};
use pb_workloads::{CacheStart, Dataset, Form, HitKnowledge, PlanOptions, Source, plan};
use support::*;

const CHATS: &str = r#"dataset_name = "sessions"
sessions = 6
system_len = 40
turns = "uniform:2,5"
question = "uniform:5,30"
output = "uniform:3,20"
think_s = 0.5
"#;

#[test]
fn each_turn_of_ids_repeats_the_whole_turn_before_and_a_made_answer() {
    let planned = planned(CHATS, "request_rate = 2", &seeded(8)).unwrap();
    assert_eq!(
        (planned.plan.sessions.len(), planned.facts.sessions),
        (6, 6)
    );
    for session in &planned.plan.sessions {
        assert!((2..=5).contains(&session.turns.len()));
        for pair in session.turns.windows(2) {
            let (before, after) = (&pair[0].body, &pair[1].body);
            let repeated = prompt(before).len();
            assert_eq!(prompt(after)[..repeated], *prompt(before));
            let new = prompt(after).len() - repeated - before.max_tokens as usize;
            assert!((5..=30).contains(&new), "{new}");
            assert_eq!(pair[1].think_ns, Nanos::from_millis(500));
            assert!(!pair[1].history);
            // The server's own answer is another one than the made one: only the prompt is found.
            let whole_blocks = repeated / 16 * 16;
            assert_eq!(after.planned_hit_tokens, Some(whole_blocks as u32));
        }
    }
    // First turns share the system prompt's two whole blocks, if they do not come at once.
    let firsts = planned
        .plan
        .sessions
        .iter()
        .map(|s| s.turns[0].body.planned_hit_tokens);
    let found: Vec<u32> = firsts.flatten().collect();
    assert_eq!(found, [0, 32, 32, 32, 32, 32]);
    assert_eq!(planned.facts.hits, HitKnowledge::Ideal);
}

#[test]
fn what_a_session_finds_of_its_own_does_not_depend_on_others() {
    let alone = CHATS.replace("system_len = 40", "system_len = 0");
    let cold = planned(&alone, "request_rate = 2", &seeded(8)).unwrap();
    assert_eq!(cold.facts.hits, HitKnowledge::Exact);
    let primed = PlanOptions {
        cache: CacheStart::Primed,
        ..seeded(8)
    };
    let warm = planned(CHATS, "request_rate = 2", &primed).unwrap();
    assert_eq!(warm.facts.hits, HitKnowledge::Exact);
    assert_eq!((warm.prime.len(), prompt(&warm.prime[0]).len()), (1, 56));
    let first = &warm.plan.sessions[0].turns[0].body;
    assert_eq!(first.planned_hit_tokens, Some(32));
    assert_eq!(shared(prompt(first), prompt(&warm.prime[0])), 40);
}

#[test]
fn a_chat_repeats_what_the_target_answered() {
    let options = PlanOptions {
        form: Form::Chat,
        ..seeded(8)
    };
    let source = Source::words().with_tokenizer(&WORDS);
    let chat = plan(
        &dataset(CHATS),
        &shape("request_rate = 2"),
        &source,
        &options,
    )
    .unwrap();
    for session in &chat.plan.sessions {
        for (number, turn) in session.turns.iter().enumerate() {
            let PlannedPrompt::Chat(messages) = &turn.body.prompt else {
                panic!("a chat");
            };
            let roles: Vec<&str> = messages.iter().map(|m| m.role.as_str()).collect();
            match number {
                0 => assert_eq!((roles, turn.history), (vec!["system", "user"], false)),
                _ => assert_eq!((roles, turn.history), (vec!["user"], true)),
            }
            assert_eq!(turn.body.planned_hit_tokens, None);
        }
        // Two messages of three tokens each around their words, and two at the end.
        let first = &session.turns[0].body;
        let PlannedPrompt::Chat(messages) = &first.prompt else {
            panic!("a chat");
        };
        let words: usize = messages.iter().map(|m| m.content.split(' ').count()).sum();
        assert_eq!(first.planned_tokens as usize, words + 8);
    }
    assert_eq!(chat.facts.hits, HitKnowledge::Estimate);
    assert!(chat.facts.planned_hit_tokens > 0);
    let planned_answers = format!("{CHATS}answers = \"planned\"\n");
    let data = dataset(&planned_answers);
    let complete = plan(&data, &shape("request_rate = 2"), &source, &options).unwrap();
    let last = complete.plan.sessions[0].turns.last().unwrap();
    let PlannedPrompt::Chat(messages) = &last.body.prompt else {
        panic!("a chat");
    };
    assert_eq!(messages.len(), 2 * complete.plan.sessions[0].turns.len());
    assert!(!last.history && last.body.planned_hit_tokens.is_some());
    let live = dataset(&format!("{CHATS}answers = \"live\"\n"));
    let error = plan(&live, &shape("request_rate = 2"), &ids(), &seeded(8)).unwrap_err();
    assert!(error.to_string().contains("send chats"), "{error}");
}

#[test]
fn users_of_a_closed_loop_take_one_session_after_the_other() {
    let open = planned(CHATS, "request_rate = 2", &seeded(8)).unwrap();
    let users = planned(CHATS, "max_concurrency = 2", &seeded(8)).unwrap();
    assert_eq!((users.plan.sessions.len(), users.facts.sessions), (2, 6));
    let turns = |plan: &Plan, of: &[usize]| -> usize {
        of.iter().map(|&at| plan.sessions[at].turns.len()).sum()
    };
    assert_eq!(
        users.plan.sessions[0].turns.len(),
        turns(&open.plan, &[0, 2, 4])
    );
    assert_eq!(
        users.plan.sessions[1].turns.len(),
        turns(&open.plan, &[1, 3, 5])
    );
    assert!(
        users
            .plan
            .sessions
            .iter()
            .all(|s| s.offset_ns == Nanos::ZERO)
    );
    let one = planned(CHATS, "max_concurrency = 1", &seeded(8)).unwrap();
    assert_eq!(one.facts.hits, HitKnowledge::Exact);
}

#[test]
fn a_session_ends_before_the_turn_that_does_not_fit() {
    let limited = PlanOptions {
        max_model_len: Some(100),
        ..seeded(8)
    };
    let all = planned(CHATS, "request_rate = 2", &seeded(8)).unwrap();
    let cut = planned(CHATS, "request_rate = 2", &limited).unwrap();
    let lost = all.facts.requests - cut.facts.requests;
    assert!(lost > 0);
    assert_eq!(cut.facts.dropped["longer_than_max_model_len"], lost as u64);
    for body in bodies(&cut.plan) {
        assert!(body.planned_tokens + body.max_tokens <= 100);
    }
}

#[test]
fn agents_have_the_lengths_of_the_published_demonstrations() {
    let data = "dataset_name = \"agent\"\nsessions = 200\n";
    let planned = planned(data, "request_rate = 1", &seeded(1)).unwrap();
    let sessions = &planned.plan.sessions;
    let calls = sessions.iter().map(|s| s.turns.len());
    assert!(calls.clone().all(|calls| (12..=21).contains(&calls)));
    let first = |s: &Session| s.turns[0].body.planned_tokens;
    assert!(sessions.iter().all(|s| (1_400..=2_450).contains(&first(s))));
    // Published: the last prompt has 22,000 to 43,000 characters, 5,500 to 10,750 tokens.
    let mut lasts: Vec<u32> = sessions
        .iter()
        .map(|s| s.turns.last().unwrap().body.planned_tokens)
        .collect();
    lasts.sort_unstable();
    assert!(
        (4_000..9_000).contains(&lasts[100]),
        "median {}",
        lasts[100]
    );
    // Published: 90 to 95 % of all prompt tokens can be reused.
    let share = planned.facts.planned_hit_tokens as f64 / planned.facts.input_tokens as f64;
    assert!((0.88..0.97).contains(&share), "{share}");
}

#[test]
fn turns_behind_a_shared_prefix_are_sessions() {
    let data = "dataset_name = \"shared-prefix\"\nnum_groups = 2\nprompts_per_group = 2\n\
                system_prompt_len = 64\nquestion_len = 16\noutput_len = 8\nnum_turns = 3\n";
    let planned = planned(data, "request_rate = 2", &seeded(1)).unwrap();
    assert_eq!(
        (planned.plan.sessions.len(), planned.facts.requests),
        (4, 12)
    );
    let lengths = |s: &Session| -> Vec<u32> {
        s.turns
            .iter()
            .map(|turn| turn.body.planned_tokens)
            .collect()
    };
    // 64 + 16, then an answer of 8 and a question of 16 more each time.
    assert!(
        planned
            .plan
            .sessions
            .iter()
            .all(|s| lengths(s) == [80, 104, 128])
    );
}

/// Everything that a plan sends, by id.
fn contents(plan: &Plan) -> BTreeMap<RequestId, String> {
    let mut all = BTreeMap::new();
    let mut add = |id: RequestId, what: String| assert!(all.insert(id, what).is_none(), "{id}");
    for request in &plan.open {
        add(
            request.id,
            format!("{} {:?}", request.offset_ns, request.body),
        );
    }
    for part in &plan.closed {
        for (at, body) in part.bodies.iter().enumerate() {
            add(RequestId(part.first_id.0 + at as u64), format!("{body:?}"));
        }
    }
    for session in &plan.sessions {
        for turn in &session.turns {
            add(turn.id, format!("{} {turn:?}", session.offset_ns));
        }
    }
    all
}

#[test]
fn shards_are_the_whole_and_nothing_twice() {
    let random = "dataset_name = \"random\"\ninput_len = 20\n";
    for (data, load, streams) in [
        (random, "request_rate = 9\nnum_prompts = 101", 0),
        (random, "max_concurrency = 7\nnum_prompts = 50", 7),
        (CHATS, "request_rate = 3", 0),
        (
            "dataset_name = \"interference\"\nparams = { streams = 6 }",
            "",
            6,
        ),
    ] {
        let planned = planned(data, load, &seeded(2)).unwrap();
        let whole = contents(&planned.plan);
        for count in [1, 2, 3, 5] {
            let mut union = BTreeMap::new();
            let mut slots = 0;
            for index in 0..count {
                let shard = planned.shard(index, count).unwrap();
                assert_eq!(shard.horizon_ns, planned.plan.horizon_ns);
                assert!(shard.open.is_sorted_by_key(|r| (r.offset_ns, r.id)));
                slots += shard.closed.iter().map(|part| part.streams).sum::<usize>();
                assert!(shard.closed.iter().all(|part| part.streams > 0));
                for (id, what) in contents(&shard) {
                    assert!(union.insert(id, what).is_none());
                }
            }
            assert_eq!(union, whole, "{data} in {count}");
            assert_eq!(slots, streams);
        }
        for (index, count) in [(0, 0), (3, 3)] {
            assert!(planned.shard(index, count).is_err());
        }
    }
    let closed = planned(random, "max_concurrency = 2", &seeded(2)).unwrap();
    assert!(
        closed
            .shard(0, 3)
            .unwrap_err()
            .to_string()
            .contains("2 slots")
    );
}

#[test]
fn defaults_are_those_of_the_tools_that_the_names_are_from() {
    let of = |name: &str| dataset(&format!("dataset_name = \"{name}\""));
    let Dataset::Random(random) = of("random") else {
        panic!("random");
    };
    assert_eq!(
        (random.input_len, random.output_len, random.prefix_len),
        (1024, 128, 0)
    );
    assert_eq!(random.range_ratio, 0.0);
    let Dataset::SharedPrefix(gsp) = of("shared-prefix") else {
        panic!("shared-prefix");
    };
    assert_eq!((gsp.num_groups, gsp.prompts_per_group), (64, 16));
    let lengths = (gsp.system_prompt_len, gsp.question_len, gsp.output_len);
    assert_eq!(lengths, (2048, 128, 256));
    assert_eq!(
        (gsp.range_ratio, gsp.num_turns, gsp.ordered),
        (1.0, 1, false)
    );
    let Dataset::PrefixRepetition(repeated) = of("prefix-repetition") else {
        panic!("prefix-repetition");
    };
    let lengths = (
        repeated.prefix_len,
        repeated.suffix_len,
        repeated.output_len,
    );
    assert_eq!((lengths, repeated.num_prefixes), ((256, 256, 128), 10));
    let Dataset::Sharegpt(sharegpt) = of("sharegpt") else {
        panic!("sharegpt");
    };
    let limits = (
        sharegpt.min_len,
        sharegpt.max_prompt_len,
        sharegpt.max_total_len,
    );
    assert_eq!(limits, (4, 1024, 2048));
    for name in Dataset::NAMES {
        assert_eq!(of(name).name(), name);
        assert_eq!(
            Dataset::needs_path(name),
            format!("{:?}", of(name)).contains("path")
        );
    }
}

#[test]
fn lengths_follow_the_range_ratios_of_both_tools() {
    // vLLM: floor(20 * 0.7) to ceil(20 * 1.3); SGLang: floor(20 * 0.3) to 20.
    let random = "dataset_name = \"random\"\ninput_len = 20\noutput_len = 20\nrange_ratio = 0.3";
    let vllm = planned(random, "num_prompts = 3000", &seeded(1)).unwrap();
    let gsp = "dataset_name = \"shared-prefix\"\nnum_groups = 1\nprompts_per_group = 3000\n\
               system_prompt_len = 1\nquestion_len = 20\noutput_len = 20\nrange_ratio = 0.3";
    let sglang = planned(gsp, "", &seeded(1)).unwrap();
    let ends = |values: Vec<u32>| (*values.iter().min().unwrap(), *values.iter().max().unwrap());
    let inputs = |plan: &Plan| ends(bodies(plan).iter().map(|b| b.planned_tokens).collect());
    let outputs = |plan: &Plan| ends(bodies(plan).iter().map(|b| b.max_tokens).collect());
    assert_eq!(
        (inputs(&vllm.plan), outputs(&vllm.plan)),
        ((14, 26), (14, 26))
    );
    assert_eq!(
        (inputs(&sglang.plan), outputs(&sglang.plan)),
        ((7, 21), (6, 20))
    );
    for ratio in ["1.0", "-0.1", "nan"] {
        let data = random.replace("0.3", ratio);
        assert!(
            planned(&data, "num_prompts = 3", &seeded(1)).is_err(),
            "{ratio}"
        );
    }
}
