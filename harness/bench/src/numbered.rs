//! Faults of other load generators that these numbers do not repeat. The number in a test's name
//! is that of the row in the list of public reports that the project keeps.

use pb_contract::{FailKind, Nanos, RequestRow, RequestStatus, TokenRow};
use pb_record::metrics::Bundle;

use crate::offered::Latency;
use crate::select::Selection;
use crate::server::{Server, WindowCounters};
use crate::tests::{MS, document, failed, frame, request, under, worked};
use crate::vllm::{VllmOptions, vllm_result};
use crate::{Conditions, LoadFacts, csv, table};

type Records = Vec<(RequestRow, Vec<TokenRow>)>;

/// Requests a millisecond apart, each the worked stream.
fn many(count: u64) -> Records {
    (0..count).map(|id| worked(id, 1000 + id)).collect()
}

/// vllm #42661: three tokens in one event are three tokens and one gap.
#[test]
fn row_1_a_bundle_is_its_tokens_and_one_gap() {
    let bundle = || request(0, 1000, &[(100, 1), (200, 3)]);
    let doc = document(&[], frame(), vec![bundle()]);
    let gap = doc.event_gap_ms.unwrap();
    assert_eq!((gap.n, gap.max), (1, 100.0));
    // 100 ms over three: 33.333334 and twice 33.333333.
    let itl = doc.itl_ms.unwrap();
    assert_eq!((itl.n, itl.p50, itl.max), (3, 33.333_333, 33.333_334));
    assert_eq!((doc.tokens.output, doc.tokens.events), (4, 2));
    assert_eq!(
        (doc.itl_rule, doc.tokens.bundled_share),
        (Bundle::Even, Some(0.75))
    );
    let burst = Conditions {
        itl_rule: Bundle::Burst,
        ..Conditions::new(frame())
    };
    let doc = under(&burst, [bundle()]);
    let itl = doc.itl_ms.unwrap();
    assert_eq!((itl.n, itl.p50, itl.max), (3, 0.0, 100.0));
    assert!(table::text(&doc).contains("ITL (burst)"));
}

/// guidellm #1145: a mean of each request hides the stall.
#[test]
fn row_2_gaps_are_pooled_and_no_stall_vanishes() {
    let stream = [(100, 1), (110, 1), (120, 1), (130, 1), (1100, 1)];
    let doc = document(&[], frame(), vec![request(0, 1000, &stream)]);
    let itl = doc.itl_ms.unwrap();
    assert_eq!((itl.n, itl.p50, itl.max), (4, 10.0, 970.0));
    assert_eq!(
        (doc.stalls.count, doc.stalls.total_ms),
        (Some(1), Some(970.0))
    );
    assert_eq!(doc.stalls.share, Some(0.97));
    assert_eq!(
        (doc.stalls.threshold_ms, doc.stalls.longest_ms),
        (Some(50.0), Some(970.0))
    );
}

/// vllm #7242: the time to the first token is no gap.
#[test]
fn row_3_the_first_token_is_no_gap() {
    let stream = [(500, 1), (510, 1), (520, 1)];
    let doc = document(&[], frame(), vec![request(0, 1000, &stream)]);
    let itl = doc.itl_ms.unwrap();
    assert_eq!((itl.n, itl.mean, itl.max), (2, 10.0, 10.0));
}

/// vllm #6531: both views are there, and they have the same sum.
#[test]
fn row_4_token_and_event_gaps_add_up_to_the_decode_time() {
    let stream = [(100, 1), (207, 3), (210, 7), (333, 1)];
    let doc = document(&[], frame(), vec![request(0, 1000, &stream)]);
    let sum = |s: crate::Spread| s.mean * s.n as f64;
    let (itl, gaps) = (doc.itl_ms.unwrap(), doc.event_gap_ms.unwrap());
    assert_eq!((itl.n, gaps.n), (11, 3));
    assert!((sum(itl) - 233.0).abs() < 1e-3 && (sum(gaps) - 233.0).abs() < 1e-3);
}

/// genai-bench #81: tokens that were counted and not streamed.
#[test]
fn row_9_hidden_tokens_are_counted_and_give_no_time_per_token() {
    let (mut row, tokens) = worked(0, 1000);
    row.completion_tokens = Some(500);
    let doc = document(&[], frame(), vec![(row, tokens), worked(1, 1100)]);
    assert_eq!((doc.hidden_tokens, doc.tpot_ms.unwrap().n), (1, 1));
    assert!(
        doc.warnings
            .iter()
            .any(|w| w.contains("1 requests: the server counted other"))
    );
}

