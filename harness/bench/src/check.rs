//! Whether the files of a run tell one story.
//!
//! The rows are held against one another as they are read (`pb_record::check`). Here they are held
//! against the rest of the directory: the plan in the manifest, the conditions, the document and
//! the histograms that were made of them. What does not fit makes a run void: its numbers are
//! still shown, because a damaged run has to be understood, and support no claim.

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RequestRow, RequestStatus, RunManifest};
use pb_record::hlog::Logs;
use pb_record::{Fault, Findings};
use serde::Deserialize;
use serde_json::Value;

use crate::conditions::Conditions;
use crate::document::Document;
use crate::tally::WARMUP_ARM;

/// Keys of the document that depend on more than the rows and the conditions.
const JUDGED: [&str; 4] = ["validity", "warnings", "state", "interrupted"];

/// By how much two readings of one number in a JSON file may differ.
const PARSED: f64 = 1e-12;

/// What the manifest says of the schedule.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Plan {
    /// Requests of this part.
    #[serde(rename = "requests_sent")]
    pub(crate) sent: u64,
    facts: PlanFacts,
}

/// The whole schedule.
#[derive(Clone, Debug, Deserialize)]
struct PlanFacts {
    dataset: String,
    arrival: String,
    requests: u64,
    sessions: u64,
    input_tokens: u64,
    output_tokens: u64,
}

impl Plan {
    /// As the manifest tells it; `None` where it does not.
    pub(crate) fn of(manifest: &RunManifest) -> Option<Plan> {
        Plan::deserialize(manifest.workload.get("schedule")?).ok()
    }

    /// Every request is due whatever the server does, so every one has a row in the end.
    fn is_open(&self) -> bool {
        let facts = &self.facts;
        facts.arrival != "closed" && facts.sessions == 0 && facts.dataset != "interference"
    }

    /// One closed loop, whose requests are taken in order.
    fn is_closed(&self) -> bool {
        self.facts.arrival == "closed" && self.facts.sessions == 0
    }
}

/// What is gathered of the rows for the checks; eight bytes a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    ids: Vec<u64>,
    warmups: u64,
    /// Requests that ended well and say what they found in the cache, and what they found.
    known: u64,
    cached: u64,
    input: u64,
    output: u64,
    first: Option<(Nanos, u64)>,
}

impl Seen {
    pub(crate) fn add(&mut self, row: &RequestRow) {
        if row.arm == WARMUP_ARM {
            self.warmups += 1;
            return;
        }
        let found = row
            .cached_tokens
            .filter(|_| row.status == RequestStatus::Ok);
        self.known += u64::from(found.is_some());
        self.cached += u64::from(found.unwrap_or(0));
        self.input += u64::from(row.prompt_tokens_planned);
        self.output += u64::from(row.max_tokens);
        let own = (row.intended_ns, row.request.0);
        self.first = Some(self.first.map_or(own, |first| first.min(own)));
        self.ids.push(row.request.0);
    }

    /// Requests with a row, without the warm-up.
    pub(crate) fn rows(&self) -> u64 {
        self.ids.len() as u64
    }

    /// The earliest intended arrival.
    pub(crate) fn first_arrival(&self) -> Option<Nanos> {
        self.first.map(|(at, _)| at)
    }
}

/// Holds the rows of a run against its manifest and its conditions.
pub(crate) fn check_run(
    manifest: &RunManifest,
    conditions: &Conditions,
    seen: &mut Seen,
    findings: &mut Findings,
) {
    if let Some(plan) = Plan::of(manifest) {
        check_plan(&plan, manifest, conditions, seen, findings);
    }
    let start = conditions.frame.start;
    if let Some((at, id)) = seen.first.filter(|(at, _)| *at < start) {
        findings.add(Fault::BeforeStart, || {
            format!(
                "request {id} was due at {at_ns}, the start is {}",
                start.0,
                at_ns = at.0
            )
        });
    }
    let (seed, stored) = (manifest.seed, conditions.frame.seed);
    if seed != stored {
        findings.add(Fault::Receipts, || {
            format!("manifest.json has seed {seed}, conditions.json {stored}")
        });
    }
    let (hashes, stored) = (&manifest.schedule_sha256, &conditions.frame.schedule_sha256);
    if !hashes.is_empty() && hashes.values().all(|hash| hash != stored) {
        findings.add(Fault::Receipts, || {
            format!("conditions.json has schedule_sha256 {stored:?}, manifest.json another one")
        });
    }
    check_counts(manifest, conditions, seen, findings);
}

/// Counts that `conditions.json` keeps of the rows.
fn check_counts(
    manifest: &RunManifest,
    conditions: &Conditions,
    seen: &Seen,
    findings: &mut Findings,
) {
    let mut differs = |what: &str, stored: u64, found: u64| {
        if stored != found {
            findings.add(Fault::Receipts, || {
                format!("conditions.json has {stored} {what}, the rows give {found}")
            });
        }
    };
    // A joined run has no rows of the warm-ups of its parts.
    if conditions.shards.is_empty() {
        differs(
            "warm-up requests",
            conditions.load.warmup_requests,
            seen.warmups,
        );
    } else {
        let given = conditions.shards.iter().map(|shard| shard.rows).sum();
        differs("rows of shards", given, seen.rows());
    }
    let cache = &conditions.frame.cache;
    if manifest.state != RunState::Running && cache.known_rows > 0 {
        differs(
            "requests that say what they found cached",
            cache.known_rows as u64,
            seen.known,
        );
        let measured = cache.measured_hit_tokens.filter(|_| seen.known > 0);
        differs(
            "tokens found cached",
            measured.unwrap_or(seen.cached),
            seen.cached,
        );
    }
}

