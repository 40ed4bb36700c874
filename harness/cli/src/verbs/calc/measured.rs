//! What transfers took in a run, beside what the link alone would take.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pb_contract::{TransferEnd, TransferRow, formulas as f};
use pb_record::read_transfers;
use pb_record::table::TRANSFERS;
use pb_stats::nearest_rank;
use serde_json::json;

use super::Line;

/// Lines on the transfers of the run in `dir`, given the bytes that a token has and the link.
pub(super) fn lines(dir: &Path, bytes_per_token: u128, link: f64) -> Result<Vec<Line>> {
    let rows = read(dir)?;
    let all = rows.len();
    let good: Vec<TransferRow> = rows
        .into_iter()
        .filter(|row| row.ended == TransferEnd::Acknowledged)
        .collect();
    // The time of a transfer that began while its prompt was computed is that of the prompt too.
    let (streamed, apart): (Vec<&TransferRow>, Vec<&TransferRow>) =
        good.iter().partition(|row| row.early_bytes > 0);
    let payload =
        |row: &&TransferRow| u128::from(row.bytes) == u128::from(row.tokens) * bytes_per_token;
    let mut lines: Vec<Line> = vec![
        ("measured_transfers", json!(all), "rows of transfers.csv"),
        (
            "measured_failed",
            json!(all - good.len()),
            "not acknowledged; left out of what follows",
        ),
        (
            "measured_as_payload",
            json!(good.iter().filter(payload).count()),
            "rows with exactly tokens * bytes per token",
        ),
        (
            "measured_streamed",
            json!(streamed.len()),
            "begun while the prompt was computed; of these only the exposed time follows",
        ),
    ];
    lines.extend(times(&apart, link));
    lines.extend(percentiles(
        ["measured_exposed_ms_p50", "measured_exposed_ms_p99"],
        ms(good.iter().filter_map(|row| row.exposed_ns)),
        ["ms from the end of the prefill to the end", "ms"],
    ));
    if let Some(rate) = rate(&apart) {
        lines.push((
            "measured_bytes_per_s",
            json!(rate),
            "bytes / time, over the rows that were not streamed",
        ));
    }
    Ok(lines)
}

