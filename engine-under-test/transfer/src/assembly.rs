//! A request whose KV comes in several legs: one for each pair of ranks that share heads.

use std::collections::BTreeSet;

use crate::message::Cause;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assembled {
    /// Legs are missing.
    Waiting,
    /// All legs have started: decode may. Told once.
    Complete,
    /// A leg has failed: cancel the others, and free the blocks when the last has ended. Told once.
    Failed(Cause),
    /// It has failed before.
    Over,
}

/// Joins the ends of a request's legs, over all ranks of its engine.
#[derive(Clone, Debug)]
pub struct Assembly {
    missing: BTreeSet<usize>,
    failed: bool,
}

impl Assembly {
    /// A request of `legs` legs, called `0..legs`.
    pub fn new(legs: usize) -> Assembly {
        Assembly {
            missing: (0..legs).collect(),
            failed: false,
        }
    }

    /// A leg has started ([`crate::SinkEvent::Started`]).
    ///
    /// # Panics
    /// When the leg has ended before, or is none: each ends once.
    pub fn started(&mut self, leg: usize) -> Assembled {
        assert!(self.missing.remove(&leg), "leg {leg} ends once");
        match (self.failed, self.missing.is_empty()) {
            (true, _) => Assembled::Over,
            (false, true) => Assembled::Complete,
            (false, false) => Assembled::Waiting,
        }
    }

    /// A leg has failed ([`crate::SinkEvent::Failed`]).
    ///
    /// # Panics
    /// As [`Assembly::started`].
    pub fn failed(&mut self, leg: usize, cause: Cause) -> Assembled {
        assert!(self.missing.remove(&leg), "leg {leg} ends once");
        if std::mem::replace(&mut self.failed, true) {
            return Assembled::Over;
        }
        Assembled::Failed(cause)
    }

    /// Whether every leg has ended, so that no transport writes to the request's blocks any more.
    pub fn has_ended(&self) -> bool {
        self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of three legs, each of which starts or fails.
    #[test]
    fn decode_starts_after_the_last_leg_and_only_if_none_failed() {
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for (order, fails) in orders
            .into_iter()
            .flat_map(|o| (0..8u8).map(move |f| (o, f)))
        {
            let mut assembly = Assembly::new(3);
            let mut told = Vec::new();
            for leg in order {
                assert!(!assembly.has_ended());
                told.push(match fails >> leg & 1 {
                    0 => assembly.started(leg),
                    _ => assembly.failed(leg, Cause::Stalled),
                });
            }
            assert!(assembly.has_ended());
            let count = |what| told.iter().filter(|t| **t == what).count();
            let complete = (fails == 0 && told[2] == Assembled::Complete) as usize;
            assert_eq!(count(Assembled::Complete), complete, "{told:?}");
            assert_eq!(complete == 1, fails == 0, "{told:?}");
            let failures = usize::from(fails > 0);
            assert_eq!(count(Assembled::Failed(Cause::Stalled)), failures);
        }
    }

    #[test]
    #[should_panic(expected = "ends once")]
    fn a_leg_that_ends_twice_is_a_bug() {
        let mut assembly = Assembly::new(2);
        assembly.started(1);
        assembly.failed(1, Cause::Expired);
    }
}
