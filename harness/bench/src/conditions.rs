//! What the numbers of a run rest on beside its rows: what was asked for, of whom, in which state
//! of the cache, measured by which client.
//!
//! Stored as `conditions.json` in the run directory, so that the document can be made again from
//! the rows, by a later version of this program or after shards were joined.

use std::collections::BTreeMap;

use pb_contract::Nanos;
use pb_record::metrics::Bundle;
use serde::{Deserialize, Deserializer, Serialize};

use crate::calibration::Calibration;
use crate::goodput::{Objective, Slo};
use crate::server::Server;
use crate::tally::Tally;

/// File of the conditions in a run directory.
pub const CONDITIONS_FILE: &str = "conditions.json";

/// The prefix cache, as planned and as found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cache {
    /// `asis`, `cold`, `warm` or `unproven`.
    pub state: &'static str,
    /// Prompt tokens planned to be found; absent when the state was not controlled.
    pub planned_hit_tokens: Option<u64>,
    /// Prompt tokens found; absent when the server does not say.
    pub measured_hit_tokens: Option<u64>,
    /// Requests whose answer says what was found.
    pub known_rows: usize,
}

impl Default for Cache {
    /// Of a run that did nothing about it and knows nothing.
    fn default() -> Cache {
        Cache {
            state: "asis",
            planned_hit_tokens: None,
            measured_hit_tokens: None,
            known_rows: 0,
        }
    }
}

/// The states of the cache that a document can name.
pub const CACHE_STATES: [&str; 4] = ["asis", "cold", "warm", "unproven"];

impl<'de> Deserialize<'de> for Cache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cache, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Stored {
            state: String,
            planned_hit_tokens: Option<u64>,
            measured_hit_tokens: Option<u64>,
            known_rows: usize,
        }
        let stored = Stored::deserialize(deserializer)?;
        let known = CACHE_STATES
            .into_iter()
            .find(|state| *state == stored.state);
        let state = known.ok_or_else(|| {
            let expected = CACHE_STATES.join(", ");
            let found = &stored.state;
            serde::de::Error::custom(format!("cache state {found:?} is none of {expected}"))
        })?;
        Ok(Cache {
            state,
            planned_hit_tokens: stored.planned_hit_tokens,
            measured_hit_tokens: stored.measured_hit_tokens,
            known_rows: stored.known_rows,
        })
    }
}

/// The frame of a run: when it started, what was due, how its cache stood.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Start of the schedule.
    pub start: Nanos,
    /// From the start to the last arrival of an open loop; absent for a closed loop, which offers
    /// until its end.
    pub arrivals_ns: Option<Nanos>,
    /// The schedule ended before the duration that was asked for.
    pub exhausted: bool,
    /// The prefix cache.
    pub cache: Cache,
    /// What is known to be wrong with the cache.
    pub cache_reasons: Vec<String>,
    /// sha256 of the whole schedule, of which a shard runs a part.
    pub schedule_sha256: String,
    /// Seed of the schedule.
    pub seed: u64,
}

/// Who was asked, by what, under which name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Identity {
    /// Model name that requests carry.
    pub model: String,
    /// Address of the server; without credentials.
    pub base_url: String,
    /// Route of the measured requests.
    pub route: String,
    /// `completions` or `chat`.
    pub api: String,
    /// Kind of the server (`vllm`, `sglang`, ...), or `unknown`.
    pub server: String,
    /// Tokenizer that planned the prompts, when one did.
    pub tokenizer: Option<String>,
    /// Start of the run, UTC, RFC 3339.
    pub created: String,
    /// Version of this program.
    pub tool: String,
    /// The user's name for the run.
    pub label: Option<String>,
    /// The user's further facts.
    pub metadata: BTreeMap<String, String>,
}

/// The load that was asked for. What it became is computed from the rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadFacts {
    /// `poisson`, `gamma`, `constant`, `burst`, `trace` or `closed`.
    pub arrival: String,
    /// Requests per second; absent for a burst, a trace and a closed loop.
    pub rate_rps: Option<f64>,
    /// Shape of the gamma distribution of the gaps.
    pub burstiness: Option<f64>,
    /// Ramp of the rate, as resolved.
    pub ramp: Option<String>,
    /// Slots of a closed loop, or the cap of an open one.
    pub max_concurrency: Option<u64>,
    /// An open loop whose requests wait in the client while `max_concurrency` are in flight.
    pub capped: bool,
    /// Requests asked for.
    pub num_prompts: Option<u64>,
    /// No request starts later than this, in seconds.
    pub duration_s: Option<f64>,
    /// Largest driver lag at the 99th percentile of a valid run, in ms; default 1.
    pub lag_limit_ms: Option<f64>,
    /// Requests of the warm-up.
    pub warmup_requests: u64,
    /// The connections.
    pub connections: Option<Connections>,
}

/// Connections of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Made before the start.
    pub before_start: u64,
    /// Made in all.
    pub opened: u64,
    /// Of these, made because a request found none free: its latency has the time in it.
    pub during_requests: u64,
    /// Longest TCP handshake in ms.
    pub tcp_max_ms: f64,
    /// Longest TLS handshake in ms; absent without TLS.
    pub tls_max_ms: Option<f64>,
}

