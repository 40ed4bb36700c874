//! Reports of synthetic runs: the numbers, the escaping, and what is shown when there is nothing.

mod support;

use pb_contract::manifest::RunState;
use pb_judge::numerics::{BitDifference, CheckName};
use pb_judge::run::{NumericsNote, Outcome, RunNotes, RunVerdict, judge};
use pb_record::RunData;
use support::{Setting, empty, notes, run};

fn judged(setting: &Setting) -> (RunData, RunVerdict) {
    let data = run(setting);
    let verdict = judge(&data, &notes(setting));
    (data, verdict)
}

/// What no page may hold: a reference to anything outside itself, or a script.
fn assert_self_contained(page: &str) {
    let lower = page.to_lowercase();
    for banned in [
        "http://", "https://", "src=", "href=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!lower.contains(banned), "the page holds {banned}");
    }
}

#[test]
fn a_whole_run_reads_from_the_verdict_down() {
    let setting = Setting::default();
    let (data, verdict) = judged(&setting);
    assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.sentence);
    let page = pb_report::html(&data, &verdict).unwrap();
    assert_self_contained(&page);
    let order = [
        "The run is valid.",
        ">Was the run valid?</h2>",
        ">Are the outputs right?</h2>",
        ">chunked against monolithic</h2>",
        ">Latency of each arm</h2>",
        ">Engine steps</h2>",
        ">KV blocks and cache hits</h2>",
        ">Prefix cache: cold against warm</h2>",
        ">Requests and tokens</h2>",
    ];
    let place = |text: &str| {
        page.find(text)
            .unwrap_or_else(|| panic!("the page lacks {text}"))
    };
    let places: Vec<usize> = order.into_iter().map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
    // Eight pictures, each with a title and a description of its own.
    for part in ["<svg ", "<title id=", "<desc id=", "<figcaption>"] {
        assert_eq!(page.matches(part).count(), 8, "{part}");
    }
    assert_eq!(
        page.matches("<table>").count(),
        page.matches("<figcaption class=\"caption\">").count()
    );
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-report.html");
    std::fs::write(file, page).unwrap();
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-report.txt");
    std::fs::write(file, pb_report::terminal(&verdict, 100, false)).unwrap();
}

