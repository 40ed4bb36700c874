//! Shards of one schedule become one run.
//!
//! Each shard ran a part of the schedule on a machine of its own, with a clock of its own. The
//! starts of the schedules are laid on one another, so that an arrival that was planned at an
//! offset is at that offset again. What does not belong together is refused.

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RequestRow, TokenRow};

use crate::conditions::{
    Cache, Conditions, Connections, Frame, Identity, LoadFacts, Shard, ShardNote, WorkloadFacts,
};

/// What is known of a shard before its rows are read.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardInput {
    /// Its directory, for messages.
    pub name: String,
    /// What its numbers rest on.
    pub conditions: Conditions,
    /// Whether its writer finished.
    pub state: RunState,
    /// Its rows.
    pub rows: u64,
    /// Its earliest intended arrival: where its clock is laid when its start is not known.
    pub first_arrival: Option<Nanos>,
}

/// Why runs cannot be joined; every message names the run and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Nothing to join.
    #[error("no run was named: give the directories of all shards of one schedule")]
    Nothing,
    /// A run of a whole schedule.
    #[error("{name}: it ran a whole schedule, not a shard: run each part with --shard i/n")]
    NoShard {
        /// The run.
        name: String,
    },
    /// A setting differs.
    #[error(
        "{name}: {key} = {}, but {first} has {}: join shards of one run only",
        pb_record::visible(.found),
        pb_record::visible(.expected)
    )]
    Differs {
        /// The run.
        name: String,
        /// The run that it is compared with.
        first: String,
        /// Which setting.
        key: &'static str,
        /// Its value.
        found: String,
        /// The other value.
        expected: String,
    },
    /// The same part twice.
    #[error("{second}: shard {shard} again, {first} is that part already: name each part once")]
    Twice {
        /// The part.
        shard: Shard,
        /// First run.
        first: String,
        /// Second run.
        second: String,
    },
    /// Parts are missing.
    #[error(
        "shards {missing} are missing: name all of them, or join what is there with \
             --allow-partial"
    )]
    Missing {
        /// The parts.
        missing: String,
    },
    /// A run that did not reach its end.
    #[error("{name}: the run is {state}: run it again, or join what is there with --allow-partial")]
    Unfinished {
        /// The run.
        name: String,
        /// Its state.
        state: &'static str,
    },
}

/// Shards that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// What the joined numbers rest on.
    pub conditions: Conditions,
    /// For each input, in the order given, what is taken from its instants.
    pub offsets: Vec<Offset>,
}

/// What is taken from every instant of a shard, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(pub i64);

impl Offset {
    /// An instant on the joined clock.
    pub fn rebase(self, at: Nanos) -> Nanos {
        Nanos(at.0.saturating_add_signed(self.0.saturating_neg()))
    }

    /// A request on the joined clock.
    pub fn request(self, mut row: RequestRow) -> RequestRow {
        row.intended_ns = self.rebase(row.intended_ns);
        for at in [
            &mut row.sent_ns,
            &mut row.headers_ns,
            &mut row.first_event_ns,
            &mut row.first_token_ns,
            &mut row.last_token_ns,
            &mut row.closed_ns,
        ] {
            *at = at.map(|at| self.rebase(at));
        }
        row
    }

    /// A content event on the joined clock.
    pub fn token(self, token: &mut TokenRow) {
        token.at_ns = self.rebase(token.at_ns);
    }
}

/// Joins shards. With `allow_partial` parts may be missing or unfinished; the result says so.
///
/// # Errors
/// See [`MergeError`].
pub fn merge(inputs: &[ShardInput], allow_partial: bool) -> Result<Merged, MergeError> {
    let first = inputs.first().ok_or(MergeError::Nothing)?;
    let mut parts: Vec<(Shard, &ShardInput)> = Vec::with_capacity(inputs.len());
    for input in inputs {
        let shard = input.conditions.shard.ok_or_else(|| MergeError::NoShard {
            name: input.name.clone(),
        })?;
        same_settings(first, input)?;
        if let Some((_, twin)) = parts.iter().find(|(other, _)| *other == shard) {
            return Err(MergeError::Twice {
                shard,
                first: twin.name.clone(),
                second: input.name.clone(),
            });
        }
        if input.state != RunState::Complete && !allow_partial {
            return Err(MergeError::Unfinished {
                name: input.name.clone(),
                state: state_name(input.state),
            });
        }
        parts.push((shard, input));
    }
    let offsets = offsets(&parts);
    let missing = missing(&parts);
    if !missing.is_empty() && !allow_partial {
        return Err(MergeError::Missing {
            missing: missing.join(", "),
        });
    }
    let conditions = joined(&parts, &offsets, &missing);
    Ok(Merged {
        conditions,
        offsets,
    })
}

