//! Planned against measured hits of a cell.
//!
//! A workload is built so that so many tokens are found in the cache. If another number was
//! found, the cell did not measure what it says, and is void. A request whose answer says
//! nothing about hits is unknown and is left out of both sums; it never counts as zero.

use std::collections::BTreeMap;

use pb_contract::{RequestId, RequestRow, RequestStatus};
use serde::{Deserialize, Serialize};

use crate::probe::HitSource;
use crate::stats::ServerWindow;

/// What the comparison says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitVerdict {
    /// As planned.
    Agrees,
    /// Not as planned: the cell is void.
    Differs {
        /// What was planned and what was found.
        reason: String,
    },
    /// Nothing can be compared: the cell makes no claim about the cache.
    Unknown {
        /// Why not.
        reason: String,
    },
}

/// Something that the reader of a hit rate must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitFlag {
    /// Preempted requests look up their own blocks again: hits of recomputation are counted as
    /// hits of the prefix.
    Preemptions {
        /// How many.
        count: u64,
    },
    /// Some requests do not say what was found.
    PartlyKnown {
        /// Requests that say it.
        known_rows: usize,
        /// Requests that ended well.
        ok_rows: usize,
    },
    /// The server looked up other tokens than those of the cell's requests.
    OtherTraffic {
        /// Prompt tokens that the server looked up.
        server_tokens: u64,
        /// Prompt tokens of the cell's requests.
        cell_tokens: u64,
    },
    /// The answers and the counters contradict each other.
    SourcesDiffer {
        /// Sum over the answers.
        usage_tokens: u64,
        /// By the counters.
        counter_tokens: u64,
    },
    /// The server was started again within the cell.
    Restarted,
}

/// Planned and measured hits of one cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitCheck {
    /// Planned for the requests that are compared.
    pub planned_hit_tokens: u64,
    /// Found; `None` when it is not known.
    pub measured_hit_tokens: Option<u64>,
    /// Requests that say what was found.
    pub known_rows: usize,
    /// Requests that ended well.
    pub ok_rows: usize,
    /// Where the measured tokens come from.
    pub source: Option<HitSource>,
    /// The comparison.
    pub verdict: HitVerdict,
    /// What else must be known.
    pub flags: Vec<HitFlag>,
}

/// Compares a cell's plan (tokens by request) with its rows, or, when no row says anything, with
/// the counters of `window`. A request that the plan does not name is planned to find nothing.
/// `tolerance_tokens` is the allowed difference of one request: 0 for a cache of blocks, since
/// its hits follow from the plan exactly.
pub fn check_hits(
    planned: &BTreeMap<RequestId, u32>,
    rows: &[RequestRow],
    window: Option<&ServerWindow>,
    tolerance_tokens: u32,
) -> HitCheck {
    let ok: Vec<&RequestRow> = rows
        .iter()
        .filter(|r| r.status == RequestStatus::Ok)
        .collect();
    let known: Vec<(&RequestRow, u32)> = ok
        .iter()
        .filter_map(|row| Some((*row, row.cached_tokens?)))
        .collect();
    let plan = |row: &RequestRow| planned.get(&row.request).copied().unwrap_or(0);
    let mut check = HitCheck {
        planned_hit_tokens: ok.iter().map(|row| u64::from(plan(row))).sum(),
        measured_hit_tokens: None,
        known_rows: known.len(),
        ok_rows: ok.len(),
        source: None,
        verdict: HitVerdict::Agrees,
        flags: Vec::new(),
    };
    flag(&mut check, rows, &known, window);
    if known.is_empty() {
        by_counters(&mut check, rows, window, tolerance_tokens);
        return check;
    }
    check.planned_hit_tokens = known.iter().map(|(row, _)| u64::from(plan(row))).sum();
    check.measured_hit_tokens = Some(known.iter().map(|(_, tokens)| u64::from(*tokens)).sum());
    check.source = Some(HitSource::Usage);
    let off = |(row, tokens): &&(&RequestRow, u32)| plan(row).abs_diff(*tokens) > tolerance_tokens;
    let wrong: Vec<_> = known.iter().filter(off).collect();
    if let Some((row, tokens)) = wrong.first() {
        let reason = format!(
            "{} of {} requests found other tokens than planned, {} in all where {} were planned; \
             the first is request {} with {tokens} where {} were planned",
            wrong.len(),
            known.len(),
            check.measured_hit_tokens.unwrap_or(0),
            check.planned_hit_tokens,
            row.request.0,
            plan(row)
        );
        check.verdict = HitVerdict::Differs { reason };
    }
    check
}

