//! The memory that request bodies may take together.
//!
//! A limit on one body says nothing about twenty of them. Bytes are counted as they arrive, so a
//! body that is announced and not sent costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of request bodies held at one time, over all connections.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    used_bytes: AtomicUsize,
    limit_bytes: usize,
}

impl BodyBudget {
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(BodyBudget {
            used_bytes: AtomicUsize::new(0),
            limit_bytes,
        })
    }

    /// The share of one body, empty at first.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// What one body holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl Share {
    /// What it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes; false, and nothing taken, when they are not there.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let limit = self.budget.limit_bytes;
        let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= limit);
        let used = &self.budget.used_bytes;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_limit_and_come_back() {
        let budget = BodyBudget::new(10);
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.grow(4) && b.grow(6));
        assert!(!a.grow(1), "4 + 6 + 1 is over 10");
        assert!(a.grow(0) && !a.grow(usize::MAX));
        drop(b);
        assert!(a.grow(6), "the refused bytes were not counted");
        assert!(!budget.share().grow(1));
        drop(a);
        assert!(budget.share().grow(10));
    }
}