/// SemiAnalysis InferenceX #357: a server that refuses half of its requests is not fast.
#[test]
fn row_31_a_refused_request_takes_for_ever() {
    let conditions = Conditions {
        slos: vec![
            "success:0.99".parse().unwrap(),
            "ttft:250@0.5".parse().unwrap(),
        ],
        ..Conditions::new(frame())
    };
    let all = under(&conditions, many(10));
    assert_eq!(all.offered.success_rate, Some(1.0));
    let spread = all.offered.ttft_ms.unwrap();
    assert_eq!((spread.n, spread.p99), (10, Latency::Ms(200.0)));
    assert_eq!(all.exit_code(), 0);

    let half = (0..10).map(|id| match id % 2 {
        0 => worked(id, 1000 + id),
        _ => failed(id, 1000 + id),
    });
    let half = under(&conditions, half);
    // Over the successes alone both servers look alike.
    assert_eq!(half.ttft_ms.unwrap().p99, 200.0);
    let spread = half.offered.ttft_ms.unwrap();
    assert_eq!(half.offered.success_rate, Some(0.5));
    // The fifth of ten is the last one that ended well.
    assert_eq!(
        (spread.p50, spread.p90),
        (Latency::Ms(200.0), Latency::Endless)
    );
    assert_eq!(serde_json::to_value(spread).unwrap()["p99"], "inf");
    let passed: Vec<bool> = half.gates.iter().map(|gate| gate.pass).collect();
    assert_eq!(passed, [false, true]);
    assert_eq!((half.validity.valid, half.exit_code()), (true, 1));
    assert_eq!(half.slo["ttft:250"].share, Some(0.5));
    assert!(table::text(&half).contains("gate success:0.99: FAILED, 50.000 % of 99.000 %"));
    assert!(csv::text(&half).contains("\noffered_ttft,p99,inf,ms\n"));
}

/// flameox #252: every request that was offered is in exactly one population.
#[test]
fn row_35_the_populations_sum_to_the_offered() {
    let states = [
        (RequestStatus::Ok, None),
        (RequestStatus::Failed, Some(FailKind::Connect)),
        (RequestStatus::Truncated, Some(FailKind::Truncated)),
        (RequestStatus::Incomplete, Some(FailKind::Cancelled)),
        (RequestStatus::NotOffered, Some(FailKind::NotOffered)),
    ];
    let records = states
        .into_iter()
        .cycle()
        .take(23)
        .enumerate()
        .map(|(id, (status, fail))| {
            let (mut row, tokens) = worked(id as u64, 1000);
            (row.status, row.fail) = (status, fail);
            if status == RequestStatus::NotOffered {
                row.sent_ns = None;
            }
            (row, tokens)
        });
    let doc = document(&[], frame(), records.collect());
    let c = doc.counts;
    assert_eq!((c.offered, c.ok, c.failed, c.truncated), (23, 5, 5, 5));
    assert_eq!((c.incomplete, c.not_offered), (4, 4));
    assert_eq!(doc.failures.values().sum::<u64>() + c.ok, c.offered);
    // Tokens of requests that broke off arrived, but are no output of the run.
    assert_eq!(doc.tokens.output, 25);
    let (all, ok) = (
        doc.rates.streamed_tps.unwrap(),
        doc.rates.output_tps.unwrap(),
    );
    assert!((all / ok - 115.0 / 25.0).abs() < 1e-9, "{all} {ok}");
}

/// guidellm statistics.py: nothing measured is null everywhere, never zero.
#[test]
fn row_38_nothing_measured_is_null() {
    let doc = document(&[], frame(), Vec::new());
    let value = serde_json::to_value(&doc).unwrap();
    for key in ["ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "driver_lag_ms"] {
        assert!(value[key].is_null(), "{key}");
    }
    for (part, key) in [
        ("stalls", "count"),
        ("offered", "success_rate"),
        ("offered", "ttft_ms"),
        ("rates", "output_tps"),
        ("cache", "hit_rate"),
    ] {
        assert!(value[part][key].is_null(), "{part}.{key}");
    }
    let result = vllm_result(
        &doc,
        &Conditions::default().tally(),
        &VllmOptions::default(),
    );
    assert!(result["mean_ttft_ms"].is_null() && result["p99_itl_ms"].is_null());
    assert!(csv::text(&doc).contains("\nttft,p99,,ms\n"));
}

