//! Public faults in reading streams, each by its number in the measurement definitions (3.1).

use pb_contract::{FailKind, Nanos};
use pb_load::events::{CountRule, StreamOutcome, StreamReading};
use pb_load::rows::Record;
use pb_record::metrics::{Bundle, event_gaps, request_metrics, token_itl};

use crate::events::{chat, gaps, read, record};

const MS: u64 = 1_000_000;
const DONE: &str = "data: [DONE]";

fn ids(text: &str, ids: &str) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"token_ids\":{ids}}}]}}")
}

fn closed(events: &[(u64, &str)]) -> Record {
    record(read(events), Nanos::from_millis(events[events.len() - 1].0))
}

fn outcome(parts: &[&[u8]]) -> StreamOutcome {
    let mut reading = StreamReading::new(1 << 20).keeping_text();
    for part in parts {
        reading.bytes(Nanos(1), part);
    }
    reading.end(None)
}

/// The outcome of `bytes`, which must be the same however they are split in two or in single
/// bytes.
fn in_every_split(bytes: &[u8]) -> StreamOutcome {
    let whole = outcome(&[bytes]);
    for split in 0..=bytes.len() {
        assert_eq!(
            outcome(&[&bytes[..split], &bytes[split..]]),
            whole,
            "at {split}"
        );
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(outcome(&single), whole, "byte by byte");
    whole
}

#[test]
fn row_1_a_bundle_is_one_event_gap_and_three_token_gaps() {
    let event = |text: &str, usage: u32| {
        let usage = format!("\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{usage}}}");
        format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}],{usage}}}")
    };
    let (first, second) = (event("a", 1), event("bcd", 4));
    let record = closed(&[(100, &first), (200, &second), (201, DONE)]);
    let gaps: Vec<u64> = event_gaps(&record.tokens)
        .iter()
        .map(|gap| gap.gap_ns)
        .collect();
    assert_eq!(gaps, [100 * MS]);
    assert_eq!(token_itl(&record.tokens, Bundle::Even).len(), 3);
    assert_eq!(token_itl(&record.tokens, Bundle::Burst), [100 * MS, 0, 0]);
    assert_eq!(record.row.streamed_tokens, 4);
}

#[test]
fn row_2_a_stall_is_not_averaged_away() {
    let token = ids("a", "[1]");
    let times = [100, 110, 120, 130, 1_100];
    let mut events: Vec<(u64, &str)> = times.iter().map(|&ms| (ms, token.as_str())).collect();
    events.push((1_101, DONE));
    let record = closed(&events);
    let itl = token_itl(&record.tokens, Bundle::Even);
    assert_eq!(itl, [10 * MS, 10 * MS, 10 * MS, 970 * MS]);
}

#[test]
fn row_3_the_first_token_is_no_gap() {
    let token = ids("a", "[1]");
    let record = closed(&[(500, &token), (510, &token), (520, &token), (521, DONE)]);
    assert_eq!(token_itl(&record.tokens, Bundle::Even), [10 * MS, 10 * MS]);
    assert_eq!(request_metrics(&record.row).ttft_ns, Some(500 * MS));
}

#[test]
fn row_4_token_gaps_sum_to_the_decode_time() {
    let (one, three) = (ids("a", "[1]"), ids("abc", "[1,2,3]"));
    let record = closed(&[
        (7, &one),
        (20, &three),
        (31, &one),
        (57, &three),
        (58, DONE),
    ]);
    let sum: u64 = token_itl(&record.tokens, Bundle::Even).iter().sum();
    assert_eq!(sum, 50 * MS);
}

