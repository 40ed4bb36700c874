//! Suites as they are read and worked out.

use std::path::Path;

use super::*;

const TEXT: &str = r#"schema = 2
name = "budget"
question = "Does a smaller budget shorten stalls?"
reading = "Compare itl_ms p99."
[bench]
request_rate = 2.5
num_prompts = 20
tokenizer = "t.json"
[arms.small]
base_url = "http://127.0.0.1:1"
start = ["serve", "--budget", "256"]
env = { KEY = "hunter2" }
bench = { num_prompts = 7 }
[arms.large]
bench = { base_url = "http://127.0.0.1:2", dataset_path = "/abs/d" }
"#;

fn resolved(text: &str) -> Result<Resolved> {
    Resolved::of(file::parse(text)?, Path::new("a"))
}

fn chosen(arm: &str) -> (BenchOptions, SuiteReceipt) {
    resolved(TEXT).unwrap().chosen(Some(arm)).unwrap()
}

#[test]
fn an_arm_goes_over_its_suite() {
    let (options, receipt) = chosen("small");
    assert_eq!(options.num_prompts.unwrap().value.0, 7);
    assert_eq!(options.request_rate.unwrap().value.0, 2.5);
    assert_eq!(receipt.command, ["serve", "--budget", "256"]);
    assert_eq!(
        (receipt.arm.as_deref(), &*receipt.env),
        (Some("small"), &["KEY".into()][..])
    );
    assert!(!serde_json::to_string(&receipt).unwrap().contains("hunter2"));
    let (options, _) = chosen("large");
    assert_eq!(options.num_prompts.unwrap().value.0, 20);
    assert_eq!(options.base_url.as_deref(), Some("http://127.0.0.1:2"));
}

#[test]
fn files_lie_beside_the_suite() {
    let (options, _) = chosen("large");
    assert_eq!(options.tokenizer, Some("a/t.json".into()));
    assert_eq!(options.dataset_path, Some("/abs/d".into()));
}

#[test]
fn an_arm_must_be_named_when_there_are_several() {
    let told = |name| {
        resolved(TEXT)
            .unwrap()
            .chosen(name)
            .unwrap_err()
            .to_string()
    };
    let error = told(None);
    assert!(error.contains("one of large, small"), "{error}");
    let error = told(Some("x"));
    assert!(
        error.contains("--arm") && error.contains("large small"),
        "{error}"
    );
    let one = &TEXT[..TEXT.find("[arms.large]").unwrap()];
    let receipt = resolved(one).unwrap().chosen(None).unwrap().1;
    assert_eq!(receipt.arm.as_deref(), Some("small"));
    let none = &TEXT[..TEXT.find("[arms.small]").unwrap()];
    assert_eq!(resolved(none).unwrap().chosen(None).unwrap().1.arm, None);
}

/// What is replaced by what, and what the message must say.
type Mistake = (&'static str, &'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    (
        "schema = 2",
        "schema = 1",
        &["line 1", "schema = 1", "[arms.NAME]"],
    ),
    (
        "2.5",
        "0",
        &["line 6", "request_rate = 0", "above 0, or inf"],
    ),
    (
        "num_prompts = 20",
        "num_prompt = 2",
        &["line 7", "num_prompt", "num_prompts"],
    ),
    ("[arms.large]", "[arms.small]", &["line 14", "small"]),
    (
        "num_prompts = 7",
        "base_url = \"http://h:1\"",
        &["arms.small", "twice"],
    ),
    ("question", "problem", &["problem", "question"]),
    (
        "[arms.large]",
        "[run]\nblocks = 2\n[[hypothesis]]\nname = \"h\"\nmetric = \"ttft_ms.p50\"\n\
         baseline = \"small\"\ncandidate = \"large\"\n[arms.large]",
        &["run.blocks = 2", "at least 3 blocks"],
    ),
    (
        "num_prompts = 7",
        "cache = \"hot\"",
        &["line 13", "hot", "cold"],
    ),
    ("num_prompts = 7", "seed = 7", &["seed", "run.seeds"]),
    ("[arms.large]", "[arms.\"a/b\"]", &["arms.a/b", "letters"]),
    (
        "[bench]",
        "[run]\nblocks = 0\n[bench]",
        &["run.blocks = 0", "1 to 1000"],
    ),
    (
        "[bench]",
        "[run]\nseeds = [1]\n[bench]",
        &["run.seeds", "6 blocks"],
    ),
    (
        "[bench]",
        "[run]\nalpha = 0.5\n[bench]",
        &["run.alpha = 0.5"],
    ),
    (
        "[bench]",
        "[run]\nstop = \"sequential\"\nblocks = 3\n[bench]",
        &["run.blocks = 3", "at least four blocks"],
    ),
    (
        "base_url = \"http://127.0.0.1:1\"\n",
        "",
        &["arms.small.start", "{port}"],
    ),
    (
        "[arms.large]",
        "[arms.large]\nready = { path = \"x\" }",
        &["ready.path", "/"],
    ),
    (
        "[arms.large]",
        "[arms.large]\nstop = { signal = \"X\" }",
        &["stop.signal", "TERM"],
    ),
    (
        "num_prompts = 7",
        "num_prompts = -1",
        &["line 13: ", "num_prompts = -1", "must be a whole number"],
    ),
    ("[bench]", "[bench", &["line 5: [bench: "]),
    (
        "[arms.large]",
        "[arms.large]\nengine = {}",
        &["arms.large", "base_url"],
    ),
];

