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
    no_run_twice(a.iter().chain(b))?;
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

/// A copy of a run is no second observation.
fn no_run_twice<'a>(runs: impl Iterator<Item = &'a Run>) -> Result<(), CompareError> {
    let mut seen = BTreeMap::new();
    for run in runs {
        let identity = (&run.created, run.start_ns, run.schedule());
        if let Some(first) = seen.insert(identity, &run.name) {
            return Err(CompareError::SameRun {
                first: first.clone(),
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