#[test]
fn rows_5_6_and_7_a_role_event_is_a_first_response_and_no_token() {
    for content_ms in [200, 900] {
        let events = [
            (50, chat("{\"role\":\"assistant\",\"content\":\"\"}")),
            (content_ms, chat("{\"content\":\"a\"}")),
            (content_ms + 10, chat("{\"content\":\"b\"}")),
            (content_ms + 11, DONE.to_owned()),
        ];
        let events: Vec<(u64, &str)> = events.iter().map(|(ms, text)| (*ms, &**text)).collect();
        let record = closed(&events);
        let metrics = request_metrics(&record.row);
        assert_eq!(metrics.ttfr_ns, Some(50 * MS));
        assert_eq!(metrics.ttft_ns, Some(content_ms * MS));
        assert_eq!(token_itl(&record.tokens, Bundle::Even), [10 * MS]);
    }
}

#[test]
fn row_8_reasoning_is_a_first_token_but_not_the_first_output() {
    for field in ["reasoning", "reasoning_content"] {
        let (thought, said) = (
            chat(&format!("{{\"{field}\":\"hm\"}}")),
            chat("{\"content\":\"a\"}"),
        );
        let outcome = read(&[(80, &thought), (900, &said), (901, DONE)]);
        assert_eq!(outcome.first_token(), Some(Nanos::from_millis(80)));
        assert_eq!(outcome.first_output, Some(Nanos::from_millis(900)));
        assert_eq!(gaps(&outcome), [820]);
    }
}

#[test]
fn row_9_tokens_that_were_not_streamed_stay_visible_as_a_difference() {
    let token = chat("{\"content\":\"a\"}");
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":500}}";
    let mut events: Vec<(u64, &str)> = (0..100).map(|i| (10 + i, token.as_str())).collect();
    events.extend([(200, usage), (201, DONE)]);
    let row = closed(&events).row;
    assert_eq!(
        (row.streamed_tokens, row.completion_tokens),
        (100, Some(500))
    );
}

#[test]
fn row_12_the_usage_event_extends_nothing() {
    let token = ids("a", "[1]");
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}";
    let record = closed(&[(300, &token), (400, &token), (900, usage), (910, DONE)]);
    let metrics = request_metrics(&record.row);
    assert_eq!(metrics.e2e_ns, Some(400 * MS));
    assert_eq!(metrics.close_ns, Some(910 * MS));
    assert_eq!(metrics.tpot_ns, Some(100 * MS));
}

#[test]
fn row_14_a_character_split_between_reads_stays_whole() {
    let text = "data: {\"choices\":[{\"text\":\"é🙂\"}]}\n\ndata: [DONE]\n\n";
    let outcome = in_every_split(text.as_bytes());
    assert_eq!((outcome.text.as_str(), outcome.failure), ("é🙂", None));
}

#[test]
fn row_15_line_ends_and_the_space_after_the_colon_make_no_difference() {
    let plain = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
    let expected = in_every_split(plain.as_bytes());
    assert_eq!(expected.streamed_tokens, 1);
    for end in ["\n", "\r\n", "\r"] {
        for colon in ["data: ", "data:"] {
            let text = plain.replace('\n', end).replace("data: ", colon);
            assert_eq!(in_every_split(text.as_bytes()), expected, "{text:?}");
        }
    }
}

#[test]
fn row_17_other_fields_and_comments_are_no_errors() {
    let text = ": ping\n\nid: 1\nretry: 10\nevent: message\nunknown: x\n\
                data: {\"choices\":[{\"text\":\"a\"}]}\n\n:\n\ndata: [DONE]\n\n";
    let outcome = in_every_split(text.as_bytes());
    assert_eq!((outcome.streamed_tokens, outcome.failure), (1, None));
}

#[test]
fn row_19_errors_inside_a_stream_in_every_form() {
    for error in [
        "error: {\"message\":\"no room\"}",
        "data: {\"error\":{\"message\":\"no room\",\"code\":500}}",
        "data: {\"error\":\"no room\"}",
        "event: error\ndata: {\"message\":\"no room\"}",
        "event: error\ndata: no room",
    ] {
        let text = format!("data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\n{error}\n\n");
        let outcome = in_every_split(text.as_bytes());
        let failure = Some((FailKind::InBandError, "no room".to_owned()));
        assert_eq!(
            (outcome.failure, outcome.streamed_tokens),
            (failure, 1),
            "{error}"
        );
    }
    // A null is no error.
    let fine = "data: {\"error\":null,\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
    assert_eq!(in_every_split(fine.as_bytes()).failure, None);
}

