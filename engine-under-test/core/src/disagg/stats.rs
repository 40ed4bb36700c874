//! What transfers took.

use std::collections::{BTreeMap, VecDeque};

use pb_transfer::{Ended, TransferRow};

/// Transfers of a window.
const WINDOW: usize = 1024;

/// How fast the last transfers of one direction were, at most 1024 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// The smallest latency that 99 % of them do not exceed, ns; 0 without transfers.
    pub latency_ns_p99: u64,
    /// Their bytes by the sum of their times, bytes per second: what one transfer gets on average,
    /// and less than the link carries when there are several at a time. 0 without transfers.
    pub bytes_per_sec: f64,
}

/// The last transfers of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Latency, time of transfer, both ns, and bytes of each, oldest first.
    last: VecDeque<[u64; 3]>,
}

impl Window {
    /// Takes one more transfer in; the pace of those that the window has then.
    fn push(&mut self, latency_ns: u64, transfer_ns: u64, bytes: u64) -> Pace {
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back([latency_ns, transfer_ns, bytes]);
        let mut latencies: Vec<u64> = self.last.iter().map(|t| t[0]).collect();
        latencies.sort_unstable();
        let rank = (latencies.len() * 99).div_ceil(100);
        let sum = |i: usize| self.last.iter().map(|t| t[i]).sum::<u64>() as f64;
        Pace {
            latency_ns_p99: latencies[rank - 1],
            bytes_per_sec: sum(2) * 1e9 / sum(1).max(1.0),
        }
    }
}

/// Counts since the start, and the state now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvStats {
    /// Transfers from here that were acknowledged: latency from the offer to the acknowledgement,
    /// time from the first request for cells.
    pub sent: Pace,
    /// Transfers that have arrived here: latency from the claim to the start, time from the room.
    pub received: Pace,
    /// Transfers from here by how they ended.
    pub sent_by_end: BTreeMap<&'static str, u64>,
    /// Bytes sent, cells that were sent again included.
    pub sent_bytes: u64,
    /// Transfers that have arrived here.
    pub received_transfers: u64,
    /// Bytes that have arrived here for them.
    pub received_bytes: u64,
    /// Requests whose KV did not come, by cause.
    pub failed_by_cause: BTreeMap<&'static str, u64>,
    /// Of these, requests that were computed here instead.
    pub recomputed: u64,
    /// Transfers that wait: for a claim, or for room.
    pub queue_depth: usize,
    /// Requests whose blocks are held for another engine.
    pub exports: usize,
    /// Requests whose KV is on its way here.
    pub imports: usize,
}

impl KvStats {
    /// A transfer from here has ended.
    pub(super) fn sent(&mut self, window: &mut Window, row: &TransferRow) {
        *self.sent_by_end.entry(row.ended.name()).or_default() += 1;
        self.sent_bytes += row.bytes;
        if row.ended == Ended::Acknowledged {
            let waited = row.queue_wait_ns.unwrap_or(0);
            let transfer_ns = row.total_ns.saturating_sub(waited);
            self.sent = window.push(row.total_ns, transfer_ns, row.bytes);
        }
    }

    /// A transfer has arrived here.
    pub(super) fn received(
        &mut self,
        window: &mut Window,
        [total_ns, transfer_ns, bytes]: [u64; 3],
    ) {
        self.received_transfers += 1;
        self.received_bytes += bytes;
        self.received = window.push(total_ns, transfer_ns, bytes);
    }

    /// The KV of a request does not come.
    pub(super) fn failed(&mut self, cause: &'static str) {
        *self.failed_by_cause.entry(cause).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_that_of_the_last_transfers() {
        let mut window = Window::default();
        let mut pace = Pace::default();
        // Of 1 to 100 the 99th smallest is 99; of 1 to 3 the third.
        for latency in 1..=100 {
            pace = window.push(latency, 500_000_000, 1_000);
            if latency == 3 {
                assert_eq!(pace.latency_ns_p99, 3);
            }
        }
        // 1000 bytes in half a second each.
        assert_eq!((pace.latency_ns_p99, pace.bytes_per_sec), (99, 2_000.0));
        for _ in 0..1024 {
            pace = window.push(7, 1, 1);
        }
        assert_eq!(pace.latency_ns_p99, 7, "the first ones are forgotten");
    }
}
