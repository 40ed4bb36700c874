//! Logs read back by the library's reader and by a decoder written from the format's description
//! (HdrHistogram, "V2 encoding": cookie, header, zigzag LEB128 counts).

use std::io::Read;

use pb_contract::RequestId;

use super::*;

const MS: u64 = 1_000_000;

fn row(arm: &str, block: u32, start_s: u64, ttft_ns: u64) -> RequestRow {
    let start = Nanos::from_secs(start_s);
    RequestRow {
        arm: arm.into(),
        block,
        request: RequestId(ttft_ns),
        class: String::new(),
        intended_ns: start,
        sent_ns: Some(start),
        headers_ns: None,
        first_event_ns: None,
        first_token_ns: Some(start + Nanos(ttft_ns)),
        last_token_ns: Some(start + Nanos(ttft_ns)),
        closed_ns: Some(start + Nanos::from_secs(4)),
        status: RequestStatus::Ok,
        fail: None,
        http_status: None,
        fail_message: None,
        finish_reason: None,
        prompt_tokens_planned: 0,
        prompt_tokens: None,
        cached_tokens: None,
        max_tokens: 1,
        completion_tokens: None,
        streamed_tokens: 1,
    }
}

/// The intervals of a log: tag, start, length, encoded histogram.
fn entries(bytes: &[u8]) -> Vec<(String, Duration, Duration, Vec<u8>)> {
    let decode = |text| {
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap()
    };
    IntervalLogIterator::new(bytes)
        .filter_map(|entry| match entry.unwrap() {
            LogEntry::Interval(log) => Some((
                log.tag().unwrap().as_str().to_owned(),
                log.start_timestamp(),
                log.duration(),
                decode(log.encoded_histogram()),
            )),
            _ => None,
        })
        .collect()
}

fn read_back(encoded: &[u8]) -> Histogram<u64> {
    Deserializer::new().deserialize(&mut &encoded[..]).unwrap()
}

/// `(lowest value of the bucket, count)` of every bucket that has any, from the bytes alone.
fn by_hand(encoded: &[u8]) -> Vec<(u64, u64)> {
    let int = |bytes: &[u8], at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |bytes: &[u8], at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(int(encoded, 0), 0x1c84_9314, "compressed V2");
    assert_eq!(int(encoded, 4) as usize, encoded.len() - 8);
    let mut raw = Vec::new();
    flate2::read::ZlibDecoder::new(&encoded[8..])
        .read_to_end(&mut raw)
        .unwrap();
    assert_eq!(int(&raw, 0), 0x1c84_9313, "V2");
    assert_eq!((int(&raw, 8), int(&raw, 12)), (0, 3), "offset and digits");
    assert_eq!((long(&raw, 16), long(&raw, 24)), (1_000, 3_600_000_000_000));
    assert_eq!(f64::from_be_bytes(raw[32..40].try_into().unwrap()), 1.0);
    // Three digits need 2048 sub-buckets, half of them anew in each bucket; 1000 ns give 2^9.
    let lowest_of = |index: u64| match index >> 10 {
        0 => index << 9,
        bucket => ((index & 1023) + 1024) << (bucket - 1 + 9),
    };
    let (mut found, mut index, mut at) = (Vec::new(), 0_u64, 40);
    while at < raw.len() {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = raw[at];
            at += 1;
            // The ninth byte has eight bits of the value.
            if shift == 56 {
                value |= u64::from(byte) << shift;
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let number = (value >> 1) as i64 ^ -((value & 1) as i64);
        match u64::try_from(number) {
            Ok(count) => {
                found.push((lowest_of(index), count));
                index += 1;
            }
            Err(_) => index += number.unsigned_abs(),
        }
    }
    found.retain(|(_, count)| *count > 0);
    found
}

#[test]
fn a_log_reads_back_within_its_digits_and_counts_what_it_clamps() {
    let mut log = Log::default();
    let one = |ns| [Repeated { ns, count: 1 }];
    for i in 1..=1_000 {
        log.add(&row("a b", 1, 20, 0), one(i * MS)).unwrap();
    }
    for ns in [5, HIGHEST_NS + 1] {
        log.add(&row("z", 0, 10, 0), one(ns)).unwrap();
    }
    let counts = HlogCounts {
        values: 1_002,
        saturated: 1,
        below: 1,
    };
    assert_eq!(log.counts, counts);
    let logs = entries(&log.render("2030-01-01T00:00:00Z").unwrap());
    assert_eq!((logs[0].0.as_str(), logs[0].1), ("z", Duration::ZERO));
    assert_eq!(
        (logs[1].0.as_str(), logs[1].1),
        ("a_b", Duration::from_secs(10))
    );
    assert_eq!(logs[1].2, Duration::from_secs(4));
    let back = read_back(&logs[1].3);
    assert_eq!(back.len(), 1_000);
    // The 500th of 1..=1000 ms, to three digits.
    let median = back.value_at_quantile(0.5) as f64;
    assert!((median / 500e6 - 1.0).abs() < 1e-3, "{median}");
}

#[test]
fn another_decoder_finds_every_value_in_its_bucket() {
    let values = [
        0,
        1_000,
        1_023,
        52_000,
        3 * MS,
        3 * MS + 1,
        77 * MS,
        1_234_567_890,
    ];
    let mut log = Log::default();
    for ns in values {
        let twice = [Repeated { ns, count: 2 }];
        log.add(&row("x", 0, 1, 0), twice).unwrap();
    }
    let logs = entries(&log.render("").unwrap());
    let buckets = by_hand(&logs[0].3);
    assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 16);
    for ns in values {
        let (lowest, _) = buckets.iter().rfind(|(lowest, _)| *lowest <= ns).unwrap();
        // A bucket is 512 ns or a thousandth of its value wide.
        let off = ns - lowest;
        assert!(
            off < 512 || off * 1_000 <= ns,
            "{ns} in the bucket of {lowest}"
        );
    }
}