#[test]
fn a_mistake_is_told_with_its_key_value_and_what_to_write() {
    for (from, to, parts) in MISTAKES {
        let text = TEXT.replacen(from, to, 1);
        let error = format!("{:#}", resolved(&text).unwrap_err());
        for part in *parts {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}

#[test]
fn a_mistake_in_a_header_does_not_show_its_value() {
    for header in ["header = [\"hunter2\"]", "header = [\n  \"hunter2\",\n]"] {
        let text = TEXT.replacen("num_prompts = 7", header, 1);
        let error = format!("{:#}", resolved(&text).unwrap_err());
        assert!(!error.contains("hunter2"), "{error}");
        assert!(
            error.contains("NAME=VALUE") && error.contains("header"),
            "{error}"
        );
    }
}

const FACTORS: &str = r#"schema = 2
name = "factors"
question = "q"
reading = "r"
[engine]
model = "synthetic-tiny"
threads = 1
[bench]
num_prompts = 4
[factors.budget]
key = "engine.max_batched_tokens"
values = [32, 512]
[factors.cache.levels.off]
engine = { prefix_cache = "none" }
[factors.cache.levels.on]
engine = { prefix_cache = "hash-chain" }
bench = { cache = "warm" }
[factors.rate]
key = "bench.request_rate"
values = [2, 0.5]
[[hypothesis]]
name = "smaller is smoother"
metric = "itl_ms.p99"
baseline = "budget=512"
candidate = "budget=32"
expect = "lower"
[[hypothesis]]
name = "the cache saves"
metric = "ttft_ms.p50"
baseline = "cache=off,budget=32"
candidate = "cache=on,budget=32"
when = "rate=0.5"
margin = 0.1
"#;

#[test]
fn factors_become_arms_and_conditions() {
    let suite = resolved(FACTORS).unwrap();
    let names: Vec<&str> = suite.arms.iter().map(|arm| arm.name.as_str()).collect();
    let expected = [
        "budget=32,cache=off",
        "budget=32,cache=on",
        "budget=512,cache=off",
        "budget=512,cache=on",
    ];
    assert_eq!(names, expected);
    let names: Vec<&str> = suite.conditions.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["rate=2", "rate=0.5"]);
    let Way::Engine(flags) = &suite.arms[1].way else {
        panic!("{:?}", suite.arms[1].way)
    };
    for flag in [
        "--max-batched-tokens=32",
        "--prefix-cache=hash-chain",
        "--threads=1",
    ] {
        assert!(flags.contains(&flag.to_owned()), "{flags:?}");
    }
    let options = suite.options(&suite.arms[1], &suite.conditions[1]);
    assert_eq!(options.cache, Some(crate::args::CacheArg::Warm));
    assert_eq!(options.request_rate.unwrap().value.0, 0.5);
    let (_, receipt) = suite.chosen(Some("cache=on,budget=32,rate=2")).unwrap();
    assert_eq!(receipt.condition.as_deref(), Some("rate=2"));
}

#[test]
fn a_topology_starts_engines_behind_the_router() {
    let text = |topology: &str, more: &str| {
        format!(
            "schema = 2\nname = \"n\"\nquestion = \"q\"\nreading = \"r\"\n\
             [engine]\nmodel = \"synthetic\"\n[arms.one]\n[arms.split]\n\
             topology = \"{topology}\"\n{more}"
        )
    };
    let suite = resolved(&text("1P1D", "")).unwrap();
    let Way::Command(words, None) = &suite.arms[1].way else {
        panic!("{:?}", suite.arms[1].way)
    };
    let expected = "{program} router --host 127.0.0.1 --port {port} --topology 1P1D -- \
                    --model=synthetic";
    assert_eq!(words.join(" "), expected);
    assert!(matches!(suite.arms[0].way, Way::Engine(_)));
    // How KV moves needs a role, which an engine behind a router gets from there.
    let layers = "engine = { kv_granularity = \"layer\" }";
    let suite = resolved(&text("1P1D", layers)).unwrap();
    let Way::Command(words, None) = &suite.arms[1].way else {
        panic!("{:?}", suite.arms[1].way)
    };
    assert!(
        words.contains(&"--kv-granularity=layer".to_owned()),
        "{words:?}"
    );
    let alone = text("1P1D", layers).replace("topology = \"1P1D\"", "");
    let error = format!("{:#}", resolved(&alone).unwrap_err());
    assert!(error.contains("--role"), "{error}");
    for (text, part) in [
        (text("1P", ""), "topology = \"1P\""),
        (text("1P1D", "start = [\"x\", \"{port}\"]"), "leave one"),
    ] {
        let error = format!("{:#}", resolved(&text).unwrap_err());
        assert!(
            error.contains("arms.split") && error.contains(part),
            "{error}"
        );
    }
}

#[test]
fn a_hypothesis_is_about_arms_that_are_alike_in_all_else() {
    let suite = resolved(FACTORS).unwrap();
    let told: Vec<String> = suite
        .comparisons
        .iter()
        .map(|one| {
            let arm = |i: usize| suite.arms[i].name.as_str();
            let condition = &suite.conditions[one.condition].name;
            format!(
                "{} | {} | {condition}",
                arm(one.baseline),
                arm(one.candidate)
            )
        })
        .collect();
    let expected = [
        "budget=512,cache=off | budget=32,cache=off | rate=2",
        "budget=512,cache=off | budget=32,cache=off | rate=0.5",
        "budget=512,cache=on | budget=32,cache=on | rate=2",
        "budget=512,cache=on | budget=32,cache=on | rate=0.5",
        "budget=32,cache=off | budget=32,cache=on | rate=0.5",
    ];
    assert_eq!(told, expected);
    assert_eq!(
        (
            suite.comparisons[0].question.margin,
            suite.comparisons[4].question.margin
        ),
        (0.03, 0.1)
    );
    let star = FACTORS.replace("candidate = \"budget=32\"", "candidate = \"*\"");
    assert_eq!(resolved(&star).unwrap().comparisons.len(), 5);
}

const NO_SENSE: &[Mistake] = &[
    (
        "values = [32, 512]",
        "values = [32, 32]",
        &["factors.budget", "twice"],
    ),
    (
        "values = [32, 512]",
        "values = []",
        &["factors.budget", "values"],
    ),
    (
        "values = [32, 512]",
        "values = [\"a b\"]",
        &["factors.budget", "letters"],
    ),
    (
        "values = [2, 0.5]",
        "values = [-2]",
        &["factors.rate", "above 0"],
    ),
    (
        "key = \"bench.request_rate\"",
        "key = \"rate\"",
        &["key = \"rate\"", "bench.KEY"],
    ),
    (
        "key = \"engine.max",
        "key = \"engine.min",
        &["engine.min_batched_tokens"],
    ),
    (
        "values = [2, 0.5]",
        "values = [2]\nof = \"arm\"",
        &["when", "rate=0.5"],
    ),
    (
        "[factors.rate]",
        "[factors.rate]\nlevels = { x = {} }",
        &["factors.rate", "not both"],
    ),
    (
        "[factors.budget]",
        "[factors.budget]\nof = \"condition\"",
        &["factors.budget", "arm"],
    ),
    (
        "\"itl_ms.p99\"",
        "\"itl.p99\"",
        &["hypothesis 1: metric", "itl_ms"],
    ),
    (
        "\"budget=512\"",
        "\"budget=64\"",
        &["hypothesis 1: baseline", "budget=512"],
    ),
    (
        "candidate = \"budget=32\"",
        "candidate = \"budget=512\"",
        &["hypothesis 1", "alike"],
    ),
    ("margin = 0.1", "margin = -1", &["hypothesis 2: margin"]),
    (
        "margin = 0.1",
        "margin = 3",
        &["hypothesis 2: margin = 3", "0.03 for 3 %"],
    ),
    ("margin = 0.1", "expect = \"more\"", &["more", "lower"]),
];

#[test]
fn factors_and_hypotheses_that_make_no_sense_are_refused() {
    for (from, to, parts) in NO_SENSE {
        let text = FACTORS.replacen(from, to, 1);
        let error = format!("{:#}", resolved(&text).unwrap_err());
        for part in *parts {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}
