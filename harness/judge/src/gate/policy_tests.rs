//! Policies that are read, and those that are refused with a line and a fix.

use super::*;

const GOOD: &str = r#"
schema = 1
name = "nightly"
alpha = 0.01
min_blocks = 6
power = 0.9

[success]
min_rate = 1.0

[outputs]
required = true

[[limit]]
metric = "ttft_p99"
max = 500

[[limit]]
metric = "hit_rate"
min = 0.6
max = 0.9

[[change]]
metric = "itl_p99"
margin = 0.05
"#;

#[test]
fn a_policy_is_read_as_it_is_written() {
    let policy = Policy::parse(GOOD).unwrap();
    assert_eq!((policy.name.as_str(), policy.alpha), ("nightly", 0.01));
    assert_eq!((policy.min_blocks, policy.power), (6, 0.9));
    assert!(policy.outputs_required && policy.min_success_rate == 1.0);
    let limits: Vec<_> = policy
        .limits
        .iter()
        .map(|l| (l.metric.name, l.bound))
        .collect();
    let want = [
        ("ttft_p99", Bound::AtMost(500.0)),
        ("hit_rate", Bound::AtMost(0.9)),
        ("hit_rate", Bound::AtLeast(0.6)),
    ];
    assert_eq!(limits, want);
    assert_eq!(policy.changes[0].margin, 0.05);
    let short = Policy::parse("schema = 1").unwrap();
    assert_eq!(short.min_success_rate, DEFAULT_SUCCESS_RATE);
    assert_eq!((short.alpha, short.min_blocks, short.power), (0.05, 3, 0.8));
    assert!(!short.outputs_required);
}

#[test]
fn what_is_no_policy_is_refused_with_its_line() {
    // What is replaced, by what, and what the message must have.
    let cases: [(&str, &str, &[&str]); 17] = [
        ("schema = 1", "schema = 2", &["line 2", "schema = 2"]),
        ("schema = 1", "", &["schema"]),
        (
            "alpha = 0.01",
            "alpha = 0.5",
            &["line 4", "alpha = 0.5", "below 0.5"],
        ),
        ("alpha = 0.01", "alpha = nan", &["line 4", "alpha"]),
        (
            "min_blocks = 6",
            "min_blocks = 2",
            &["line 5", "min_blocks = 2", "from 3"],
        ),
        ("min_blocks = 6", "min_blocks = -1", &["min_blocks"]),
        (
            "min_rate = 1.0",
            "min_rate = 99",
            &["line 9", "success.min_rate = 99", "at most 1"],
        ),
        (
            "metric = \"ttft_p99\"",
            "metric = \"ttft\"",
            &["line 15", "\"ttft\"", "ttft_p50"],
        ),
        ("max = 500", "max = -1", &["line 16", "limit.max = -1"]),
        (
            "max = 500",
            "max = inf",
            &["line 16", "limit.max = inf", "leave the key out"],
        ),
        ("max = 500", "", &["line 15", "max =", "min ="]),
        ("max = 500", "maximum = 500", &["maximum", "max"]),
        ("min = 0.6", "min = 60", &["limit.min = 60", "from 0 to 1"]),
        (
            "margin = 0.05",
            "margin = 0",
            &["line 25", "margin = 0 of itl_p99", "0.05 for 5 %"],
        ),
        (
            "margin = 0.05",
            "margin = 5",
            &["line 25", "margin = 5 of itl_p99", "0.05 for 5 %"],
        ),
        ("margin = 0.05", "margin = \"5 %\"", &["margin"]),
        ("name = \"nightly\"", "name = ", &["line 3"]),
    ];
    for (from, to, needles) in cases {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let error = Policy::parse(&text).unwrap_err().to_string();
        for needle in needles {
            assert!(
                error.contains(needle),
                "{to}: `{needle}` is not in: {error}"
            );
        }
    }
}

#[test]
fn a_rule_stands_once() {
    for (table, needle) in [
        (
            "[[change]]\nmetric = \"itl_p99\"\nmargin = 0.1\n",
            "change of itl_p99",
        ),
        (
            "[[limit]]\nmetric = \"ttft_p99\"\nmax = 1\n",
            "limit.max of ttft_p99",
        ),
    ] {
        let error = Policy::parse(&format!("{GOOD}\n{table}")).unwrap_err();
        assert!(error.to_string().contains(needle), "{error}");
    }
}