/// What the workload is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadFacts {
    /// Name of the data set (`random`, `mooncake`, ...).
    pub dataset: String,
    /// File it came from.
    pub file: Option<String>,
    /// Rows of the source, those that were left out included.
    pub rows: Option<u64>,
    /// Different prompts among the planned requests.
    pub unique_prompts: Option<u64>,
    /// Planned requests whose prompt is one of an earlier request.
    pub repeated_prompts: Option<u64>,
    /// Rows left out, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Prompt tokens that an endless cache would have found, by the plan.
    pub ideal_hit_tokens: Option<u64>,
    /// Whatever else the maker of the workload says of it.
    pub detail: serde_json::Value,
}

/// A part of a schedule: part `index` of `of`, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Number of the part, from 0.
    pub index: u32,
    /// Parts.
    pub of: u32,
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    /// `i/n` with `i` from 0 to `n - 1`.
    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/');
        let parsed = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, of)) if index < of => Ok(Shard { index, of }),
            _ => Err(format!(
                "`{text}` is no shard: write i/n with i from 0 to n - 1, as in 0/2"
            )),
        }
    }
}

/// A shard that went into a joined run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardNote {
    /// Which part.
    pub shard: Shard,
    /// `complete`, `interrupted` or `running`: its writer died.
    pub state: String,
    /// Rows that it gave.
    pub rows: u64,
    /// What was taken from each of its instants, in ns: its clock's origin to the joined one.
    pub clock_offset_ns: i64,
    /// Start of the run, UTC.
    pub created: String,
    /// Its client's calibration.
    pub calibration: Option<Calibration>,
    /// What it saw of the server. Every shard sees the whole server, so these do not add up.
    pub server: Option<Server>,
}

/// Everything that the document needs beside the records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conditions {
    /// Start, arrivals, cache, schedule.
    pub frame: Frame,
    /// When a request is good.
    pub objectives: Vec<Objective>,
    /// Demands on shares of the offered requests.
    pub slos: Vec<Slo>,
    /// How bundles of tokens become token latencies.
    pub itl_rule: Bundle,
    /// Who was asked.
    pub identity: Identity,
    /// What load was asked for.
    pub load: LoadFacts,
    /// What the workload is.
    pub workload: WorkloadFacts,
    /// The client's own error on this machine.
    pub calibration: Option<Calibration>,
    /// What the server said of itself.
    pub server: Option<Server>,
    /// The run was stopped before its end.
    pub interrupted: bool,
    /// Rows are missing, and the run is looked at all the same.
    pub partial: bool,
    /// Further reasons against the run.
    pub reasons: Vec<String>,
    /// What a reader should know and what speaks not against the run.
    pub warnings: Vec<String>,
    /// Which part of the schedule this is.
    pub shard: Option<Shard>,
    /// The parts that were joined.
    pub shards: Vec<ShardNote>,
}

impl Conditions {
    /// With a frame and nothing else.
    pub fn new(frame: Frame) -> Conditions {
        Conditions {
            frame,
            ..Conditions::default()
        }
    }

    /// An empty tally that counts what these conditions ask for: the limits of the objectives
    /// and those of the demands.
    pub fn tally(&self) -> Tally {
        Tally::with_rule(self.objectives.clone(), self.itl_rule).with_limits(self.limits())
    }

    /// `complete`, `interrupted` or `partial`.
    pub(crate) fn state(&self) -> &'static str {
        match (self.partial, self.interrupted) {
            (true, _) => "partial",
            (false, true) => "interrupted",
            (false, false) => "complete",
        }
    }

    /// The limits of the demands, each once.
    pub fn limits(&self) -> Vec<Objective> {
        let mut limits: Vec<Objective> = self.slos.iter().filter_map(|s| s.objective).collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read_from_zero() {
        assert_eq!("1/2".parse(), Ok(Shard { index: 1, of: 2 }));
        assert_eq!("0/1".parse::<Shard>().unwrap().to_string(), "0/1");
        for text in ["2/2", "1", "a/2", "0/0", "-1/2", "1/2/3", ""] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.contains("0/2"), "{text}: {error}");
        }
    }

    #[test]
    fn conditions_read_back_and_refuse_what_they_do_not_know() {
        let conditions = Conditions {
            slos: vec![
                "ttft:200@0.5".parse().unwrap(),
                "success:1".parse().unwrap(),
            ],
            shard: Some(Shard { index: 0, of: 2 }),
            itl_rule: Bundle::Burst,
            ..Conditions::default()
        };
        let text = serde_json::to_string(&conditions).unwrap();
        assert_eq!(
            serde_json::from_str::<Conditions>(&text).unwrap(),
            conditions
        );
        let unknown = text.replacen("\"asis\"", "\"tepid\"", 1);
        let error = serde_json::from_str::<Conditions>(&unknown).unwrap_err();
        assert!(error.to_string().contains("tepid"), "{error}");
        let extra = text.replacen('{', "{\"speed\":1,", 1);
        assert!(serde_json::from_str::<Conditions>(&extra).is_err());
    }
}