/// guidellm #1041: a burst is judged by the spread of its send times.
#[test]
fn row_42_a_burst_has_a_spread_of_send_times() {
    let burst = |last_us: u64| {
        let records = (0..100_u64).map(|id| {
            let (mut row, tokens) = worked(id, 1000);
            row.sent_ns = Some(row.intended_ns + Nanos(id * last_us * 1_000 / 99));
            (row, tokens)
        });
        document(&[], frame(), records.collect())
    };
    let quick = burst(4_000);
    let spread = quick.load.send_spread_ms.unwrap();
    assert_eq!(
        (spread.n, spread.max, quick.load.untied_lag_ms),
        (100, 4.0, None)
    );
    assert!(quick.validity.valid, "{:?}", quick.validity);
    let slow = burst(6_000);
    assert!(
        slow.validity.reasons[0].contains("same instant"),
        "{:?}",
        slow.validity
    );
    assert_eq!((quick.load.max_in_flight, slow.exit_code()), (100, 3));
}

/// guidellm #1048: with a cap of one, waiting grows and service does not; the wait is no lag.
#[test]
fn row_39_a_wait_for_a_free_slot_is_no_lateness() {
    // Due every 100 ms, served 190 ms each, one at a time.
    let records: Records = (0..10_u64)
        .map(|id| {
            let (mut row, mut tokens) = request(id, 1000 + 190 * id, &[(100, 1), (190, 1)]);
            row.intended_ns = Nanos((1000 + 100 * id) * MS);
            row.sent_ns = Some(Nanos((1000 + 190 * id) * MS));
            row.closed_ns = Some(Nanos((1190 + 190 * id) * MS));
            tokens.truncate(2);
            (row, tokens)
        })
        .collect();
    let capped = |capped| Conditions {
        load: LoadFacts {
            max_concurrency: Some(1),
            rate_rps: Some(10.0),
            capped,
            ..LoadFacts::default()
        },
        ..Conditions::new(frame())
    };
    let doc = under(&capped(true), records.clone());
    assert_eq!((doc.load.held_back, doc.load.max_in_flight), (9, 1));
    assert_eq!(doc.service_ttft_ms.unwrap().max, 100.0);
    assert_eq!(doc.ttft_ms.unwrap().max, 100.0 + 9.0 * 90.0);
    assert!(doc.validity.valid, "{:?}", doc.validity);
    assert!(!under(&capped(false), records.clone()).validity.valid);
    let mut tally = capped(true).tally();
    records
        .into_iter()
        .for_each(|(row, tokens)| tally.add(row, &tokens));
    let metrics = "ttft,client_queue_time,e2el_including_client_queue";
    let options = VllmOptions {
        selection: Selection::parse(Some(metrics), None).unwrap(),
        detailed: false,
    };
    let result = vllm_result(&doc, &tally, &options);
    assert_eq!(result["p99_ttft_ms"], 100.0);
    assert_eq!(result["mean_client_queue_time_ms"], 405.0);
    assert_eq!(result["mean_e2el_including_client_queue_ms"], 595.0);
}

/// vllm #54628: the client's figure and the server's stand side by side.
#[test]
fn row_48_client_minus_server_is_in_the_document() {
    let histogram = pb_target::Histogram {
        bounds_s: vec![0.1, 0.25],
        cumulative: vec![0, 1],
        count: 1,
        sum_s: 0.19,
    };
    let gap = pb_target::TtftGap::new(&[Nanos(199_750_000)], &histogram);
    let conditions = Conditions {
        server: Some(Server {
            ttft: Some((&histogram).into()),
            client_minus_server_ttft: Some(gap),
            ..Server::default()
        }),
        ..Conditions::new(frame())
    };
    let doc = under(&conditions, [worked(0, 1000)]);
    let text = table::text(&doc);
    assert!(
        text.contains("199.750 ms at the client, 190.000 ms at the server, 9.750 ms"),
        "{text}"
    );
}