#[test]
fn row_20_a_usage_event_without_choices_is_read() {
    let usage = "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\
                 \"prompt_tokens_details\":{\"cached_tokens\":5}}";
    for choices in ["\"choices\":[],", "", "\"choices\":null,"] {
        let text = format!(
            "data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\n\
             data: {{{choices}{usage}}}\n\ndata: [DONE]\n\n"
        );
        let outcome = in_every_split(text.as_bytes());
        assert_eq!(
            (outcome.cached_tokens(), outcome.failure),
            (Some(5), None),
            "{choices}"
        );
    }
}

/// Tokens and bytes of a long stream, and of one huge event, in reads of 64 KiB: every byte is
/// looked at once, so the work grows with the bytes and not with their square.
#[test]
fn row_22_large_events_and_long_streams_are_read_whole() {
    let huge = format!(
        "data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\ndata: [DONE]\n\n",
        "x".repeat(1_000_000)
    );
    let parts: Vec<&[u8]> = huge.as_bytes().chunks(64 << 10).collect();
    let mut reading = StreamReading::new(2 << 20).keeping_text();
    parts.iter().for_each(|part| reading.bytes(Nanos(1), part));
    let outcome = reading.end(None);
    assert_eq!(
        (outcome.text.len(), outcome.streamed_tokens),
        (1_000_000, 1)
    );

    let long = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n".repeat(50_000) + "data: [DONE]\n\n";
    let mut reading = StreamReading::new(1 << 20);
    long.as_bytes()
        .chunks(64 << 10)
        .for_each(|part| reading.bytes(Nanos(1), part));
    assert_eq!(reading.end(None).content.len(), 50_000);
}

#[test]
fn row_23_tokens_are_counted_by_the_stream_and_never_tokenized_again() {
    // Texts that a tokenizer would merge or prefix: ten events, ten tokens, by every rule.
    let texts = [
        "\\n", " ", " ", "a", "b", "\u{fffd}", "\\u00e9", "1", "2", "3",
    ];
    let plain: String = texts
        .iter()
        .map(|text| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n"))
        .collect();
    let outcome = in_every_split(format!("{plain}data: [DONE]\n\n").as_bytes());
    assert_eq!(outcome.streamed_tokens, 10);
    assert_eq!(
        outcome.count_rule,
        Some(CountRule::OnePerEvent),
        "and it is named an estimate"
    );
    let listed = plain.replace("\"}]", "\",\"token_ids\":[7]}]");
    let outcome = in_every_split(format!("{listed}data: [DONE]\n\n").as_bytes());
    assert_eq!(
        (outcome.streamed_tokens, outcome.count_rule),
        (10, Some(CountRule::TokenIds))
    );
}

#[test]
fn row_64_cached_tokens_that_are_not_told_are_unknown_and_not_zero() {
    let usage = |details: &str| {
        format!(
            "data: {{\"choices\":[{{\"text\":\"a\",\"finish_reason\":\"length\"}}],\"usage\":\
             {{\"prompt_tokens\":9,\"completion_tokens\":1{details}}}}}"
        )
    };
    for (details, cached) in [
        ("", None),
        (",\"prompt_tokens_details\":null", None),
        (",\"prompt_tokens_details\":{}", None),
        (",\"prompt_tokens_details\":{\"cached_tokens\":0}", Some(0)),
        (",\"prompt_tokens_details\":{\"cached_tokens\":8}", Some(8)),
    ] {
        let row = closed(&[(1, &usage(details)), (2, DONE)]).row;
        assert_eq!(
            (row.prompt_tokens, row.cached_tokens),
            (Some(9), cached),
            "{details}"
        );
    }
}
