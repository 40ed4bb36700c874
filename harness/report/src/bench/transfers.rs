//! KV transfers of a run with separate prefill and decode workers: a row each in `transfers.csv`.

use std::collections::BTreeMap;

use pb_contract::TransferRow;

use super::sections::{SPREAD, spread_row};
use crate::plots::{Figure, WIDTH};
use crate::sections::Section;
use crate::svg::Svg;
use crate::svg::frame::{Frame, arm_class};
use crate::svg::scale::Scale;
use crate::table::Table;
use pb_bench::Spread;

const HEIGHT: f64 = 260.0;

/// Whether it moved anything in a time that can be divided by.
fn rate(one: &TransferRow) -> Option<f64> {
    (one.total_ns > 0 && one.bytes > 0).then(|| one.bytes as f64 / (one.total_ns as f64 / 1e9))
}

/// The section; absent without transfers.
pub(super) fn section(all: &[TransferRow]) -> Option<Section> {
    if all.is_empty() {
        return None;
    }
    let mut section = Section::new("transfers", "KV transfers");
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for one in all {
        *ends.entry(one.ended.name()).or_default() += 1;
    }
    let ends: Vec<String> = ends.iter().map(|(end, n)| format!("{n} {end}")).collect();
    let bytes: u64 = all.iter().fold(0, |sum, one| sum.saturating_add(one.bytes));
    let exposed = all.iter().filter_map(|one| one.exposed_ns);
    let hidden = exposed.filter(|ns| *ns == 0).count();
    section.text.push(format!(
        "{} transfers ({}), {:.1} MiB. Exposed is the part that lay behind the end of the prefill \
         and so delayed the second token; {hidden} had none.",
        all.len(),
        ends.join(", "),
        bytes as f64 / f64::from(1 << 20)
    ));
    let mut times = Table::new(
        "Time of a transfer, all of them, however they ended",
        1,
        &SPREAD,
    );
    type Of = fn(&TransferRow) -> Option<u64>;
    let rows: [(&str, Of); 5] = [
        ("total", |one| Some(one.total_ns)),
        ("exposed", |one| one.exposed_ns),
        ("waiting to be asked", |one| one.queue_wait_ns),
        ("reading memory", |one| Some(one.copy_ns)),
        ("on the connection", |one| Some(one.wire_ns)),
    ];
    for (name, of) in rows {
        times.push(spread_row(
            name,
            Spread::of(all.iter().filter_map(of).collect()),
        ));
    }
    section.tables.push(times);
    Some(section)
}

/// Time against bytes; absent when nothing was moved.
pub(super) fn figure(all: &[TransferRow]) -> Option<Figure> {
    let moved: Vec<&TransferRow> = all.iter().filter(|one| rate(one).is_some()).collect();
    if moved.is_empty() {
        return None;
    }
    let title = "Time of a transfer by its size".to_owned();
    let mut rates: Vec<f64> = moved.iter().filter_map(|one| rate(one)).collect();
    rates.sort_by(f64::total_cmp);
    // Nearest rank: the smallest that half of them do not exceed.
    let median = rates[(rates.len() - 1) / 2];
    let words = format!(
        "A mark a transfer; the median rate is {} MiB a second.",
        crate::format::significant(median / f64::from(1 << 20))
    );
    let mut svg = Svg::new("transfers", WIDTH, HEIGHT, &title, &words);
    let mib = |one: &TransferRow| one.bytes as f64 / f64::from(1 << 20);
    let ms = |one: &TransferRow| one.total_ns as f64 / 1e6;
    let x = Scale::log(moved.iter().map(|one| mib(one)));
    let y = Scale::log(moved.iter().map(|one| ms(one)));
    let frame = Frame::new(&svg, 14.0, HEIGHT, x, y);
    frame.draw(&mut svg, "MiB (log)", "total, ms (log)");
    let at = |one: &&TransferRow| (frame.x.px(mib(one)).round(), frame.y.px(ms(one)).round());
    let points: Vec<(f64, f64)> = moved.iter().map(at).collect();
    svg.marks(&arm_class("cloud", 0), &points, 3.0);
    Some(Figure {
        title,
        caption: format!("{words} A rate is bytes over the whole time from offer to end."),
        svg: svg.finish(),
    })
}

#[cfg(test)]
mod tests {
    use pb_contract::TransferEnd;

    use super::*;

    fn note(bytes: u64, total_ms: u64, exposed_ms: Option<u64>) -> TransferRow {
        TransferRow {
            tokens: 16,
            bytes,
            wire_ns: total_ms * 1_000_000,
            total_ns: total_ms * 1_000_000,
            exposed_ns: exposed_ms.map(|ms| ms * 1_000_000),
            ended: TransferEnd::Acknowledged,
            ..TransferRow::default()
        }
    }

    #[test]
    fn transfers_are_counted_and_timed() {
        assert!(section(&[]).is_none() && figure(&[]).is_none());
        let all = [note(1 << 20, 10, Some(0)), note(3 << 20, 30, Some(20))];
        let section = section(&all).unwrap();
        let text = &section.text[0];
        assert!(
            text.contains("2 transfers (2 acknowledged), 4.0 MiB"),
            "{text}"
        );
        assert!(text.contains("1 had none"), "{text}");
        // Of 10 and 30 ms the nearest-rank p50 is 10, the largest 30, the mean 20.
        let row = &section.tables[0].rows[0];
        assert_eq!(row[..4], ["total", "2", "20.0", "10.0"].map(str::to_owned));
        assert_eq!(row[8], "30.0");
        let figure = figure(&all).unwrap();
        // 1 MiB in 10 ms and 3 MiB in 30 ms are both 100 MiB/s.
        assert!(
            figure.caption.contains("100 MiB a second"),
            "{}",
            figure.caption
        );
        assert!(super::figure(&[note(0, 10, None)]).is_none());
    }
}
