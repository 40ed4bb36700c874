//! Whether background decodes were all there while long prompts were computed.
//!
//! A run whose slots are full looks immune: the long prompts wait, the decodes go on undisturbed,
//! and the stall that was to be measured never happens (pegainfer #470). So a long prompt counts
//! only when every background stream was between its first and its last token from the moment
//! the prompt was sent to its own first token. That is seen from the client, whatever the server:
//! a server that pauses a stream and catches up before its next token is not found out.

use pb_contract::{Nanos, RequestRow};

/// Class of the decodes in the background.
const BACKGROUND: &str = "background";

/// Class of the prompts that come into them.
const LONG_PROMPT: &str = "long_prompt";

/// Share of a long prompt's time in which all streams must decode.
const TIME_SHARE: f64 = 0.8;

/// Share of the long prompts that must be so.
const PROMPT_SHARE: f64 = 0.8;

/// What the rows show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Long prompts that got a first token.
    pub(crate) prompts: usize,
    /// Of these, with every background stream decoding for most of the time.
    pub(crate) covered: usize,
}

impl Coverage {
    /// From the rows of a run with so many background streams.
    pub(crate) fn of(rows: &[RequestRow], streams: usize) -> Coverage {
        let class = |name: &'static str| rows.iter().filter(move |row| row.class == name);
        let decoding: Vec<(Nanos, Nanos)> = class(BACKGROUND)
            .filter_map(|row| Some((row.first_token_ns?, row.last_token_ns?)))
            .collect();
        let prefills: Vec<(Nanos, Nanos)> = class(LONG_PROMPT)
            .filter_map(|row| Some((row.sent_ns?, row.first_token_ns?)))
            .collect();
        let is_covered =
            |prefill: &&(Nanos, Nanos)| full_share(&decoding, **prefill, streams) >= TIME_SHARE;
        Coverage {
            prompts: prefills.len(),
            covered: prefills.iter().filter(is_covered).count(),
        }
    }

    /// Why the run must not be used, if that is so.
    pub(crate) fn reason(&self, streams: usize) -> Option<String> {
        let enough = self.covered as f64 >= PROMPT_SHARE * self.prompts as f64;
        (!enough).then(|| {
            format!(
                "interference: only {} of {} long prompts were computed while all {streams} \
                 background streams decoded; give the server more slots or lower the rate",
                self.covered, self.prompts
            )
        })
    }
}

/// The share of `from..to` in which at least `streams` of the spans are open.
fn full_share(spans: &[(Nanos, Nanos)], (from, to): (Nanos, Nanos), streams: usize) -> f64 {
    let whole = to.saturating_sub(from);
    if whole == Nanos::ZERO {
        return 0.0;
    }
    let mut edges: Vec<(Nanos, bool)> = Vec::new();
    for &(start, end) in spans {
        let (start, end) = (start.max(from), end.min(to));
        if start < end {
            edges.extend([(start, true), (end, false)]);
        }
    }
    // At one instant a span that begins comes before one that ends: they touch.
    edges.sort_unstable_by_key(|&(at, opens)| (at, !opens));
    let (mut open, mut since, mut full) = (0_usize, from, Nanos::ZERO);
    for (at, opens) in edges {
        if open >= streams {
            full += at.saturating_sub(since);
        }
        since = at;
        open = if opens { open + 1 } else { open - 1 };
    }
    full.0 as f64 / whole.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(class: &str, sent: u64, first: u64, last: u64) -> RequestRow {
        let at = |ms: u64| Nanos::from_millis(ms);
        let row = serde_json::json!({
            "arm": "target", "block": 0, "request": sent, "class": class,
            "intended_ns": at(sent), "sent_ns": at(sent), "first_token_ns": at(first),
            "last_token_ns": at(last), "status": "ok", "prompt_tokens_planned": 1,
            "max_tokens": 9, "streamed_tokens": 9,
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_prompt_counts_when_all_streams_decode_while_it_is_computed() {
        let background = [
            row("background", 0, 10, 1000),
            row("background", 0, 10, 500),
            // The second slot goes on after a pause of 20 ms.
            row("background", 500, 520, 1000),
        ];
        let of = |sent, first| {
            let mut rows = background.to_vec();
            rows.push(row("long_prompt", sent, first, first + 5));
            Coverage::of(&rows, 2)
        };
        assert_eq!(
            of(100, 300),
            Coverage {
                prompts: 1,
                covered: 1
            }
        );
        // 20 of 200 ms are missing: a tenth.
        assert_eq!(of(400, 600).covered, 1);
        // 20 of 60 ms are missing: a third.
        assert_eq!(of(490, 550).covered, 0);
        assert_eq!(of(1000, 1200).covered, 0);
        assert_eq!(of(100, 300).reason(2), None);
    }

    #[test]
    fn full_slots_are_found_out() {
        // Two of three streams have a slot; the long prompt waits for one and is computed when
        // nothing decodes: the decodes look undisturbed.
        let rows = [
            row("background", 0, 10, 400),
            row("background", 0, 10, 400),
            row("background", 0, 410, 800),
            row("long_prompt", 50, 900, 905),
        ];
        let coverage = Coverage::of(&rows, 3);
        assert_eq!(
            coverage,
            Coverage {
                prompts: 1,
                covered: 0
            }
        );
        let reason = coverage.reason(3).unwrap();
        assert!(reason.contains("0 of 1 long prompts"), "{reason}");
    }

    #[test]
    fn without_long_prompts_nothing_is_claimed() {
        let coverage = Coverage::of(&[row("background", 0, 10, 400)], 1);
        assert_eq!((coverage.prompts, coverage.reason(1)), (0, None));
    }

    #[test]
    fn shares_are_of_the_time_asked_about() {
        let at = |a, b| (Nanos(a), Nanos(b));
        for (spans, streams, share) in [
            (vec![at(0, 100)], 1, 1.0),
            (vec![at(0, 50)], 1, 0.5),
            (vec![at(0, 50), at(50, 100)], 1, 1.0),
            (vec![at(0, 60), at(40, 100)], 2, 0.2),
            (vec![at(200, 300)], 1, 0.0),
            (vec![], 1, 0.0),
        ] {
            let got = full_share(&spans, at(0, 100), streams);
            assert!((got - share).abs() < 1e-9, "{spans:?}: {got}");
        }
    }
}
