//! Objectives: when a request counts as good.

use std::str::FromStr;

use pb_contract::{RequestRow, RequestStatus, TokenRow};
use pb_record::metrics::{Bundle, request_metrics, token_itl};
use pb_stats::nearest_rank;
use serde::Serialize;

/// What an objective limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limited {
    /// Time to the first token.
    Ttft,
    /// 99th percentile of the token latencies within the request.
    Itl,
    /// Time per output token after the first.
    Tpot,
    /// Time to the last token.
    E2e,
}

/// One limit that a good request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Objective {
    /// What is limited.
    pub(crate) limited: Limited,
    /// The largest value that is good.
    pub(crate) limit_ns: u64,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "`{text}` is no limit: write NAME:MS with NAME one of ttft, itl, tpot, e2el, as \
                 in ttft:200"
            )
        };
        let (name, ms) = text.split_once(':').ok_or_else(error)?;
        let limited = match name {
            "ttft" => Limited::Ttft,
            "itl" => Limited::Itl,
            "tpot" => Limited::Tpot,
            "e2el" => Limited::E2e,
            _ => return Err(error()),
        };
        match ms.parse::<f64>() {
            Ok(ms) if ms.is_finite() && ms > 0.0 => Ok(Objective {
                limited,
                limit_ns: (ms * 1e6).round() as u64,
            }),
            _ => Err(error()),
        }
    }
}

/// Whether a request ended well and within every limit. An answer of one token has no time
/// between tokens and meets a limit on it; a value that is absent for another reason misses.
pub(crate) fn is_good(row: &RequestRow, tokens: &[TokenRow], objectives: &[Objective]) -> bool {
    let metrics = request_metrics(row);
    let single = row.streamed_tokens <= 1 && !metrics.hidden_tokens;
    let value = |limited| match limited {
        Limited::Ttft => metrics.ttft_ns,
        Limited::E2e => metrics.e2e_ns,
        Limited::Itl | Limited::Tpot if single => Some(0),
        Limited::Tpot => metrics.tpot_ns,
        Limited::Itl => {
            let mut itl = token_itl(tokens, Bundle::Even);
            itl.sort_unstable();
            nearest_rank(&itl, 0.99)
        }
    };
    let met = |o: &Objective| value(o.limited).is_some_and(|ns| ns <= o.limit_ns);
    row.status == RequestStatus::Ok && objectives.iter().all(met)
}
