//! Claims that came sooner than what they claim.
//!
//! A decode engine claims a streamed prompt when its sender tells of it, which is before there is
//! anything of it. Such a claim is kept here for a while and answered when something is held: a
//! peer that had to ask again and again would find it late by as long as it waits in between, which
//! for a prompt of one step is all that streaming could gain.

use pb_contract::Nanos;

use super::export::{Held, Shelf};
use crate::message::Cause;

/// How long a claim is kept before it is declined, and then sent again by a peer that still waits.
const KEPT: Nanos = Nanos::from_millis(100);

/// Claims that are kept for one peer; more are declined at once.
const MOST: usize = 1024;

struct Early {
    ticket: u64,
    digest: [u8; 32],
    until: Nanos,
}

/// The early claims of one peer.
#[derive(Default)]
pub(super) struct Parked(Vec<Early>);

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers a claim, or keeps it: an early one of which nothing is held.
    pub(super) fn claim(
        &mut self,
        shelf: &Shelf,
        (ticket, digest): (u64, [u8; 32]),
        early: bool,
        now: Nanos,
    ) -> Option<Result<Held, Cause>> {
        // Whoever claims again has given up waiting for the first answer.
        self.0.retain(|kept| kept.ticket != ticket);
        let answer = shelf.claim(ticket, &digest);
        if early && matches!(answer, Err(Cause::Expired)) && self.0.len() < MOST {
            let until = now + KEPT;
            self.0.push(Early {
                ticket,
                digest,
                until,
            });
            return None;
        }
        Some(answer)
    }

    /// Answers to claims for which something is held now, or which were kept long enough.
    pub(super) fn answers(&mut self, shelf: &Shelf, now: Nanos) -> Vec<(u64, Result<Held, Cause>)> {
        let mut answers = Vec::new();
        if self.0.is_empty() {
            return answers;
        }
        // Once for all of them: the engine's thread takes it too, in the middle of a step.
        let mut shelf = shelf.open();
        self.0.retain(|kept| {
            let answer = shelf.claim(kept.ticket, &kept.digest);
            let waits = matches!(answer, Err(Cause::Expired)) && now < kept.until;
            if !waits {
                answers.push((kept.ticket, answer));
            }
            waits
        });
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 32] = [1; 32];

    fn shelf() -> Shelf {
        Shelf::new(Nanos::from_secs(60))
    }

    fn held(ticket: u64) -> Held {
        Held {
            ticket,
            digest: OURS,
            tokens: 3,
            blocks: Vec::new(),
            since: Nanos(0),
            progress: None,
        }
    }

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn an_early_claim_is_answered_when_something_is_held() {
        let (shelf, mut parked) = (shelf(), Parked::default());
        assert!(parked.claim(&shelf, (7, OURS), true, at(0)).is_none());
        assert!(parked.answers(&shelf, at(99)).is_empty() && !parked.is_empty());
        shelf.hold(held(7));
        let answers = parked.answers(&shelf, at(99));
        assert!(matches!(&answers[..], [(7, Ok(held))] if held.ticket == 7));
        assert!(parked.is_empty() && parked.answers(&shelf, at(500)).is_empty());
    }

    #[test]
    fn what_never_comes_is_declined_and_what_is_of_another_prompt_at_once() {
        let (shelf, mut parked) = (shelf(), Parked::default());
        assert!(parked.claim(&shelf, (7, OURS), true, at(0)).is_none());
        assert!(parked.claim(&shelf, (8, [2; 32]), true, at(50)).is_none());
        shelf.hold(held(8));
        let declined = parked.answers(&shelf, at(60));
        assert!(matches!(&declined[..], [(8, Err(Cause::Mismatch))]));
        let declined = parked.answers(&shelf, at(100));
        assert!(matches!(&declined[..], [(7, Err(Cause::Expired))]));
    }

    #[test]
    fn a_claim_that_is_not_early_takes_the_place_of_one_that_is_kept() {
        let (shelf, mut parked) = (shelf(), Parked::default());
        assert!(parked.claim(&shelf, (7, OURS), true, at(0)).is_none());
        let answer = parked.claim(&shelf, (7, OURS), false, at(1));
        assert!(matches!(answer, Some(Err(Cause::Expired))));
        // The kept one is gone: it must not take what another claim may come for.
        shelf.hold(held(7));
        assert!(parked.answers(&shelf, at(2)).is_empty());
        let answer = parked.claim(&shelf, (7, OURS), false, at(3));
        assert!(matches!(answer, Some(Ok(_))));
    }

    #[test]
    fn a_peer_cannot_have_more_kept_than_there_is_room_for() {
        let (shelf, mut parked) = (shelf(), Parked::default());
        for ticket in 0..MOST as u64 {
            assert!(parked.claim(&shelf, (ticket, OURS), true, at(0)).is_none());
        }
        let answer = parked.claim(&shelf, (u64::MAX, OURS), true, at(0));
        assert!(matches!(answer, Some(Err(Cause::Expired))));
        assert_eq!(parked.answers(&shelf, at(100)).len(), MOST);
    }
}