/// A line for the median of the values and one for their 99th percentile; none without values.
fn percentiles(
    keys: [&'static str; 2],
    mut values: Vec<f64>,
    what: [&'static str; 2],
) -> Vec<Line> {
    values.sort_by(f64::total_cmp);
    let lines = keys.into_iter().zip(what).zip([0.5, 0.99]);
    lines
        .filter_map(|((key, what), p)| Some((key, json!(nearest_rank(&values, p)?), what)))
        .collect()
}

/// Times of transfers whose prompts had been computed when they were offered.
fn times(rows: &[&TransferRow], link: f64) -> Vec<Line> {
    let ideal_ms = |row: &TransferRow| f::ideal_transfer_ms(row.bytes as f64, link);
    let total_ms = |row: &TransferRow| row.total_ns as f64 / 1e6;
    let mut lines = Vec::new();
    lines.extend(percentiles(
        ["measured_ms_p50", "measured_ms_p99"],
        rows.iter().map(|row| total_ms(row)).collect(),
        ["ms from offer to end", "ms"],
    ));
    lines.extend(percentiles(
        ["measured_ideal_ms_p50", "measured_ideal_ms_p99"],
        rows.iter().map(|row| ideal_ms(row)).collect(),
        ["ms: the row's bytes / link", "ms"],
    ));
    lines.extend(percentiles(
        ["overhead_ms_p50", "overhead_ms_p99"],
        rows.iter()
            .map(|row| total_ms(row) - ideal_ms(row))
            .collect(),
        ["ms: measured - ideal, each row by itself", "ms"],
    ));
    lines.extend(percentiles(
        ["queue_wait_ms_p50", "queue_wait_ms_p99"],
        ms(rows.iter().filter_map(|row| row.queue_wait_ns)),
        ["ms until the sink first asked; part of the above", "ms"],
    ));
    lines
}

/// Bytes a second over these rows; none when they took no time.
fn rate(rows: &[&TransferRow]) -> Option<f64> {
    let bytes: u128 = rows.iter().map(|row| u128::from(row.bytes)).sum();
    let time: u128 = rows.iter().map(|row| u128::from(row.total_ns)).sum();
    (time > 0).then(|| bytes as f64 / (time as f64 / 1e9))
}

fn read(dir: &Path) -> Result<Vec<TransferRow>> {
    let path = dir.join(TRANSFERS);
    let place = || format!("--run {}", dir.display());
    let rows = read_transfers(dir).with_context(place)?;
    let Some(rows) = rows else {
        bail!(
            "--run {}: there is no such file; a run has one when its server told of KV transfers",
            path.display()
        );
    };
    ensure!(!rows.is_empty(), "{}: no transfer in it", path.display());
    Ok(rows.into_iter().map(|one| one.line.row).collect())
}

fn ms(values: impl Iterator<Item = u64>) -> Vec<f64> {
    values.map(|ns| ns as f64 / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "id,request,mode,granularity,tokens,blocks,cells,resent_cells,bytes,frames,\
                        descriptors,queue_wait_ns,copy_ns,wire_ns,total_ns,exposed_ns,ended,cause";

    fn of(rows: &str) -> Result<Vec<Line>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(TRANSFERS), format!("{HEAD}\n{rows}")).unwrap();
        lines(dir.path(), 1000, 1e6)
    }

    fn value(lines: &[Line], key: &str) -> f64 {
        let line = lines.iter().find(|line| line.0 == key);
        line.unwrap_or_else(|| panic!("{key}")).1.as_f64().unwrap()
    }

    #[test]
    fn rows_by_hand() {
        // 1000 bytes a token, 1 MB/s: 2 tokens take 2 ms, 4 take 4, 8 take 8.
        let lines = of(
            "1,1,pull,layer,2,1,4,0,2000,4,4,100000,1,1,3000000,500000,acknowledged,\n\
             2,2,pull,layer,4,1,4,0,4000,4,4,300000,1,1,5000000,1000000,acknowledged,\n\
             3,3,pull,layer,8,1,4,0,9000,4,4,200000,1,1,19000000,,acknowledged,\n\
             4,4,pull,layer,8,1,4,0,100,4,4,,1,1,900,,aborted,stalled\n",
        )
        .unwrap();
        for (key, expected) in [
            ("measured_transfers", 4.0),
            ("measured_failed", 1.0),
            ("measured_as_payload", 2.0),
            ("measured_ms_p50", 5.0),
            ("measured_ms_p99", 19.0),
            ("measured_ideal_ms_p50", 4.0),
            ("measured_ideal_ms_p99", 9.0),
            // 3 - 2, 5 - 4, 19 - 9.
            ("overhead_ms_p50", 1.0),
            ("overhead_ms_p99", 10.0),
            ("queue_wait_ms_p50", 0.2),
            ("measured_exposed_ms_p50", 0.5),
            ("measured_exposed_ms_p99", 1.0),
            // 15,000 bytes in 27 ms.
            ("measured_bytes_per_s", 15_000.0 / 0.027),
        ] {
            let got = value(&lines, key);
            assert!(
                (got - expected).abs() < 1e-9 * expected.max(1.0),
                "{key}: {got}"
            );
        }
    }

    #[test]
    fn what_is_no_table_is_named() {
        for (rows, part) in [("", "no transfer"), ("1,x\n", "transfers.csv")] {
            let error = format!("{:#}", of(rows).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
        let nowhere = lines(Path::new("/nonexistent"), 1, 1.0).unwrap_err();
        assert!(format!("{nowhere:#}").contains("--run /nonexistent"));
        // Without a good row there is nothing to take percentiles of.
        let lines = of("4,4,pull,layer,8,1,4,0,100,4,4,,1,1,900,,expired,\n").unwrap();
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn the_time_of_a_prompt_is_not_taken_for_that_of_its_transfer() {
        let dir = tempfile::tempdir().unwrap();
        let head = HEAD.replace("bytes,frames", "bytes,early_bytes,frames");
        // The second was sent while its prompt was computed for 900 ms.
        let rows = "1,1,pull,layer,2,1,4,0,2000,0,4,4,100000,1,1,3000000,500000,acknowledged,\n\
                    2,2,pull,layer,4,1,4,0,4000,3000,4,4,1,1,1,900000000,1500000,acknowledged,\n";
        std::fs::write(dir.path().join(TRANSFERS), format!("{head}\n{rows}")).unwrap();
        let lines = lines(dir.path(), 1000, 1e6).unwrap();
        for (key, expected) in [
            ("measured_transfers", 2.0),
            ("measured_as_payload", 2.0),
            ("measured_streamed", 1.0),
            ("measured_ms_p99", 3.0),
            ("overhead_ms_p99", 1.0),
            ("measured_exposed_ms_p50", 0.5),
            ("measured_exposed_ms_p99", 1.5),
            ("measured_bytes_per_s", 2000.0 / 0.003),
        ] {
            let got = value(&lines, key);
            assert!(
                (got - expected).abs() < 1e-9 * expected.max(1.0),
                "{key}: {got}"
            );
        }
    }
}
