//! Which runs form a block, and whether their numbers may be held against each other at all.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::CompareError;
use super::aspect::{ASPECTS, Aspect};
use super::run::Run;

/// An aspect in which two runs differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs.
    pub aspect: Aspect,
    /// A run.
    pub run: String,
    /// Its value; empty when it is not known.
    pub value: String,
    /// Another run.
    pub other_run: String,
    /// Its value.
    pub other_value: String,
}

/// Blocks of one baseline and one candidate run, and the differences that were allowed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Paired<'a> {
    pub(super) blocks: Vec<(&'a Run, &'a Run)>,
    pub(super) allowed: Vec<Difference>,
}

/// Pairs the runs of two arms: by schedule where both arms ran the same ones, in the order given
/// where schedules may differ. Runs of one schedule are paired in the order given.
pub(super) fn pair<'a>(
    a: &'a [Run],
    b: &'a [Run],
    allow: &BTreeSet<Aspect>,
) -> Result<Paired<'a>, CompareError> {
    if a.len() != b.len() || a.is_empty() {
        return Err(CompareError::Unpaired {
            baseline: a.len(),
            candidate: b.len(),
        });
    }
    no_shard(a.iter().chain(b))?;
    no_run_twice(a, b)?;
    let blocks = match by_schedule(a, b) {
        Some(blocks) => blocks,
        None => a.iter().zip(b).collect(),
    };
    let (mut refused, mut allowed) = (Vec::new(), Vec::new());
    for difference in differences(a, b, &blocks) {
        match allow.contains(&difference.0.aspect) && difference.1 == Between::Arms {
            true => allowed.push(difference.0),
            false => refused.push(difference.0),
        }
    }
    match refused.is_empty() {
        true => Ok(Paired { blocks, allowed }),
        false => Err(CompareError::Different {
            differences: refused,
        }),
    }
}

/// Whether two arms may be compared at all.
///
/// # Errors
/// As [`super::compare`].
pub fn check_alike(a: &[Run], b: &[Run], allow: &BTreeSet<Aspect>) -> Result<(), CompareError> {
    pair(a, b, allow).map(|_| ())
}

/// Whether the runs of one arm may be taken together, without another arm to compare with.
///
/// # Errors
/// A run that stands twice, a part of a run, runs that are not alike.
pub fn check_arm(runs: &[Run]) -> Result<(), CompareError> {
    no_shard(runs.iter())?;
    no_run_twice(runs, &[])?;
    let found = differences(runs, &[], &[]);
    let differences: Vec<Difference> = found.into_iter().map(|(found, _)| found).collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CompareError::Different { differences }),
    }
}

/// Shards are joined first: each has a part of the load.
fn no_shard<'a>(mut runs: impl Iterator<Item = &'a Run>) -> Result<(), CompareError> {
    let part = runs.find_map(|run| Some((run.name.clone(), run.shard.clone()?)));
    match part {
        None => Ok(()),
        Some((run, shard)) => Err(CompareError::Shard { run, shard }),
    }
}

/// A copy of a run is no second observation, whatever its date says. Between the arms of runs in
/// virtual time the same run is: nothing has changed.
fn no_run_twice(a: &[Run], b: &[Run]) -> Result<(), CompareError> {
    let (mut by_start, mut by_instants) = (BTreeMap::new(), BTreeMap::new());
    let all = a
        .iter()
        .map(|run| (0, run))
        .chain(b.iter().map(|run| (1, run)));
    for (arm, run) in all {
        let start = (&run.created, run.start_ns, run.schedule());
        let seen = by_start.insert(start, (arm, run));
        let again = run
            .fingerprint
            .and_then(|hash| by_instants.insert(hash, (arm, run)));
        let copied =
            |(other, first): &(u8, &Run)| *other == arm || !(run.simulated && first.simulated);
        if let Some((_, first)) = seen.filter(copied).or(again.filter(copied)) {
            return Err(CompareError::SameRun {
                first: first.name.clone(),
                second: run.name.clone(),
            });
        }
    }
    Ok(())
}

/// The pairs in the order of `a`, when every schedule occurs as often in `b`. An unknown one is
/// like no other.
fn by_schedule<'a>(a: &'a [Run], b: &'a [Run]) -> Option<Vec<(&'a Run, &'a Run)>> {
    let mut waiting: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in b.iter().rev() {
        waiting.entry(run.schedule()).or_default().push(run);
    }
    let partner = |run: &'a Run| {
        let known = !run.schedule().is_empty();
        Some((
            run,
            waiting.get_mut(run.schedule()).filter(|_| known)?.pop()?,
        ))
    };
    a.iter().map(partner).collect()
}

/// Where a difference lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Between the arms, where one may be wanted.
    Arms,
    /// Between two runs of one arm, where none is.
    Runs,
}

fn differences(a: &[Run], b: &[Run], blocks: &[(&Run, &Run)]) -> Vec<(Difference, Between)> {
    let mut found = Vec::new();
    for aspect in ASPECTS {
        // One example of each kind is enough to act on.
        let across = blocks.iter().find_map(|(a, b)| differ(aspect, a, b));
        found.extend(across.map(|difference| (difference, Between::Arms)));
        if aspect.may_vary_between_blocks() {
            continue;
        }
        for arm in [a, b] {
            let mut rest = arm.iter().skip(1);
            // OK because an empty arm has no rest.
            let within = rest.find_map(|run| differ(aspect, &arm[0], run));
            found.extend(within.map(|difference| (difference, Between::Runs)));
        }
    }
    found
}

fn differ(aspect: Aspect, run: &Run, other: &Run) -> Option<Difference> {
    let value = |run: &Run| run.aspects.get(&aspect).cloned().unwrap_or_default();
    let (mine, theirs) = (value(run), value(other));
    // Two schedules of which nothing is known are not known to be the same.
    let unknown = aspect == Aspect::Schedule && mine.is_empty();
    (mine != theirs || unknown).then(|| Difference {
        aspect,
        run: run.name.clone(),
        value: mine,
        other_run: other.name.clone(),
        other_value: theirs,
    })
}
