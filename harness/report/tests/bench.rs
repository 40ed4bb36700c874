//! The report of a load run: every number once in each form, hostile text harmless, pictures of
//! everything that there is.

use pb_bench::conditions::{Connections, ShardNote};
use pb_bench::{
    Calibration, Conditions, Document, Frame, Gauge, Gauges, Identity, LoadFacts, Server,
    ServerPoint, Shard, Spread, Tally, WindowCounters, WorkloadFacts,
};
use pb_contract::{FailKind, Nanos, RequestId, RequestRow, RequestStatus, TokenRow};
use pb_report::bench::{BenchReport, Pictures};

const MS: u64 = 1_000_000;
/// Text that would act if it were not made harmless.
const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[2J|\u{202e}";

/// Request `id`, due at `at` ms: `first` ms to the first of `tokens` tokens, `gap` ms between
/// them; one stall of `stall` ms in the middle when it is not 0.
fn request(id: u64, at: u64, first: u64, gap: u64, tokens: u32, stall: u64) -> Record {
    let intended = Nanos(1_000 * MS) + Nanos(at * MS);
    let mut now = intended + Nanos(first * MS);
    let mut events = Vec::new();
    for event in 0..tokens {
        if event > 0 {
            let stalled = stall > 0 && event == tokens / 2;
            now += Nanos(if stalled { stall } else { gap } * MS);
        }
        events.push(TokenRow {
            arm: "target".into(),
            block: 0,
            request: RequestId(id),
            event,
            at_ns: now,
            tokens: 1,
        });
    }
    let row = RequestRow {
        arm: "target".into(),
        block: 0,
        request: RequestId(id),
        class: ["background", "long_prompt"][usize::from(id % 4 == 3)].into(),
        intended_ns: intended,
        sent_ns: Some(intended + Nanos(40_000 + id * 1_000)),
        headers_ns: Some(intended + Nanos(2 * MS)),
        first_event_ns: Some(intended + Nanos(3 * MS)),
        first_token_ns: Some(intended + Nanos(first * MS)),
        last_token_ns: Some(now),
        closed_ns: Some(now + Nanos(MS)),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("length".into()),
        prompt_tokens_planned: 100,
        prompt_tokens: Some(104),
        cached_tokens: Some(16),
        max_tokens: tokens,
        completion_tokens: Some(tokens),
        streamed_tokens: tokens,
    };
    (row, events)
}

type Record = (RequestRow, Vec<TokenRow>);

fn refused(id: u64, at: u64) -> Record {
    let (row, _) = request(id, at, 5, 1, 1, 0);
    let row = RequestRow {
        status: RequestStatus::Failed,
        fail: Some(FailKind::HttpStatus),
        http_status: Some(503),
        fail_message: Some(HOSTILE.into()),
        first_token_ns: None,
        last_token_ns: None,
        closed_ns: Some(row.intended_ns + Nanos(9 * MS)),
        ..row
    };
    (row, Vec::new())
}

/// A run of 240 requests over 24 s with stalls, and some refusals when asked for.
fn records(refusals: bool) -> Vec<Record> {
    (0..240)
        .map(|id| match (refusals, id % 40) {
            (true, 39) => refused(id, id * 100),
            (_, 7) => request(id, id * 100, 40 + id, 12, 60, 900),
            _ => request(id, id * 100, 40 + id * 7 % 90, 10 + id % 5, 60, 0),
        })
        .collect()
}

fn conditions() -> Conditions {
    Conditions {
        frame: Frame {
            start: Nanos(1_000 * MS),
            arrivals_ns: Some(Nanos(23_900 * MS)),
            schedule_sha256: "ab".repeat(32),
            seed: 7,
            ..Frame::default()
        },
        objectives: vec!["ttft:100".parse().unwrap()],
        slos: vec!["success:0.999".parse().unwrap()],
        identity: Identity {
            model: "smollm2".into(),
            base_url: "http://127.0.0.1:8000".into(),
            server: "vllm".into(),
            created: "2030-01-01T00:00:00Z".into(),
            label: Some(HOSTILE.into()),
            ..Identity::default()
        },
        load: LoadFacts {
            arrival: "poisson".into(),
            rate_rps: Some(10.0),
            connections: Some(Connections {
                before_start: 8,
                opened: 9,
                ..Connections::default()
            }),
            ..LoadFacts::default()
        },
        workload: WorkloadFacts {
            dataset: "random".into(),
            dropped: [("too long".to_owned(), 3)].into(),
            ..WorkloadFacts::default()
        },
        calibration: Some(calibration()),
        server: Some(server()),
        shards: vec![ShardNote {
            shard: Shard { index: 0, of: 2 },
            state: "complete".into(),
            rows: 120,
            clock_offset_ns: -1_500_000_000,
            created: "2030-01-01T00:00:00Z".into(),
            calibration: None,
            server: None,
        }],
        ..Conditions::default()
    }
}

fn calibration() -> Calibration {
    let error = |us: u64| Spread::of((1..=100).map(|i| i * us * 10).collect());
    Calibration {
        requests: 30,
        ttft_error_ms: error(2),
        itl_error_ms: error(1),
        driver_lag_ms: error(4),
        server_late_ms: error(1),
        cpu_share: Some(0.11),
        ..Calibration::default()
    }
}

fn server() -> Server {
    let histogram = histogram();
    let gauge = |max| Gauge::of([Some(1.0), Some(max)]);
    Server {
        scrapes: 241,
        counters: WindowCounters {
            hit_tokens: Some(3_840),
            preemptions: Some(2),
            ..WindowCounters::default()
        },
        gauges: Gauges {
            running: gauge(8.0),
            waiting: gauge(3.0),
            kv_usage: gauge(0.8),
        },
        ttft: Some((&histogram).into()),
        ..Server::default()
    }
}

fn histogram() -> pb_bench::server::Histogram {
    pb_bench::server::Histogram {
        bounds_s: vec![0.05, 0.1, 0.5],
        cumulative: vec![100, 200, 240],
        count: 240,
        sum_s: 20.0,
    }
}

fn server_points() -> Vec<ServerPoint> {
    let point = |i: u64| ServerPoint {
        at_ns: Nanos((1_000 + i * 100) * MS),
        running: Some((i % 9) as f64),
        waiting: Some((i % 40 / 10) as f64),
        kv_usage: Some((i % 100) as f64 / 120.0),
    };
    (0..245).map(point).collect()
}

struct Made {
    document: Document,
    pictures: Pictures,
}

fn made(conditions: &Conditions, records: &[Record], server: Vec<ServerPoint>) -> Made {
    let mut tally: Tally = conditions.tally();
    for (row, tokens) in records {
        tally.add(row.clone(), tokens);
    }
    let document = Document::of(&tally, conditions);
    let mut pictures = Pictures::new(&document, &tally, server);
    for (row, tokens) in records {
        pictures.add(row, tokens);
    }
    Made { document, pictures }
}

impl Made {
    fn report<'a>(&'a self, notes: &'a [String]) -> BenchReport<'a> {
        BenchReport {
            document: &self.document,
            pictures: &self.pictures,
            notes,
        }
    }
}

/// Puts a page where a person or a browser can look at it.
fn keep(name: &str, page: &str) {
    let dir = env!("CARGO_TARGET_TMPDIR");
    std::fs::write(format!("{dir}/{name}"), page).unwrap();
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn the_page_has_every_picture_and_acts_on_nothing() {
    let made = made(&conditions(), &records(true), server_points());
    let notes = ["requests.csv: the last line was cut off".to_owned()];
    let page = made.report(&notes).html().unwrap();
    keep("bench.html", &page);
    for id in [
        "ttft",
        "itl",
        "e2e",
        "ttft-time",
        "in-flight",
        "gaps",
        "lag",
        "server-time",
        "first",
        "slowest",
    ] {
        let title = format!("<title id=\"{id}-t\">");
        assert_eq!(count(&page, &title), 1, "{id}");
    }
    assert_eq!(count(&page, "<svg "), count(&page, "</svg>"));
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    // Nothing from elsewhere is loaded.
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

/// Requests 0 to 239 without a stall: the first waterfall has a first-token and a streaming bar
/// for each of 200 requests, the second for each of 20.
#[test]
fn the_first_and_the_slowest_requests_are_drawn_one_by_one() {
    let made = made(&conditions(), &records(false), Vec::new());
    let page = made.report(&[]).html().unwrap();
    let first = &page[page.find("<title id=\"first-t\">").unwrap()..];
    let (first, slowest) = first.split_at(first.find("<title id=\"slowest-t\">").unwrap());
    // One more of each in the legend.
    assert_eq!(count(first, "<rect class=\"fill a1\""), 201);
    assert_eq!(count(first, "<rect class=\"fill a0\""), 201);
    assert_eq!(count(slowest, "<rect class=\"fill a0\""), 21);
    // Six stalls in all, at 7, 47, 87, 127, 167 and 207: five among the first 200.
    assert_eq!(made.document.stalls.count, Some(6));
    assert_eq!(count(first, "<rect class=\"stall\""), 6);
    assert_eq!(count(slowest, "<rect class=\"stall\""), 7);
    assert_eq!(count(&page, "<rect class=\"lost\""), 2);
    assert!(!page.contains("server-time"), "no readings, no picture");
}

#[test]
fn validity_comes_first_in_every_form() {
    let mut broken = conditions();
    broken.frame.exhausted = true;
    let made = made(&broken, &records(true), server_points());
    let report = made.report(&[]);
    let (terminal, markdown) = (report.terminal(100, false), report.markdown());
    let page = report.html().unwrap();
    for text in [&terminal, &markdown, &page] {
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        assert!(at("Not valid") < at("May these numbers be used?"));
        assert!(at("May these numbers be used?") < at("percentiles of raw"));
        assert!(at("the schedule ended before") < at("service TTFT"));
        // 234 of 240 ended well; 97.5 % is below 99.9 %.
        assert!(at("FAILED") > 0 && at("97.5") > 0);
        assert!(text.contains("∞"), "a refused request takes for ever");
    }
    for text in [&terminal, &markdown, &page] {
        assert_eq!(count(text, "the schedule ended before"), 1, "{text}");
    }
    let wide = terminal.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    assert!(!terminal.contains('\u{1b}'));
    assert!(markdown.contains("| http\\_status |") || markdown.contains("| http_status |"));
}

#[test]
fn a_narrow_terminal_and_an_empty_run_are_no_trouble() {
    let empty = made(&Conditions::default(), &[], Vec::new());
    let report = empty.report(&[]);
    let text = report.terminal(40, true);
    assert!(text.contains("No request ended well"), "{text}");
    let page = report.html().unwrap();
    keep("bench-empty.html", &page);
    assert!(page.contains("no samples") && page.contains("no gaps"));
    let full = made(&conditions(), &records(true), server_points());
    let text = full.report(&[]).terminal(40, false);
    assert!(
        text.lines().all(|line| line.chars().count() <= 40),
        "{text}"
    );
}

/// Names that came from elsewhere, in every place that a name has.
fn hostile() -> Made {
    let mut given = conditions();
    let name = || HOSTILE.to_owned();
    given.identity.model = name();
    given.identity.base_url = name();
    given.identity.server = name();
    given.identity.created = name();
    given.identity.tool = name();
    given.workload.dataset = name();
    given.workload.dropped = [(name(), 3)].into();
    given.load.arrival = name();
    given.load.ramp = Some(name());
    given.frame.schedule_sha256 = name();
    given.frame.cache_reasons = vec![name()];
    given.reasons = vec![name()];
    given.warnings = vec![name()];
    given.shards[0].state = name();
    given.shards[0].created = name();
    if let Some(server) = &mut given.server {
        server.metrics_url = name();
        server.notes = vec![name()];
    }
    let mut rows = records(true);
    for (row, _) in rows.iter_mut().step_by(2) {
        row.class = HOSTILE.into();
    }
    let mut made = made(&given, &rows, server_points());
    if let Some(calibration) = &mut made.document.calibration {
        calibration.problem = Some(name());
    }
    made
}

#[test]
fn names_from_elsewhere_act_in_no_form() {
    let made = hostile();
    let notes = [HOSTILE.to_owned()];
    let report = made.report(&notes);
    let (terminal, markdown) = (report.terminal(100, false), report.markdown());
    let page = report.html().unwrap();
    let table = pb_bench::table::text(&made.document);
    let csv = pb_bench::csv::text(&made.document);
    for text in [&terminal, &markdown, &page, &table, &csv] {
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(acts), "{text}");
    }
    for text in [&terminal, &table] {
        let wide = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None);
    }
    for text in [&markdown, &page] {
        assert!(!text.contains("<script"), "{text}");
    }
    // A table of Markdown has as many cells in each row as in its head.
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut head = None;
    for line in markdown.lines() {
        match (line.starts_with('|'), head) {
            (false, _) => head = None,
            (true, None) => head = Some(cells(line)),
            (true, Some(head)) => assert_eq!(cells(line), head, "{line}"),
        }
    }
    // A field of the CSV file stays one field.
    assert!(
        csv.lines().all(|line| line.split(',').count() == 4),
        "{csv}"
    );
}
