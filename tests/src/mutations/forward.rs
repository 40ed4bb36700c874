//! The checks of the forward pass alone: a decoder in chunks against a decoder in one pass.

use anyhow::Result;
use pb_contract::{Fault, Numerics};
use pb_judge::numerics::{CheckName, Outcome as Verdict};

use super::{Check, Outcome, Row};
use crate::numeric_faults::{Bench, Measured};

/// Chunks of whole blocks, and chunks that end within one.
pub const CHUNKS: [usize; 2] = [64, 50];

/// Prompts; with fewer the mean rules cannot decide.
const PROMPTS: usize = 6;

/// The decoder under test with its references.
pub struct Subject {
    bench: Bench,
}

impl Subject {
    /// A generated model in exact mode.
    ///
    /// # Errors
    /// A decoder cannot be built or a row cannot be scored.
    pub fn new() -> Result<Subject> {
        let bench = Bench::new(Numerics::Exact, PROMPTS)?;
        Ok(Subject { bench })
    }

    /// The outcomes of every check, and the ratio of errors, at each of [`CHUNKS`].
    ///
    /// # Errors
    /// The decoder refuses the fault or a row cannot be scored.
    pub fn observe(&mut self, fault: Fault) -> Result<(Row, [f64; 2])> {
        let mut row = Row::new();
        let mut ratios = [1.0; 2];
        let mut rejecting: Vec<(Check, Vec<usize>)> = Vec::new();
        for (ratio, chunk) in ratios.iter_mut().zip(CHUNKS) {
            let measured = self.bench.measure(fault, chunk)?;
            *ratio = measured.ratio;
            for (check, rejects) in verdicts(&measured) {
                match rejecting.iter_mut().find(|(c, _)| *c == check) {
                    Some((_, chunks)) => chunks.extend(rejects.then_some(chunk)),
                    None => rejecting.push((check, rejects.then_some(chunk).into_iter().collect())),
                }
            }
        }
        for (check, chunks) in rejecting {
            let law = match chunks[..] {
                [] => Ok(()),
                [only] => Err(format!("chunks of {only} only")),
                _ => Err("both chunk sizes".to_owned()),
            };
            row.insert(check, Outcome::of(law));
        }
        Ok((row, ratios))
    }
}

/// Whether each check rejects a run.
fn verdicts(measured: &Measured) -> Vec<(Check, bool)> {
    let mut all = vec![
        (Check::T0Bits, !measured.bits.is_equal()),
        (Check::OwnReference, !measured.own_bits.is_equal()),
    ];
    for check in &measured.verdict.checks {
        let rejects = check.outcome == Verdict::Fail;
        all.extend(check_of(check.name).map(|name| (name, rejects)));
    }
    all
}

/// The check of a statistic that T1 sets a limit to.
fn check_of(name: CheckName) -> Option<Check> {
    match name {
        CheckName::MeanRho => Some(Check::T1MeanRho),
        CheckName::MaxRho => Some(Check::T1MaxRho),
        CheckName::MaxZ => Some(Check::T1MaxZ),
        CheckName::DecidableFlips => Some(Check::T1Flips),
        // Not finite is beyond every other limit too, random tokens are as likely after a fault as
        // before, and the divergences have no limit in T1.
        CheckName::Finite
        | CheckName::DeltaNll
        | CheckName::KlMean
        | CheckName::KlP999
        | CheckName::KlMax
        | CheckName::RmsDeltaP => None,
    }
}