/// Prompt tokens that the cell's requests had, as far as every one of them says.
fn cell_tokens(rows: &[RequestRow]) -> Option<u64> {
    let sent = rows
        .iter()
        .filter(|r| r.status != RequestStatus::NotOffered);
    sent.map(|row| row.prompt_tokens.map(u64::from)).sum()
}

fn flag(
    check: &mut HitCheck,
    rows: &[RequestRow],
    known: &[(&RequestRow, u32)],
    window: Option<&ServerWindow>,
) {
    if !known.is_empty() && known.len() < check.ok_rows {
        let (known_rows, ok_rows) = (known.len(), check.ok_rows);
        check.flags.push(HitFlag::PartlyKnown {
            known_rows,
            ok_rows,
        });
    }
    let Some(window) = window else {
        return;
    };
    if window.restarted {
        check.flags.push(HitFlag::Restarted);
    }
    if let Some(count) = window.counters.preemptions.filter(|count| *count > 0) {
        check.flags.push(HitFlag::Preemptions { count });
    }
    let tokens = window.counters.query_tokens.zip(cell_tokens(rows));
    // vLLM looks nothing up while its cache is off, and the answers then agree that nothing was
    // found.
    let off = !known.is_empty() && known.iter().all(|(_, tokens)| *tokens == 0);
    let other = tokens.filter(|(server, cell)| server != cell && !(off && *server == 0));
    if let Some((server_tokens, cell_tokens)) = other {
        check.flags.push(HitFlag::OtherTraffic {
            server_tokens,
            cell_tokens,
        });
    } else if known.len() == rows.len()
        && let Some(counter_tokens) = window.counters.all_hit_tokens()
    {
        let usage_tokens = known.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        if usage_tokens != counter_tokens {
            check.flags.push(HitFlag::SourcesDiffer {
                usage_tokens,
                counter_tokens,
            });
        }
    }
}

/// Compares by counters: only when they speak of this cell's requests and of nothing else.
fn by_counters(
    check: &mut HitCheck,
    rows: &[RequestRow],
    window: Option<&ServerWindow>,
    tolerance_tokens: u32,
) {
    let unknown = |reason: &str| HitVerdict::Unknown {
        reason: reason.to_owned(),
    };
    let hits = window.and_then(|window| window.counters.all_hit_tokens());
    let Some(hits) = hits else {
        check.verdict = unknown("no answer says what was found, and the server has no counters");
        return;
    };
    let spoiled = |f: &HitFlag| matches!(f, HitFlag::OtherTraffic { .. } | HitFlag::Restarted);
    let preempted = |f: &HitFlag| matches!(f, HitFlag::Preemptions { .. });
    check.verdict = if check.ok_rows < rows.len() {
        unknown("no answer says what was found, and the counters include requests that failed")
    } else if check.flags.iter().any(spoiled) {
        unknown("no answer says what was found, and the counters include other requests")
    } else if cell_tokens(rows).is_none() {
        unknown("no answer says how long its prompt was, so the counters may include others")
    } else if check.flags.iter().any(preempted) {
        unknown("no answer says what was found, and the counters include recomputation")
    } else {
        check.measured_hit_tokens = Some(hits);
        check.source = Some(HitSource::Counters);
        let allowed = u64::from(tolerance_tokens) * rows.len() as u64;
        if hits.abs_diff(check.planned_hit_tokens) <= allowed {
            HitVerdict::Agrees
        } else {
            let reason = format!(
                "the counters show {hits} tokens found where {} were planned",
                check.planned_hit_tokens
            );
            HitVerdict::Differs { reason }
        }
    };
}