/// Adding the histograms of two halves gives the histogram of the whole.
#[test]
fn histograms_of_shards_add_up_to_that_of_all_rows() {
    let rows: Vec<RequestRow> = (1..200).map(|i| row("x", 0, 1, i * i * 20_000)).collect();
    let of = |rows: &[RequestRow]| {
        let mut logs = Logs::new();
        for row in rows {
            logs.add(row, &[]).unwrap();
        }
        let bytes = logs.ttft.render("").unwrap();
        read_back(&entries(&bytes)[0].3)
    };
    let mut joined = of(&rows[..70]);
    joined.add(of(&rows[70..])).unwrap();
    assert_eq!(joined, of(&rows));
}

#[test]
fn every_latency_has_its_log_and_failures_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut logs = Logs::new();
    let mut ok = row("x", 0, 1, 200 * MS);
    ok.last_token_ns = Some(Nanos::from_secs(1) + Nanos(400 * MS));
    ok.streamed_tokens = 5;
    let token = |event, at_ms, tokens| TokenRow {
        arm: "x".into(),
        block: 0,
        request: ok.request,
        event,
        at_ns: Nanos::from_secs(1) + Nanos(at_ms * MS),
        tokens,
    };
    let stream = [token(0, 200, 1), token(1, 300, 3), token(2, 400, 1)];
    logs.add(&ok, &stream).unwrap();
    let failed = RequestRow {
        status: RequestStatus::Failed,
        ..ok.clone()
    };
    logs.add(&failed, &stream).unwrap();
    let report = logs.write(dir.path(), "").unwrap();
    let values = [
        report.ttft,
        report.itl,
        report.event_gap,
        report.tpot,
        report.e2e,
    ];
    assert_eq!(values.map(|counts| counts.values), [1, 4, 2, 1, 1]);
    // The middle of a bucket's width is 0.1 %: each value is found to that.
    for (name, want) in [
        ("ttft", vec![(200 * MS, 1)]),
        ("event_gap", vec![(100 * MS, 2)]),
        ("itl", vec![(33_333_333, 3), (100 * MS, 1)]),
        ("tpot", vec![(50 * MS, 1)]),
        ("e2e", vec![(400 * MS, 1)]),
    ] {
        let bytes = std::fs::read(dir.path().join(format!("{name}.hlog"))).unwrap();
        let found = by_hand(&entries(&bytes)[0].3);
        assert_eq!(found.len(), want.len(), "{name}: {found:?}");
        for ((lowest, count), (ns, times)) in found.iter().zip(want) {
            assert_eq!(*count, times, "{name}");
            assert!(
                *lowest <= ns && (ns - lowest) * 1_000 <= ns,
                "{name}: {lowest}"
            );
        }
    }
}