#[test]
fn tables_show_the_numbers_of_the_verdict() {
    let (_, verdict) = judged(&Setting::default());
    let text = pb_report::terminal(&verdict, 100, false);
    // By construction: 6 blocks of 12 prompts; 4 streams of 699 gaps in each block; five cached
    // prompts of 1120 tokens.
    let row = |start: &str, arm: &str| {
        let found = text
            .lines()
            .find(|l| l.trim_start().starts_with(start) && l.contains(arm));
        found
            .unwrap_or_else(|| panic!("no row {start} {arm} in\n{text}"))
            .to_owned()
    };
    assert_eq!(
        row("TTFT (long_prompt)", "monolithic")
            .split_whitespace()
            .nth(3),
        Some("72")
    );
    assert_eq!(
        row("ITL (background)", "chunked").split_whitespace().nth(3),
        Some("16776")
    );
    assert!(text.contains("5600/5600"), "{text}");
    let proven = "cold and warm proven in prefix-cache";
    assert!(
        row(proven, "held").contains("1 of 1 blocks proven"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    assert!(pb_report::terminal(&verdict, 100, true).contains('\u{1b}'));
    let markdown = pb_report::markdown(&verdict);
    assert!(
        markdown.starts_with("# quickstart: chunked with monolithic prefill\n"),
        "{markdown}"
    );
    assert!(
        markdown.contains("| 72 |") && markdown.contains("5600/5600"),
        "{markdown}"
    );
}

#[test]
fn narrow_terminals_are_respected() {
    let (_, verdict) = judged(&Setting {
        blocks: 3,
        ..Setting::default()
    });
    for width in [60, 80, 120] {
        let text = pb_report::terminal(&verdict, width, false);
        let longest = text
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        assert!(
            longest <= usize::from(width),
            "{longest} columns for {width}\n{text}"
        );
    }
}

#[test]
fn hostile_names_stay_text() {
    let setting = Setting {
        arms: ["<script>alert(1)</script>", "\"><img src=x onerror=y>"],
        blocks: 1,
        ..Setting::default()
    };
    let data = run(&setting);
    let mut given = notes(&setting);
    given
        .remarks
        .push("</style><script>2</script> {{ kind }} \u{1b}[2J".to_owned());
    let verdict = judge(&data, &given);
    let page = pb_report::html(&data, &verdict).unwrap().to_lowercase();
    assert!(
        !page.contains("<script") && !page.contains("<img"),
        "markup came through"
    );
    assert!(
        page.contains("&lt;script&gt;alert(1)"),
        "the name is shown as text"
    );
    let markdown = pb_report::markdown(&verdict);
    assert!(
        !markdown.contains("<script") && !markdown.contains("<img"),
        "{markdown}"
    );
    assert!(!pb_report::terminal(&verdict, 100, false).contains('\u{1b}'));
}

#[test]
fn controls_and_overrides_are_escaped_everywhere() {
    let arms = [
        "a\u{1b}]0;owned\u{7}\u{202e}b",
        "c\u{2066}\u{9b}31md\u{202a}",
    ];
    let setting = Setting {
        arms,
        blocks: 3,
        ..Setting::default()
    };
    let mut data = run(&setting);
    data.manifest.kind = "kind\u{1b}[2J\u{2069}".to_owned();
    data.manifest.model.name = "model\u{202c}".to_owned();
    let mut given = notes(&setting);
    given.remarks.push("remark\u{202d}\u{1b}[8m".to_owned());
    let comparison = given.comparison.as_mut().unwrap();
    comparison.subject = "subject\u{2067}\u{0}".to_owned();
    for complete in [true, false] {
        if !complete {
            data.manifest.order.clear();
        }
        let verdict = judge(&data, &given);
        let texts = [
            pb_report::terminal(&verdict, 100, false),
            pb_report::terminal(&verdict, 40, false),
            pb_report::markdown(&verdict),
            pb_report::html(&data, &verdict).unwrap(),
        ];
        for text in &texts {
            let bad = |c: &char| {
                let bidi = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
                bidi || (c.is_control() && *c != '\n')
            };
            assert_eq!(text.chars().find(bad), None, "{text}");
        }
        for text in &texts[2..] {
            assert!(
                text.contains("u{202e}") && text.contains("u{2067}"),
                "{text}"
            );
        }
    }
}

#[test]
fn an_interrupted_run_is_rendered_and_marked() {
    let setting = Setting {
        state: RunState::Running,
        blocks: 1,
        ..Setting::default()
    };
    let (data, verdict) = judged(&setting);
    assert_eq!(verdict.outcome, Outcome::Void);
    let page = pb_report::html(&data, &verdict).unwrap();
    assert_self_contained(&page);
    for text in [
        "class=\"verdict void\"",
        "run complete",
        "incomplete",
        "support no claim",
    ] {
        assert!(page.contains(text), "the page lacks {text}");
    }
    let text = pb_report::terminal(&verdict, 100, false);
    assert!(text.contains("VOID. ") && text.contains("BROKEN"), "{text}");
    // What had finished is still counted.
    assert!(text.contains("TTFT (long_prompt)"), "{text}");
}

#[test]
fn an_empty_run_is_rendered_without_numbers() {
    let setting = Setting {
        state: RunState::Interrupted,
        ..Setting::default()
    };
    let data = empty(&setting);
    for given in [notes(&setting), RunNotes::default()] {
        let verdict = judge(&data, &given);
        let page = pb_report::html(&data, &verdict).unwrap();
        assert_self_contained(&page);
        for text in ["no samples", "no step rows", "no gaps"] {
            assert!(page.contains(text), "the page lacks {text}");
        }
        assert!(
            !page.contains("NaN") && !page.contains("inf"),
            "a number without a value"
        );
        let text = pb_report::terminal(&verdict, 100, false);
        assert!(text.contains('–') && !text.contains("NaN"), "{text}");
        assert!(pb_report::markdown(&verdict).contains("VOID"));
    }
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let setting = Setting {
        blocks: 3,
        ..Setting::default()
    };
    let pages: Vec<String> = (0..2)
        .map(|_| {
            let (data, verdict) = judged(&setting);
            pb_report::html(&data, &verdict).unwrap() + &pb_report::markdown(&verdict)
        })
        .collect();
    assert_eq!(pages[0], pages[1]);
}

/// A run whose logits were also compared bit by bit: nine variants are equal, one is not.
fn with_bits() -> (RunData, RunVerdict) {
    let setting = Setting::default();
    let data = run(&setting);
    let mut given = notes(&setting);
    for number in 0..10 {
        let mut bits = BitDifference::new();
        for row in 0..600 {
            let got = if number == 9 && row > 500 { 1.5 } else { 1.0 };
            bits.push_row("p", row, &[1.0_f32], &[got]).unwrap();
        }
        given.numerics.push(NumericsNote {
            label: format!("exact: chunk {number}"),
            bits: Some(bits),
            config: None,
        });
    }
    let verdict = judge(&data, &given);
    (data, verdict)
}

#[test]
fn equal_variants_are_one_row_in_the_terminal_and_all_in_files() {
    let (data, verdict) = with_bits();
    let text = pb_report::terminal(&verdict, 100, false);
    // Nine variants of 600 rows.
    assert!(text.contains("exact: 9 variants"), "{text}");
    assert!(text.contains("all bits equal, 5,400 rows"), "{text}");
    assert!(!text.contains("exact: chunk 8"), "{text}");
    // The one that differs (rows 501 to 599) has its own row and the headline.
    let failing = text
        .lines()
        .find(|l| l.trim_start().starts_with("exact: chunk 9  "));
    assert!(failing.unwrap().contains("99 of 600 rows differ"), "{text}");
    assert!(text.contains("OUTPUTS WRONG. "), "{text}");
    let reason = "99 of 600 values differ, first at prompt p position 501: 1.5000 against 1.0000";
    assert!(verdict.sentence.contains(reason), "{}", verdict.sentence);
    let files = [
        pb_report::markdown(&verdict),
        pb_report::html(&data, &verdict).unwrap(),
    ];
    for file in files {
        for number in 0..10 {
            assert!(file.contains(&format!("exact: chunk {number}")), "{number}");
        }
        assert!(!file.contains("9 variants"));
    }
}

#[test]
fn the_headline_never_says_pass() {
    let (data, verdict) = judged(&Setting::default());
    let page = pb_report::html(&data, &verdict).unwrap();
    let texts = [
        pb_report::terminal(&verdict, 100, false),
        pb_report::markdown(&verdict),
        page.clone(),
    ];
    // By construction: chunks shorten the longest gap and the p99, but ten stalls of 59 ms (a
    // stall is five median gaps of 10 ms) take longer than one of 490 ms, and so does TTFT.
    for text in &texts {
        assert!(text.contains("VALID: 2 better, 2 worse"), "{text}");
        assert!(!text.contains("PASS"), "{text}");
    }
    assert!(
        page.contains("class=\"verdict plain\""),
        "neither good nor bad news alone"
    );
}

#[test]
fn blocks_stand_side_by_side() {
    let (_, verdict) = judged(&Setting::default());
    let metric = &verdict.performance.metrics[0];
    assert_eq!(metric.blocks.len(), 6);
    let text = pb_report::markdown(&verdict);
    let table = text.split("Primary metrics by block").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    let blocks: Vec<String> = (0..6).map(|n| format!("block {n}")).collect();
    assert_eq!(rows[0], format!("| metric | {} |", blocks.join(" | ")));
    let first: Vec<&str> = rows[2].split(" | ").collect();
    assert_eq!((first[0], first.len()), ("| ITL p99 (background)", 7));
    let (baseline, _) = first[1].split_once("\u{a0}→\u{a0}").unwrap();
    // A whole prompt of 1200 tokens takes 480 ms and a step from 9 to 11 ms.
    let ms: f64 = baseline.parse().unwrap();
    assert!((489.0..=492.0).contains(&ms), "{ms}");
}

#[test]
fn planted_faults_show_their_worst_finite_share() {
    let setting = Setting::default();
    let data = run(&setting);
    let mut given = notes(&setting);
    given.planted_faults[0].label = "fast: RoPE +1 from chunk 2, chunk 16".to_owned();
    let config = given.planted_faults[0].config.as_mut().unwrap();
    for check in &mut config.checks {
        match check.name {
            CheckName::MaxZ => {
                (check.value, check.share) = (Some(615_321.5), Some(30_766.075));
            }
            // A count with the limit 0: its share says nothing of the size.
            CheckName::DecidableFlips => {
                (check.value, check.share) = (Some(21.0), Some(f64::INFINITY));
                check.outcome = pb_judge::numerics::Outcome::Fail;
            }
            _ => {}
        }
    }
    let verdict = judge(&data, &given);
    let page = pb_report::html(&data, &verdict).unwrap();
    assert!(!page.contains('∞'), "an infinite share is shown");
    assert!(
        page.contains(">3,080,000 %</text>"),
        "the bar has its share"
    );
    // The label is whole.
    assert!(page.contains(">fast: RoPE +1 from chunk 2, chunk 16</text>"));
    // The evidence is in the words of the rules, whatever the runner wrote; brief in a terminal.
    assert!(
        page.contains("worst row&#39;s error (z) is 615,000 (at"),
        "plain numbers"
    );
    assert!(page.contains("top-1 flips, decidable rows: 21 ("));
    let text = pb_report::terminal(&verdict, 100, false);
    assert!(
        text.contains("error (z) is 615,000") && !text.contains("flips"),
        "{text}"
    );
}
