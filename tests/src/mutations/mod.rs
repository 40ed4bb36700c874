//! The matrix of planted faults and checks: which check notices which fault.
//!
//! A check that has never failed proves nothing. So every fault of [`Fault::ALL`] is planted, one
//! at a time, and every check is run that could see it: on the forward pass of a generated model
//! ([`forward`]), on the whole engine over that model ([`cached`]), and on the whole engine over a
//! toy model whose tokens depend on every slot of the context ([`loads`], [`reuse`], [`outputs`]).
//! The clean engine runs through the same checks and must pass them all.

pub mod cached;
pub mod document;
pub mod expected;
pub mod forward;
pub mod loads;
pub mod outputs;
pub mod play;
pub mod reuse;
pub mod toy;
pub mod watch;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;
use pb_contract::{Fault, FaultClass};

/// A named check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Chunked logits have the bits of the monolithic ones.
    T0Bits,
    /// The same against a monolithic pass that stores what the chunked one stores.
    OwnReference,
    /// Mean over prompts of the log error ratio.
    T1MeanRho,
    /// Worst prompt's log error ratio.
    T1MaxRho,
    /// Worst row's error.
    T1MaxZ,
    /// Greedy tokens that flip where the choice is clear.
    T1Flips,
    /// Logits after a cache hit have the bits of the monolithic ones.
    CachedBits,
    /// Greedy text after a cache hit is that of the monolithic pass.
    GreedyText,
    /// Conservation laws of pool, cache, queues and swap pool.
    Conservation,
    /// Laws of a plan.
    PlanLaws,
    /// A hit is no longer than what was computed.
    HitBound,
    /// The engine's counters against a recount from its events.
    Counters,
    /// Every request ends.
    Liveness,
    /// Each request's tokens are those that it gives alone.
    SoloOutputs,
    /// The engine's own assertions.
    Assertions,
    /// No hit across adapters, salts or engines.
    Isolation,
    /// Seeded text does not depend on the chunk size.
    SeededDraws,
    /// Swapped requests give the tokens that they give alone.
    SwapOutputs,
    /// Blocks from a tier give the tokens that are computed without.
    TierOutputs,
    /// No hit in a tier across adapters or salts.
    TierIsolation,
}

impl Check {
    /// Every check, in the order of the document.
    pub const ALL: [Check; 20] = [
        Check::T0Bits,
        Check::OwnReference,
        Check::T1MeanRho,
        Check::T1MaxRho,
        Check::T1MaxZ,
        Check::T1Flips,
        Check::CachedBits,
        Check::GreedyText,
        Check::Conservation,
        Check::PlanLaws,
        Check::HitBound,
        Check::Counters,
        Check::Liveness,
        Check::SoloOutputs,
        Check::Assertions,
        Check::Isolation,
        Check::SeededDraws,
        Check::SwapOutputs,
        Check::TierOutputs,
        Check::TierIsolation,
    ];

    /// Checks of T1: errors against the f64 reference.
    pub const T1: [Check; 4] = [
        Check::T1MeanRho,
        Check::T1MaxRho,
        Check::T1MaxZ,
        Check::T1Flips,
    ];

    /// Its name in the document.
    pub const fn name(self) -> &'static str {
        match self {
            Check::T0Bits => "T0 bits",
            Check::OwnReference => "T0 own reference",
            Check::T1MeanRho => "T1 mean error",
            Check::T1MaxRho => "T1 worst prompt",
            Check::T1MaxZ => "T1 worst row",
            Check::T1Flips => "T1 flips",
            Check::CachedBits => "T0 cached",
            Check::GreedyText => "greedy text",
            Check::Conservation => "conservation laws",
            Check::PlanLaws => "plan laws",
            Check::HitBound => "hit bound",
            Check::Counters => "counters recount",
            Check::Liveness => "liveness",
            Check::SoloOutputs => "solo outputs",
            Check::Assertions => "own assertions",
            Check::Isolation => "isolation",
            Check::SeededDraws => "seeded draws",
            Check::SwapOutputs => "swap outputs",
            Check::TierOutputs => "tier outputs",
            Check::TierIsolation => "tier isolation",
        }
    }

    /// What it compares with what.
    pub const fn what(self) -> &'static str {
        match self {
            Check::T0Bits => {
                "exact mode, all rows of prompts in chunks of 64 and of 50 against one pass, bit \
                 by bit"
            }
            Check::OwnReference => {
                "the same, against one pass with the same fault: for approximations of what is \
                 stored"
            }
            Check::T1MeanRho => "mean of ln(error of chunks / error of one pass), against f64",
            Check::T1MaxRho => "the largest of these over prompts",
            Check::T1MaxZ => "largest error of a row, in units of that row's error in one pass",
            Check::T1Flips => "most likely tokens that change where the f64 margin is clear",
            Check::CachedBits => {
                "whole engine, second prompt after a cache hit, all computed rows against an \
                 engine without cache and chunks, bit by bit"
            }
            Check::GreedyText => "the same two engines, 8 greedy tokens: what is usually compared",
            Check::Conservation => {
                "every law of pool, cache, queues, swap pool and tiers after each step, and no \
                 block referenced at the end"
            }
            Check::PlanLaws => {
                "budget, order, starts, lengths and decodes of each plan, from queues seen outside"
            }
            Check::HitBound => {
                "a hit is of whole blocks, leaves a token, and is no longer than what was computed \
                 of the same prefix in the same scope"
            }
            Check::Counters => "hits, lookups, tokens and preemptions counted again from events",
            Check::Liveness => "every request ends within 300 steps of its arrival",
            Check::SoloOutputs => "tokens of each request against the toy model run alone",
            Check::Assertions => "a panic: the engine notices its own contradiction",
            Check::Isolation => {
                "lookups under another adapter, salt or engine identity find nothing"
            }
            Check::SeededDraws => "one seeded request in chunks of 1 to 49 against one pass",
            Check::SwapOutputs => "requests that were swapped out and in against the toy run alone",
            Check::TierOutputs => "requests whose blocks came from host memory against the same",
            Check::TierIsolation => "evicted blocks are not found in host memory by another scope",
        }
    }

    /// Whether the check could see a fault of this class: the checks of the forward pass run no
    /// scheduler and no cache, the toy model has no attention.
    pub const fn sees(self, class: FaultClass) -> bool {
        let numerics = matches!(class, FaultClass::Numerics);
        match self {
            Check::CachedBits | Check::GreedyText => true,
            Check::T0Bits
            | Check::OwnReference
            | Check::T1MeanRho
            | Check::T1MaxRho
            | Check::T1MaxZ
            | Check::T1Flips => numerics,
            _ => !numerics,
        }
    }
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it rejects what it saw.
    pub caught: bool,
    /// Why; empty when it does not.
    pub evidence: String,
}

