//! The rows of the list of known faults that a plan must not repeat, by their numbers.

mod support;

use std::collections::BTreeSet;

use pb_contract::plan::PlannedPrompt;
use pb_workloads::{
    CacheStart, DatasetError, Form, HitKnowledge, PlanOptions, Source, TokenSource,
    longest_common_prefix, plan,
};
use proptest::prelude::*;
use support::*;

const RANDOM: &str = "dataset_name = \"random\"\ninput_len = 200\noutput_len = 8\n";

#[test]
fn row_45_one_seed_gives_one_plan_and_another_seed_another() {
    for (data, load) in [
        (RANDOM, "request_rate = 20\nnum_prompts = 50"),
        (
            "dataset_name = \"shared-prefix\"\nnum_groups = 4",
            "max_concurrency = 3",
        ),
        ("dataset_name = \"agent\"\nsessions = 3", "request_rate = 1"),
        ("dataset_name = \"interference\"", ""),
        (
            "dataset_name = \"synthetic\"\ninput = \"lognormal:90,0.7\"",
            "request_rate = 9\nburstiness = 0.3\nnum_prompts = 40",
        ),
    ] {
        let of = |seed| planned(data, load, &seeded(seed)).unwrap().plan;
        assert_eq!(of(1), of(1), "{data}");
        assert_ne!(of(1), of(2), "{data}");
    }
}

#[test]
fn row_45_where_a_file_lies_does_not_matter() {
    let text = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 270, "input_length": 700, "output_length": 5, "hash_ids": [0, 2]}
"#;
    let of = || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        let data = format!("dataset_name = \"trace\"\npath = {path:?}\nformat = \"mooncake\"");
        planned(&data, "", &seeded(1)).unwrap().plan
    };
    assert_eq!(of(), of());
}

#[test]
fn row_54_another_nonce_changes_the_content_and_nothing_else() {
    let load = "request_rate = 20\nnum_prompts = 60";
    let data = "dataset_name = \"random\"\ninput_len = 100\nrange_ratio = 0.5\n";
    let of = |nonce| {
        let options = PlanOptions { nonce, ..seeded(5) };
        planned(data, load, &options).unwrap().plan
    };
    let (first, second) = (of(1), of(2));
    for (a, b) in first.open.iter().zip(&second.open) {
        assert_eq!(a.offset_ns, b.offset_ns);
        assert_eq!(prompt(&a.body).len(), prompt(&b.body).len());
        assert_eq!(a.body.max_tokens, b.body.max_tokens);
    }
    // The second run against a server that the first one left warm finds nothing.
    let both: Vec<_> = first.open.iter().chain(&second.open).collect();
    let prompts: Vec<_> = both.iter().map(|request| prompt(&request.body)).collect();
    let found = hits_by_pairs(&prompts, 16);
    assert_eq!(found.iter().sum::<usize>(), 0);
}

#[test]
fn row_55_the_order_of_a_sweeps_cells_does_not_change_their_hits() {
    // One seed, prompts of other lengths: a short cell's prompts must not start a long one's.
    let cells = [
        (RANDOM.to_owned(), "request_rate = 5\nnum_prompts = 40"),
        (
            RANDOM.replace("200", "400"),
            "request_rate = 5\nnum_prompts = 40",
        ),
        (RANDOM.to_owned(), "request_rate = 10\nnum_prompts = 40"),
    ];
    let plan_of = |at: usize| {
        let (data, load) = &cells[at];
        planned(data, load, &seeded(3)).unwrap().plan
    };
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let plans: Vec<_> = order.map(plan_of).into_iter().collect();
        let bodies: Vec<_> = plans.iter().flat_map(bodies).collect();
        let prompts: Vec<_> = bodies.iter().map(|body| prompt(body)).collect();
        for (body, found) in bodies.iter().zip(hits_by_pairs(&prompts, 16)) {
            assert_eq!((body.planned_hit_tokens, found), (Some(0), 0));
        }
    }
}

#[test]
fn row_56_a_thousand_random_prompts_share_less_than_a_block() {
    for source in [
        ids(),
        Source::ids(100..164),
        Source {
            tokens: TokenSource::Text((0..9_000u32).map(|i| (i * 7 + i * i) % 401).collect()),
            tokenizer: None,
        },
    ] {
        let planned = plan(&dataset(RANDOM), &shape(""), &source, &seeded(1)).unwrap();
        let prompts: Vec<_> = bodies(&planned.plan).into_iter().map(prompt).collect();
        assert_eq!(prompts.len(), 1_000);
        assert!(longest_common_prefix(&prompts) < 16);
        assert_eq!(planned.facts.unique_prompts, 1_000);
        assert_eq!(planned.facts.hits, HitKnowledge::Exact);
    }
}