/// vllm #44377: an absent count is unknown, a zero is a zero.
#[test]
fn row_64_absent_is_unknown_and_zero_is_zero() {
    let with = |id, cached| {
        let (mut row, tokens) = worked(id, 1000 + id);
        (row.cached_tokens, row.prompt_tokens) = (cached, Some(32));
        (row, tokens)
    };
    let doc = document(&[], frame(), vec![with(0, None), with(1, None)]);
    assert_eq!(doc.cache.hit_rate, None);
    let doc = document(&[], frame(), vec![with(0, None), with(1, Some(0))]);
    assert_eq!(doc.cache.hit_rate, Some(0.0));
    let doc = document(
        &[],
        frame(),
        vec![with(0, None), with(1, Some(16)), with(2, Some(0))],
    );
    assert_eq!(doc.cache.hit_rate, Some(0.25));
}

/// vllm #25780: prompts that were computed again after a preemption look like hits.
#[test]
fn row_65_preemptions_put_the_hit_rate_in_doubt() {
    let under_preemptions = |preemptions| {
        let counters = WindowCounters {
            preemptions,
            ..WindowCounters::default()
        };
        let conditions = Conditions {
            server: Some(Server {
                counters,
                ..Server::default()
            }),
            ..Conditions::new(frame())
        };
        under(&conditions, [worked(0, 1000)])
    };
    let doubtful = under_preemptions(Some(3));
    assert!(
        doubtful
            .cache
            .hit_rate_doubt
            .unwrap()
            .contains("preempted 3 requests")
    );
    assert!(doubtful.warnings[0].contains("preempted"));
    for sure in [None, Some(0)] {
        assert_eq!(under_preemptions(sure).cache.hit_rate_doubt, None);
    }
}

/// vllm #9349: the length is controlled only when every answer has it and ended by it.
#[test]
fn row_74_the_length_is_controlled_or_it_is_not() {
    let ended = |id, reason: &str, asked| {
        let (mut row, tokens) = worked(id, 1000 + id);
        (row.finish_reason, row.max_tokens) = (Some(reason.into()), asked);
        (row, tokens)
    };
    let of = |records| document(&[], frame(), records).length_controlled;
    assert_eq!(
        of(vec![ended(0, "length", 5), ended(1, "length", 5)]),
        Some(true)
    );
    assert_eq!(
        of(vec![ended(0, "length", 5), ended(1, "stop", 5)]),
        Some(false)
    );
    assert_eq!(of(vec![ended(0, "length", 6)]), Some(false));
    assert_eq!(of(vec![failed(0, 1000)]), None);
}

/// aiperf #339, llmperf #99: one capture, three ways to count its output.
#[test]
fn row_75_and_77_counts_that_differ_are_all_shown() {
    // The server counts 12; the stream carried 5 tokens in 3 events.
    let (mut row, tokens) = worked(0, 1000);
    row.completion_tokens = Some(12);
    let doc = document(&[], frame(), vec![(row, tokens)]);
    let t = doc.tokens;
    assert_eq!((t.output, t.output_streamed, t.events), (12, 5, 3));
    assert!(doc.warnings[0].contains("the server says 12, the streams carried 5 in 3 events"));
    // One token of 101 is below one in a hundred.
    let stream: Vec<(u64, u32)> = (1..=100).map(|i| (i * 10, 1)).collect();
    let (mut row, tokens) = request(0, 1000, &stream);
    row.completion_tokens = Some(101);
    let doc = document(&[], frame(), vec![(row, tokens)]);
    assert!(
        !doc.warnings.iter().any(|w| w.contains("differ")),
        "{:?}",
        doc.warnings
    );
}

/// tt-inference-server PR #2096: what the template adds is shown.
#[test]
fn row_76_the_template_overhead_is_shown() {
    let served = |id, prompt| {
        let (mut row, tokens) = worked(id, 1000 + id);
        (row.prompt_tokens_planned, row.prompt_tokens) = (1024, prompt);
        (row, tokens)
    };
    let records = vec![
        served(0, Some(1046)),
        served(1, Some(1042)),
        served(2, None),
    ];
    let doc = document(&[], frame(), records);
    let w = &doc.workload;
    assert_eq!(
        (
            w.known_rows,
            w.prompt_tokens_planned,
            w.prompt_tokens_served
        ),
        (2, 2048, 2088)
    );
    assert_eq!(
        (w.template_overhead_mean, w.template_overhead_max),
        (Some(20.0), Some(22))
    );
    assert!(table::text(&doc).contains("+20.0 tokens against the plan"));
}
