//! How long the engine thread waits for locks that connections hold.
//!
//! Every lock that both sides take is held for a few copies at most, so a wait here is a sign of
//! an overloaded machine or of a handler that holds a lock too long. A lock that is free costs no
//! look at the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pb_contract::{Clock, Nanos};

/// The waits of one thread.
pub(crate) struct LockWaits {
    clock: Arc<dyn Clock>,
    waited_ns: AtomicU64,
}

impl LockWaits {
    /// No wait so far.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        LockWaits {
            clock,
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Locks and adds what that took, if it took waiting. A poisoned lock only means that another
    /// thread panicked; what these locks hold is whole between two statements.
    pub(crate) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        let before = self.clock.now();
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.clock.now() - before;
        self.waited_ns.fetch_add(waited.0, Ordering::Relaxed);
        guard
    }

    /// What has been waited since the last call.
    pub(crate) fn take(&self) -> Nanos {
        Nanos(self.waited_ns.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Shows a later time with every look, and lets the lock go after the first.
    struct Looks {
        looks: AtomicU64,
        let_go: Mutex<std::sync::mpsc::Sender<()>>,
    }

    impl Clock for Looks {
        fn now(&self) -> Nanos {
            let look = self.looks.fetch_add(1, Ordering::Relaxed);
            // The holder may have let go already.
            let _ = self.let_go.lock().unwrap().send(());
            Nanos(1000 + 70 * look)
        }
    }

    #[test]
    fn only_a_lock_that_is_held_counts() {
        let (let_go, told) = channel();
        let clock = Arc::new(Looks {
            looks: AtomicU64::new(0),
            let_go: Mutex::new(let_go),
        });
        let waits = LockWaits::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let mutex = Mutex::new(7);
        assert_eq!(*waits.lock(&mutex), 7);
        assert_eq!(
            (waits.take(), clock.looks.load(Ordering::Relaxed)),
            (Nanos(0), 0)
        );
        let (locked, is_locked) = channel();
        std::thread::scope(|scope| {
            let mutex = &mutex;
            scope.spawn(move || {
                let guard = mutex.lock().unwrap();
                locked.send(()).unwrap();
                told.recv().unwrap();
                drop(guard);
            });
            is_locked.recv().unwrap();
            assert_eq!(*waits.lock(mutex), 7);
        });
        assert_eq!(waits.take(), Nanos(70));
        assert_eq!(waits.take(), Nanos(0), "taken once");
    }
}
