//! Arrivals that the recorder rounded.

use pb_contract::{Nanos, Stream};

use crate::trace::TraceRow;

/// Spreads arrivals over the recorder's bins: rows with one arrival time get seeded uniform times
/// between it and the next recorded one (the last bin is as long as the one before). Order and
/// totals stay, and rows without a time of their own keep that of the row before.
///
/// Mooncake's conversation trace is recorded in bins of three seconds with ten requests each:
/// replayed as it is, time to first token measures the queue behind simultaneous arrivals. A
/// report must say which of the two was used.
pub fn spread_arrivals(rows: &mut [TraceRow], seed: u64) {
    let mut stream = Stream::new(seed, "trace arrivals within a bin");
    let timed: Vec<usize> = (0..rows.len()).filter(|&at| !rows[at].untimed).collect();
    let arrivals: Vec<u64> = timed.iter().map(|&at| rows[at].arrival_ns.0).collect();
    let (mut width, mut start) = (0, 0);
    while start < timed.len() {
        let arrival = arrivals[start];
        let same = arrivals[start..]
            .iter()
            .take_while(|&&other| other == arrival);
        let end = start + same.count();
        if let Some(next) = arrivals.get(end) {
            width = next.saturating_sub(arrival);
        }
        let mut offsets: Vec<u64> = timed[start..end]
            .iter()
            .map(|_| stream.below(width.max(1)))
            .collect();
        offsets.sort_unstable();
        for (&at, offset) in timed[start..end].iter().zip(offsets) {
            rows[at].arrival_ns = Nanos(arrival + offset);
        }
        start = end;
    }
    let mut last = Nanos(0);
    for row in rows {
        match row.untimed {
            true => row.arrival_ns = last,
            false => last = row.arrival_ns,
        }
    }
}