/// Key of the workload's detail that a run adds when it has ended.
const COVERED: &str = "long_prompts_covered";

pub(crate) const fn state_name(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Complete => "complete",
        RunState::Interrupted => "interrupted",
    }
}

/// Where the schedule starts on the shard's own clock.
fn start(input: &ShardInput) -> Nanos {
    match input.conditions.frame.start {
        // A writer that died did not store it.
        Nanos(0) => input.first_arrival.unwrap_or_default(),
        start => start,
    }
}

/// The clock of the lowest part is the joined one.
fn offsets(parts: &[(Shard, &ShardInput)]) -> Vec<Offset> {
    let lowest = parts.iter().min_by_key(|(shard, _)| shard.index);
    let base = lowest.map_or(Nanos(0), |(_, input)| start(input));
    let of = |input: &ShardInput| start(input).0.wrapping_sub(base.0) as i64;
    parts.iter().map(|(_, input)| Offset(of(input))).collect()
}

fn missing(parts: &[(Shard, &ShardInput)]) -> Vec<String> {
    let of = parts.first().map_or(0, |(shard, _)| shard.of);
    let there = |index: u32| parts.iter().any(|(shard, _)| shard.index == index);
    let absent = (0..of).filter(|&index| !there(index));
    absent
        .map(|index| Shard { index, of }.to_string())
        .collect()
}