#[test]
fn row_56_a_thousand_prompts_of_words_share_less_than_a_block() {
    let options = PlanOptions {
        form: Form::Text,
        ..seeded(1)
    };
    let source = Source::words();
    let planned = plan(&dataset(RANDOM), &shape(""), &source, &options).unwrap();
    let mut starts = BTreeSet::new();
    for body in bodies(&planned.plan) {
        let PlannedPrompt::Text(text) = &body.prompt else {
            panic!("a text");
        };
        assert_eq!(text.split_whitespace().count(), 200);
        // A token has at least one character: 16 that differ make a block that differs.
        assert!(starts.insert(text.trim_start()[..16].to_owned()));
        assert_eq!(body.planned_hit_tokens, Some(0));
    }
    assert!(!planned.facts.tokens_exact);
}

#[test]
fn row_58_more_requests_than_prompts_need_leave() {
    let data = "dataset_name = \"shared-prefix\"\nnum_groups = 2\nprompts_per_group = 3\n\
                system_prompt_len = 32\nquestion_len = 20\n";
    let load = "request_rate = 10\nnum_prompts = 10";
    let error = planned(data, load, &seeded(1)).unwrap_err();
    assert!(
        matches!(
            error,
            DatasetError::Exhausted {
                asked: 10,
                unique: 6,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("--allow-repeat"));
    let allowed = PlanOptions {
        allow_repeat: true,
        ..seeded(1)
    };
    let repeated = planned(data, load, &allowed).unwrap();
    assert_eq!(
        (repeated.facts.requests, repeated.facts.unique_prompts),
        (10, 6)
    );
    // The four that come again find all but their last block.
    let again = &repeated.plan.open[6..];
    assert!(again.iter().all(|r| r.body.planned_hit_tokens == Some(48)));
    let load = "max_concurrency = 2\nnum_prompts = 7";
    assert!(planned(data, load, &seeded(1)).is_err());
    assert!(planned(data, "max_concurrency = 2\nnum_prompts = 6", &seeded(1)).is_ok());
}

#[test]
fn row_59_warm_up_and_probe_prompts_are_no_prompts_of_the_run() {
    let shared = "dataset_name = \"shared-prefix\"\nnum_groups = 8\nprompts_per_group = 8\n";
    for (data, source, form) in [
        (RANDOM, ids(), Form::Ids),
        // So small a vocabulary that starts of 16 tokens do meet.
        (RANDOM, Source::ids(100..132), Form::Ids),
        (shared, ids(), Form::Ids),
        (shared, Source::words(), Form::Text),
        (RANDOM, Source::words(), Form::Chat),
    ] {
        let options = PlanOptions {
            form,
            cache: CacheStart::Primed,
            ..seeded(4)
        };
        let planned = plan(&dataset(data), &shape(""), &source, &options).unwrap();
        let start = |prompt: &PlannedPrompt| match prompt {
            PlannedPrompt::Ids(ids) => format!("{:?}", &ids[..16]),
            PlannedPrompt::Text(text) => text.trim_start()[..16].to_owned(),
            PlannedPrompt::Chat(turns) => turns[0].content.trim_start()[..16].to_owned(),
        };
        let mut starts: BTreeSet<String> = bodies(&planned.plan)
            .into_iter()
            .chain(&planned.prime)
            .map(|body| start(&body.prompt))
            .collect();
        for purpose in ["warmup", "probe"] {
            let spare = planned.spare(purpose, 50, 40).unwrap();
            assert_eq!(spare.len(), 50);
            assert_eq!(spare, planned.spare(purpose, 50, 40).unwrap());
            for body in &spare {
                assert!(
                    starts.insert(start(&body.prompt)),
                    "{purpose}: {:?}",
                    body.prompt
                );
                assert_eq!(body.planned_tokens, 40);
            }
        }
        assert!(planned.spare("short", 1, 1).is_err());
    }
}

#[test]
fn row_67_the_last_token_of_a_prompt_is_never_found() {
    // The same prompt twice: of k whole blocks it finds k - 1, of k blocks and a token k.
    for (tokens, found) in [(64, 48), (65, 64), (63, 48), (16, 0), (17, 16), (1, 0)] {
        let data = format!(
            "dataset_name = \"shared-prefix\"\nnum_groups = 1\nprompts_per_group = 1\n\
             system_prompt_len = {}\nquestion_len = 1\n",
            tokens.max(2) - 1
        );
        let allowed = PlanOptions {
            allow_repeat: true,
            ..seeded(1)
        };
        let load = "num_prompts = 2\nrequest_rate = 1";
        let planned = planned(&data, load, &allowed).unwrap();
        let hits: Vec<_> = planned
            .plan
            .open
            .iter()
            .map(|r| r.body.planned_hit_tokens)
            .collect();
        assert_eq!(hits, [Some(0), Some(found)], "{tokens}");
    }
}

#[test]
fn row_70_tokenizers_of_one_class_are_told_apart_by_their_contents() {
    let other = WordTokenizer {
        identity: "other words",
        shift: 7,
    };
    let options = PlanOptions {
        form: Form::Text,
        ..seeded(1)
    };
    let data = dataset(RANDOM);
    let load = shape("num_prompts = 5");
    let of = |tokenizer: &WordTokenizer| {
        let source = Source::words().with_tokenizer(tokenizer);
        plan(&data, &load, &source, &options).unwrap()
    };
    // Nothing is kept from one plan to the next, so nothing can be taken for another's.
    assert_eq!(of(&WORDS).facts.tokenizer.as_deref(), Some("words"));
    assert_eq!(of(&other).facts.tokenizer.as_deref(), Some("other words"));
    assert_eq!(of(&WORDS).facts.tokenizer.as_deref(), Some("words"));
}

#[test]
fn row_76_prompts_have_the_planned_length_once_the_target_has_added_its_own() {
    let data = dataset("dataset_name = \"random\"\ninput_len = 1024\nrange_ratio = 0.25");
    let load = shape("num_prompts = 30");
    let options = |form, adapt_input, template_tokens| PlanOptions {
        form,
        adapt_input,
        template_tokens,
        ..seeded(1)
    };
    let exact = Source::words().with_tokenizer(&WORDS);
    let of =
        |options: &PlanOptions, source: &Source<'_>| plan(&data, &load, source, options).unwrap();
    let asked: Vec<u32> = {
        let ids = of(&options(Form::Ids, false, 0), &ids());
        ids.plan
            .open
            .iter()
            .map(|r| r.body.planned_tokens)
            .collect()
    };
    // Of a text one token is the target's own, of a chat of one message five.
    for (form, own) in [(Form::Text, 1), (Form::Chat, 5)] {
        let plain = of(&options(form, false, 0), &exact);
        let adapted = of(&options(form, true, 0), &exact);
        assert_eq!((plain.facts.off_length, adapted.facts.off_length), (30, 0));
        for ((plain, adapted), asked) in plain.plan.open.iter().zip(&adapted.plan.open).zip(&asked)
        {
            assert_eq!(plain.body.planned_tokens, asked + own);
            assert_eq!(adapted.body.planned_tokens, *asked);
            let encoded = match &adapted.body.prompt {
                PlannedPrompt::Text(text) => pb_workloads::Tokenizer::encode(&WORDS, text),
                PlannedPrompt::Chat(turns) => {
                    pb_workloads::Tokenizer::encode_chat(&WORDS, turns).unwrap()
                }
                PlannedPrompt::Ids(_) => panic!("a text"),
            };
            assert_eq!(encoded.len(), *asked as usize);
        }
    }
    // Without a tokenizer the overhead is what a probe has measured.
    let measured = of(&options(Form::Chat, true, 22), &Source::words());
    for (request, asked) in measured.plan.open.iter().zip(&asked) {
        let PlannedPrompt::Chat(turns) = &request.body.prompt else {
            panic!("a chat");
        };
        assert_eq!(turns[0].content.split(' ').count() as u32, asked - 22);
        assert_eq!(request.body.planned_tokens, *asked);
    }
}

fn tiny_prompts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    // Two kinds of tokens, so that prompts do share.
    let prompt = proptest::collection::vec(0u32..2, 0..24);
    proptest::collection::vec(prompt, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn row_67_ideal_hits_are_those_of_all_pairs(prompts in tiny_prompts(), block in 1usize..6) {
        let views: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(pb_workloads::ideal_hits(&views, block), hits_by_pairs(&views, block));
    }

    #[test]
    fn planned_hits_are_those_of_all_pairs(
        seed in 0u64..1_000,
        block in 1usize..40,
        groups in 1usize..5,
        per_group in 1usize..6,
        system in 1u32..90,
        question in 1u32..40,
        closed in any::<bool>(),
    ) {
        let data = format!(
            "dataset_name = \"shared-prefix\"\nnum_groups = {groups}\n\
             prompts_per_group = {per_group}\nsystem_prompt_len = {system}\n\
             question_len = {question}\nrange_ratio = 0.3\n"
        );
        let load = if closed { "max_concurrency = 2" } else { "request_rate = 3" };
        let options = PlanOptions { block_size: block, ..seeded(seed) };
        // Few token ids, so that questions agree by chance too.
        let source = Source::ids(0..32);
        let planned = plan(&dataset(&data), &shape(load), &source, &options).unwrap();
        let all = bodies(&planned.plan);
        let prompts: Vec<_> = all.iter().map(|body| prompt(body)).collect();
        let found: Vec<usize> =
            all.iter().map(|b| b.planned_hit_tokens.unwrap() as usize).collect();
        prop_assert_eq!(&found, &hits_by_pairs(&prompts, block));
        prop_assert_eq!(planned.facts.planned_hit_tokens, found.iter().sum::<usize>() as u64);
    }
}
