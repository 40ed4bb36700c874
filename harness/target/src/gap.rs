//! Client latency minus server latency.
//!
//! The client's time to first token contains the network, the HTTP server and the client itself;
//! the engine's own histogram does not. The difference is printed for every run, because a
//! large one means that what was measured is not the engine (vllm #54628 saw 8 to 12 ms).

use pb_contract::Nanos;
use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, Recovered};

/// Client minus server time to first token, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftGap {
    /// Requests of the client.
    pub client_n: u64,
    /// Requests in the server's histogram.
    pub server_n: u64,
    /// The client's mean.
    pub client_mean_ms: Option<f64>,
    /// The server's mean: sum over count, no buckets.
    pub server_mean_ms: Option<f64>,
    /// Client minus server, of the means; absent when the two saw different requests.
    pub mean_ms: Option<f64>,
    /// Bounds of client minus server at the median; absent when the buckets do not allow it.
    pub p50_ms: Option<(f64, f64)>,
    /// Why something is absent.
    pub notes: Vec<String>,
}

impl TtftGap {
    /// From the client's times from sending to first token, and the server's histogram over the
    /// same window. The client's intended arrivals do not belong here: the server cannot know
    /// of a wait before the request was sent.
    pub fn new(client: &[Nanos], server: &Histogram) -> TtftGap {
        let mut notes = Vec::new();
        let n = client.len() as u64;
        let sum_ns: u128 = client.iter().map(|ns| u128::from(ns.0)).sum();
        let client_mean_ms = (n > 0).then(|| sum_ns as f64 / n as f64 / 1e6);
        let server_mean_ms = server.mean_s().map(|mean| mean * 1e3);
        let same = n == server.count;
        if !same {
            notes.push(format!(
                "the client has {n} first tokens, the server {}: something else used it, or \
                 requests failed",
                server.count
            ));
        }
        let mean_ms = client_mean_ms.zip(server_mean_ms).map(|(c, s)| c - s);
        let p50_ms = match server.quantile(0.5) {
            Recovered::Between { low_s, high_s } => nearest_rank_ms(client, 0.5)
                .map(|client| (client - high_s * 1e3, client - low_s * 1e3)),
            Recovered::NotRecoverable { why } => {
                notes.push(format!("the server's median is not recoverable: {why}"));
                None
            }
            Recovered::Empty => None,
        };
        TtftGap {
            client_n: n,
            server_n: server.count,
            client_mean_ms,
            server_mean_ms,
            mean_ms: mean_ms.filter(|_| same),
            p50_ms: p50_ms.filter(|_| same),
            notes,
        }
    }
}

fn nearest_rank_ms(values: &[Nanos], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).map(|ns| ns.as_millis_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Histogram {
        // 20, 30, 60 and 70 ms.
        Histogram {
            bounds_s: vec![0.01, 0.04, 0.08],
            cumulative: vec![0, 2, 4],
            count: 4,
            sum_s: 0.18,
        }
    }

    /// vllm #54628: the client's figure lies above the server's.
    #[test]
    fn row_48_client_minus_server_is_given_with_the_bucket_error() {
        let client = [30, 40, 70, 80].map(Nanos::from_millis);
        let gap = TtftGap::new(&client, &server());
        assert_eq!(
            (gap.client_mean_ms, gap.server_mean_ms),
            (Some(55.0), Some(45.0))
        );
        assert_eq!(gap.mean_ms, Some(10.0));
        // The client's median is 40 ms; the server's lies in (10, 40] ms.
        assert_eq!(gap.p50_ms, Some((0.0, 30.0)));
        assert!(gap.notes.is_empty(), "{:?}", gap.notes);
    }

    #[test]
    fn different_populations_give_no_difference() {
        let gap = TtftGap::new(&[Nanos::from_millis(30)], &server());
        assert_eq!((gap.mean_ms, gap.p50_ms), (None, None));
        assert!(gap.notes[0].contains("client has 1 first tokens, the server 4"));
        let none = TtftGap::new(
            &[],
            &Histogram {
                count: 0,
                cumulative: vec![0; 3],
                ..server()
            },
        );
        assert_eq!((none.mean_ms, none.client_mean_ms), (None, None));
    }

    #[test]
    fn a_coarse_histogram_gives_the_mean_only() {
        let coarse = Histogram {
            bounds_s: vec![0.3],
            cumulative: vec![4],
            ..server()
        };
        let gap = TtftGap::new(&[30, 40, 70, 80].map(Nanos::from_millis), &coarse);
        assert_eq!((gap.mean_ms, gap.p50_ms), (Some(10.0), None));
        assert!(gap.notes[0].contains("not recoverable"), "{:?}", gap.notes);
    }
}