/// The settings that all shards of one run share, by name.
fn settings(input: &ShardInput) -> [(&'static str, String); 10] {
    let c = &input.conditions;
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let identity = Identity {
        created: String::new(),
        ..c.identity.clone()
    };
    let load = LoadFacts {
        connections: None,
        warmup_requests: 0,
        ..c.load.clone()
    };
    [
        ("schedule_sha256", c.frame.schedule_sha256.clone()),
        ("seed", c.frame.seed.to_string()),
        ("shards", c.shard.map_or(0, |shard| shard.of).to_string()),
        ("objectives", json(serde_json::to_string(&c.objectives))),
        ("slos", json(serde_json::to_string(&c.slos))),
        ("itl_rule", json(serde_json::to_string(&c.itl_rule))),
        ("cache state", c.frame.cache.state.to_owned()),
        ("identity", json(serde_json::to_string(&identity))),
        ("load", json(serde_json::to_string(&load))),
        ("workload", json(serde_json::to_string(&workload(c)))),
    ]
}

/// What the workload is, without what one part found of it when it ran.
fn workload(conditions: &Conditions) -> WorkloadFacts {
    let mut facts = conditions.workload.clone();
    if let Some(detail) = facts.detail.as_object_mut() {
        detail.remove(COVERED);
    }
    facts
}

fn same_settings(first: &ShardInput, input: &ShardInput) -> Result<(), MergeError> {
    for ((key, expected), (_, found)) in settings(first).into_iter().zip(settings(input)) {
        // Whether an unfinished run found the cache as planned is not known.
        let unknown = key == "cache state" && input.state == RunState::Running;
        if expected != found && !unknown {
            return Err(MergeError::Differs {
                name: input.name.clone(),
                first: first.name.clone(),
                key,
                found,
                expected,
            });
        }
    }
    Ok(())
}

fn joined(parts: &[(Shard, &ShardInput)], offsets: &[Offset], missing: &[String]) -> Conditions {
    let all = || parts.iter().map(|(_, input)| &input.conditions);
    // OK because the caller has seen that there is a first one.
    let (_, first) = parts
        .iter()
        .min_by_key(|(shard, _)| shard.index)
        .expect("a shard");
    let named = |of: fn(&Conditions) -> &Vec<String>| -> Vec<String> {
        let prefixed = parts.iter().flat_map(|(shard, input)| {
            let line = move |text: &String| format!("shard {shard}: {text}");
            of(&input.conditions).iter().map(line)
        });
        prefixed.collect()
    };
    let unfinished = parts
        .iter()
        .any(|(_, input)| input.state == RunState::Running);
    let mut reasons = named(|c| &c.reasons);
    if !missing.is_empty() {
        reasons.push(format!("shards {} are missing", missing.join(", ")));
    }
    let mut warnings = named(|c| &c.warnings);
    for (shard, input) in parts {
        if input.conditions.frame.start == Nanos(0) {
            warnings.push(format!(
                "shard {shard}: its start is not known; its first arrival was laid on the start"
            ));
        }
        let problem = input
            .conditions
            .calibration
            .as_ref()
            .and_then(|c| c.problem.as_ref());
        warnings.extend(problem.map(|p| format!("shard {shard}: not calibrated: {p}")));
    }
    Conditions {
        frame: Frame {
            start: start(first),
            arrivals_ns: all().filter_map(|c| c.frame.arrivals_ns).max(),
            exhausted: all().any(|c| c.frame.exhausted),
            cache: cache(all().map(|c| &c.frame.cache)),
            cache_reasons: named(|c| &c.frame.cache_reasons),
            ..first.conditions.frame.clone()
        },
        identity: Identity {
            created: all()
                .map(|c| c.identity.created.clone())
                .min()
                .unwrap_or_default(),
            ..first.conditions.identity.clone()
        },
        load: LoadFacts {
            warmup_requests: all().map(|c| c.load.warmup_requests).sum(),
            connections: connections(all().map(|c| c.load.connections)),
            ..first.conditions.load.clone()
        },
        workload: workload(&first.conditions),
        calibration: None,
        server: None,
        interrupted: all().any(|c| c.interrupted),
        partial: unfinished || !missing.is_empty(),
        reasons,
        warnings,
        shard: None,
        shards: notes(parts, offsets),
        ..first.conditions.clone()
    }
}

fn notes(parts: &[(Shard, &ShardInput)], offsets: &[Offset]) -> Vec<ShardNote> {
    let note = |((shard, input), offset): (&(Shard, &ShardInput), &Offset)| ShardNote {
        shard: *shard,
        state: state_name(input.state).to_owned(),
        rows: input.rows,
        clock_offset_ns: offset.0,
        created: input.conditions.identity.created.clone(),
        calibration: input.conditions.calibration.clone(),
        server: input.conditions.server.clone(),
    };
    let mut notes: Vec<ShardNote> = parts.iter().zip(offsets).map(note).collect();
    notes.sort_by_key(|note| note.shard);
    notes
}

/// Sums; what one shard does not know the whole does not know.
fn cache<'a>(all: impl Iterator<Item = &'a Cache>) -> Cache {
    let add = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    let join = |a: Cache, b: &Cache| Cache {
        state: if a.state == b.state {
            a.state
        } else {
            "unproven"
        },
        planned_hit_tokens: add(a.planned_hit_tokens, b.planned_hit_tokens),
        measured_hit_tokens: add(a.measured_hit_tokens, b.measured_hit_tokens),
        known_rows: a.known_rows + b.known_rows,
    };
    let mut all = all;
    let first = all.next().cloned().unwrap_or_default();
    all.fold(first, join)
}

fn connections(all: impl Iterator<Item = Option<Connections>>) -> Option<Connections> {
    let longest = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    all.flatten().reduce(|a, b| Connections {
        before_start: a.before_start + b.before_start,
        opened: a.opened + b.opened,
        during_requests: a.during_requests + b.during_requests,
        tcp_max_ms: a.tcp_max_ms.max(b.tcp_max_ms),
        tls_max_ms: longest(a.tls_max_ms, b.tls_max_ms),
    })
}
