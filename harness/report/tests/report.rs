//! Reports of synthetic runs: the numbers, the escaping, and what is shown when there is nothing.

mod support;

use pb_contract::manifest::RunState;
use pb_judge::run::{Outcome, RunNotes, RunVerdict, judge};
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
    // Seven pictures, each with a title and a description of its own.
    for part in ["<svg ", "<title id=", "<desc id=", "<figcaption>"] {
        assert_eq!(page.matches(part).count(), 7, "{part}");
    }
    assert_eq!(
        page.matches("<table>").count(),
        page.matches("<caption>").count()
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