impl Outcome {
    /// A law that holds, or the sentence that says how it does not.
    pub fn of(law: Result<(), String>) -> Outcome {
        Outcome {
            caught: law.is_err(),
            evidence: law.err().unwrap_or_default(),
        }
    }
}

/// The outcomes of one fault.
pub type Row = BTreeMap<Check, Outcome>;

/// Every fault, and the clean engine, under every check that could see it.
#[derive(Debug, Default)]
pub struct Matrix {
    /// Outcomes by fault.
    pub rows: BTreeMap<Fault, Row>,
    /// Ratio of errors in chunks of 64 and of 50, faults of the forward pass.
    pub ratios: BTreeMap<Fault, [f64; 2]>,
}

impl Matrix {
    /// Plants every fault in turn.
    ///
    /// # Errors
    /// An engine or a decoder cannot be built, or a row cannot be scored.
    pub fn measure() -> Result<Matrix> {
        let mut matrix = Matrix::default();
        let mut bench = forward::Subject::new()?;
        let model = cached::Subject::new()?;
        for &fault in [Fault::None].iter().chain(Fault::ALL) {
            let mut row = Row::new();
            let class = fault.class();
            let sees = |check: Check| class.is_none_or(|class| check.sees(class));
            if sees(Check::T0Bits) {
                let (cells, ratios) = bench.observe(fault)?;
                row.extend(cells);
                matrix.ratios.insert(fault, ratios);
            }
            row.extend(model.observe(fault)?);
            if sees(Check::Conservation) {
                row.extend(loads::observe(fault)?);
                if row.get(&Check::HitBound).is_none_or(|cell| !cell.caught) {
                    row.insert(Check::HitBound, guarded(|| reuse::bound(fault)));
                }
                row.insert(Check::Isolation, guarded(|| reuse::isolation(fault)));
                row.insert(Check::TierIsolation, guarded(|| reuse::tiers(fault)));
                row.insert(Check::SeededDraws, guarded(|| outputs::seeded_draws(fault)));
                row.insert(Check::SwapOutputs, guarded(|| outputs::swap(fault)));
                row.insert(Check::TierOutputs, guarded(|| outputs::tiers(fault)));
            }
            matrix.rows.insert(fault, row);
        }
        Ok(matrix)
    }

    /// The checks that reject a fault, in the order of the document.
    pub fn caught_by(&self, fault: Fault) -> Vec<Check> {
        let row = self.rows.get(&fault).into_iter().flatten();
        let caught = row.filter(|(_, outcome)| outcome.caught);
        caught.map(|(&check, _)| check).collect()
    }

    /// The faults that a check rejects.
    pub fn catches(&self, check: Check) -> Vec<Fault> {
        let rows = self.rows.iter();
        let caught = rows.filter(|(_, row)| row.get(&check).is_some_and(|cell| cell.caught));
        caught.map(|(&fault, _)| fault).collect()
    }
}

/// Runs a check; a panic of the engine is a rejection too.
fn guarded(check: impl FnOnce() -> Result<(), String>) -> Outcome {
    Outcome::of(caught_panic(check).unwrap_or_else(Err))
}

/// What `run` returns, or the words of its panic.
pub(crate) fn caught_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        format!("panic: {}", text.unwrap_or_default())
    })
}