fn check_plan(
    plan: &Plan,
    manifest: &RunManifest,
    conditions: &Conditions,
    seen: &mut Seen,
    findings: &mut Findings,
) {
    let (rows, facts) = (seen.rows(), &plan.facts);
    let whole = manifest.state == RunState::Complete
        && !conditions.interrupted
        && !conditions.partial
        && plan.is_open();
    if rows > plan.sent || (whole && rows < plan.sent) {
        let planned = plan.sent;
        findings.add(Fault::RequestCount, || {
            format!("{rows} requests have rows, {planned} were planned")
        });
    }
    seen.ids.sort_unstable();
    let is_part = conditions.shard.is_some();
    let all = rows == facts.requests && !is_part;
    // Rows come as requests end, so one that was killed may lack a middle one.
    let ended = manifest.state != RunState::Running;
    let in_order = plan.is_closed() && ended && conditions.shards.is_empty();
    let from = match seen.ids.first() {
        Some(&first) if is_part => first,
        _ => 0,
    };
    // Of what was not taken out of the middle, the number follows from the place.
    let expected = (all || (whole && !is_part) || in_order).then_some(from);
    let off = |from: u64| {
        let mut pairs = (from..).zip(&seen.ids);
        pairs.find(|(expected, found)| expected != *found)
    };
    if let Some((lacks, found)) = expected.and_then(off) {
        findings.add(Fault::RequestNumbers, || {
            format!("request {lacks} has no row, the next one is {found}")
        });
    }
    if let Some(beyond) = seen.ids.last().filter(|id| **id >= facts.requests) {
        let planned = facts.requests;
        findings.add(Fault::RequestNumbers, || {
            format!("request {beyond} is beyond the {planned} that were planned")
        });
    }
    for (what, sum, planned) in [
        ("prompt", seen.input, facts.input_tokens),
        ("output", seen.output, facts.output_tokens),
    ] {
        if all && sum != planned {
            findings.add(Fault::Lengths, || {
                format!("the rows ask for {sum} {what} tokens, the plan for {planned}")
            });
        }
    }
}

/// Holds a stored document against the one that the rows give.
pub(crate) fn check_document(stored: &[u8], document: &Document, findings: &mut Findings) {
    let stored: Value = match serde_json::from_slice(stored) {
        Ok(stored) => stored,
        Err(error) => return findings.add(Fault::Document, || format!("it is no JSON: {error}")),
    };
    // Another version of this program may count otherwise.
    if stored["identity"]["tool"] != env!("CARGO_PKG_VERSION") {
        return;
    }
    let made = serde_json::to_value(document).unwrap_or_default();
    let (Value::Object(stored), Value::Object(made)) = (stored, made) else {
        return findings.add(Fault::Document, || "it is no document".to_owned());
    };
    for (key, made) in made
        .iter()
        .filter(|(key, _)| !JUDGED.contains(&key.as_str()))
    {
        // A document of an earlier day has fewer keys.
        if let Some(stored) = stored.get(key) {
            compare(key, stored, made, findings);
        }
    }
}

/// Notes every value of `stored` that is another one in `made`.
fn compare(place: &str, stored: &Value, made: &Value, findings: &mut Findings) {
    match (stored, made) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, made) in b {
                let stored = a.get(key).unwrap_or(made);
                compare(&format!("{place}.{key}"), stored, made, findings);
            }
            for key in a.keys().filter(|key| !b.contains_key(*key)) {
                findings.add(Fault::Document, || {
                    format!("{place}.{key} is not in the rows")
                });
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (stored, made)) in a.iter().zip(b).enumerate() {
                compare(&format!("{place}[{number}]"), stored, made, findings);
            }
        }
        _ if is_same(stored, made) => {}
        _ => findings.add(Fault::Document, || {
            format!(
                "{place} is {}, the rows give {}",
                short(stored),
                short(made)
            )
        }),
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= PARSED * a.abs().max(b.abs()),
        _ => a == b,
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// Holds the histogram logs of a directory against those that the rows give.
pub(crate) fn check_logs(dir: &std::path::Path, logs: &Logs, findings: &mut Findings) {
    let made = logs.values();
    for (file, stored) in pb_record::hlog::values_in(dir) {
        let given = made.iter().find(|(name, _)| *name == file);
        let given = given.map_or(0, |(_, values)| *values);
        match stored {
            Ok(stored) if stored == given => {}
            Ok(stored) => findings.add(Fault::Histograms, || {
                format!("{file} has {stored} values, the rows give {given}")
            }),
            Err(reason) => findings.add(Fault::Histograms, || format!("{file}: {reason}")),
        }
    }
}

#[cfg(test)]
#[path = "check_planted.rs"]
mod planted;
#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
