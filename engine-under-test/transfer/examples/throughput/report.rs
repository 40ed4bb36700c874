//! Rates and ratios.

use std::fmt::Write;

use pb_contract::{Clock, Nanos, WallClock};
use pb_stats::{Estimate, mean_interval, paired_ratio};
use pb_transfer::{TransferId, checksum};
use serde_json::json;

use crate::Outcome;
use crate::arms::Arm;
use crate::job::{Job, Payload};

const CONFIDENCE: f64 = 0.95;

/// What was measured, in the order of the repeats.
#[derive(Default)]
pub(crate) struct Samples(Vec<(Job, Arm, Vec<Nanos>)>);

impl Samples {
    pub(crate) fn add(&mut self, job: Job, arm: Arm, taken: Nanos) {
        let same = |(j, a, _): &&mut (Job, Arm, Vec<Nanos>)| *j == job && *a == arm;
        match self.0.iter_mut().find(same) {
            Some((_, _, times)) => times.push(taken),
            None => self.0.push((job, arm, vec![taken])),
        }
    }

    /// Rates of each repeat, GB/s.
    fn rates(&self, job: Job, arm: Arm) -> Option<Vec<f64>> {
        let found = self.0.iter().find(|(j, a, _)| *j == job && *a == arm)?;
        let bytes = job.payload.bytes() as f64;
        Some(found.2.iter().map(|t| bytes / t.0.max(1) as f64).collect())
    }

    /// Each arm's rates, and its ratios to `memcpy` and `socket`.
    fn rows(&self, payload: Payload) -> Outcome<Vec<Row>> {
        let plain = |arm| {
            let verified = false;
            self.rates(Job { payload, verified }, arm)
        };
        let memcpy = plain(Arm::Memcpy).ok_or("no memcpy")?;
        let socket = plain(Arm::Socket).ok_or("no socket")?;
        let mut rows = Vec::new();
        for verified in [false, true] {
            for arm in Arm::all() {
                let Some(rates) = self.rates(Job { payload, verified }, arm) else {
                    continue;
                };
                let sums = if verified { " +sums" } else { "" };
                rows.push(Row {
                    arm: format!("{}{sums}", arm.name()),
                    rate: mean_interval(&rates, CONFIDENCE)?,
                    of_memcpy: paired_ratio(&memcpy, &rates, CONFIDENCE)?,
                    of_socket: paired_ratio(&socket, &rates, CONFIDENCE)?,
                    rates,
                });
            }
        }
        Ok(rows)
    }

    pub(crate) fn table(&self, payloads: &[Payload], seal: &[f64]) -> Outcome<String> {
        let mut out = format!(
            "{:<20} {:<14} {:>15} {:>10} {:>24}\n",
            "payload", "arm", "GB/s", "of memcpy", "of socket (95 %)"
        );
        for payload in payloads {
            for row in self.rows(*payload)? {
                let (rate, socket) = (row.rate, row.of_socket);
                writeln!(
                    out,
                    "{:<20} {:<14} {:>6.2} +- {:>5.2} {:>10.2} {:>8.2} ({:>5.2} .. {:>5.2})",
                    payload.name(),
                    row.arm,
                    rate.point,
                    rate.high - rate.point,
                    row.of_memcpy.point,
                    socket.point,
                    socket.low,
                    socket.high
                )?;
            }
        }
        let seal = mean_interval(seal, CONFIDENCE)?;
        let reach = seal.high - seal.point;
        writeln!(
            out,
            "\nchecksums of 64 KiB cells: {:.1} +- {reach:.1} GB/s",
            seal.point
        )?;
        writeln!(
            out,
            "\n{:<20} {:>8} {:>8} {:>16} {:>16}",
            "payload", "frames", "cells", "descriptors", "KiB each"
        )?;
        for payload in payloads {
            let [cells, merged] = payload.descriptors();
            writeln!(
                out,
                "{:<20} {:>8} {cells:>8} {merged:>16} {:>16.1}",
                payload.name(),
                payload.frames().len(),
                payload.bytes() as f64 / 1024.0 / merged as f64
            )?;
        }
        Ok(out)
    }

    pub(crate) fn json(&self, payloads: &[Payload], seal: &[f64]) -> Outcome<String> {
        let mut all = Vec::new();
        for payload in payloads {
            let [cells, descriptors] = payload.descriptors();
            let arms: Vec<_> = self.rows(*payload)?.iter().map(Row::json).collect();
            all.push(json!({
                "payload": payload.name(),
                "bytes": payload.bytes(),
                "frames": payload.frames().len(),
                "cells": cells,
                "descriptors": descriptors,
                "arms": arms,
            }));
        }
        let all = json!({ "payloads": all, "checksum_gb_per_s": seal });
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }
}

struct Row {
    arm: String,
    rates: Vec<f64>,
    rate: Estimate,
    of_memcpy: Estimate,
    of_socket: Estimate,
}

impl Row {
    fn json(&self) -> serde_json::Value {
        let ratio = |e: &Estimate| json!({ "ratio": e.point, "low": e.low, "high": e.high });
        json!({
            "arm": self.arm,
            "gb_per_s": self.rates,
            "of_memcpy": ratio(&self.of_memcpy),
            "of_socket": ratio(&self.of_socket),
        })
    }
}

/// How fast cells of 64 KiB are summed, GB/s: the source's part that is done while it computes.
pub(crate) fn seal_rate(repeats: usize) -> Vec<f64> {
    let bytes: Vec<u8> = (0..64 << 20).map(|i| ((i * 31) >> 7) as u8).collect();
    let once = |_| {
        let start = WallClock.now();
        for (i, cell) in bytes.chunks(64 << 10).enumerate() {
            std::hint::black_box(checksum(TransferId(1), i as u32, 0, cell));
        }
        bytes.len() as f64 / (WallClock.now() - start).0 as f64
    };
    (0..repeats).map(once).collect()
}
