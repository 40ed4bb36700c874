//! A fixed set of worker threads with cheap parallel regions.
//!
//! A decode step has hundreds of parallel regions of some 50 µs each, so a region must cost
//! about a microsecond; and the engine shares its cores with a load generator, so idle workers
//! must sleep. Rayon's pool does both: its workers spin briefly, then sleep. Within a region
//! the tasks are handed out by one atomic counter, so a worker that wakes late simply finds
//! less to do. Spawning a task each was rejected: it allocates.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Why a [`Pool`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A pool without threads cannot run anything.
    #[error("thread count is 0; use at least 1")]
    NoThreads,
    /// The operating system refused to start the threads.
    #[error("cannot start {threads} worker threads: {source}")]
    Spawn {
        /// Threads asked for.
        threads: usize,
        /// What the thread library said.
        source: rayon::ThreadPoolBuildError,
    },
}

/// A fixed number of worker threads.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    inner: Option<rayon::ThreadPool>,
}

impl Pool {
    /// A pool of `threads` workers. One thread means: run on the caller, start none.
    ///
    /// # Errors
    /// When `threads` is 0 or the threads cannot be started.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        if threads == 0 {
            return Err(PoolError::NoThreads);
        }
        let inner = if threads == 1 {
            None
        } else {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("kernel-{i}"))
                .build();
            Some(built.map_err(|source| PoolError::Spawn { threads, source })?)
        };
        Ok(Pool { threads, inner })
    }

    /// Number of threads that work on a region.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on a worker, so that regions inside it start without crossing threads. Wrap a
    /// whole forward pass in one call.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.inner {
            None => f(),
            Some(pool) => pool.install(f),
        }
    }

    /// Calls `f(0)` to `f(tasks - 1)`, each once, in no fixed order and possibly at the same
    /// time, and returns when all are done. A panic in `f` reaches the caller.
    pub fn run(&self, tasks: usize, f: impl Fn(usize) + Sync) {
        let pool = match &self.inner {
            Some(pool) if tasks > 1 => pool,
            _ => return (0..tasks).for_each(f),
        };
        let next = AtomicUsize::new(0);
        let drain = || {
            loop {
                // Relaxed is enough: the join below orders the tasks' writes.
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                f(task);
            }
        };
        let workers = self.threads.min(tasks);
        if pool.current_thread_index().is_some() {
            fan_out(workers, &drain);
        } else {
            pool.install(|| fan_out(workers, &drain));
        }
    }
}

/// Runs `drain` on up to `workers` threads by halving.
fn fan_out<F: Fn() + Sync>(workers: usize, drain: &F) {
    if workers <= 1 {
        drain();
    } else {
        let half = workers / 2;
        rayon::join(|| fan_out(workers - half, drain), || fan_out(half, drain));
    }
}

/// A raw pointer that tasks may share because each writes a disjoint part.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: users of SharedMut only write disjoint elements from different tasks, and the
// element types are plain numbers.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// Shares `slice` for the duration of one region.
    pub(crate) fn new(slice: &mut [T]) -> Self {
        SharedMut(slice.as_mut_ptr())
    }

    /// The pointer to element `index`.
    ///
    /// # Safety
    /// `index` must lie inside the slice (or be its end).
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller promises that index is inside the allocation.
        unsafe { self.0.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Pool, PoolError};

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |t| {
                    counts[t].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                pool.install(|| {
                    pool.run(tasks, |t| {
                        counts[t].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 2));
            }
        }
    }

    #[test]
    fn zero_threads_is_an_error() {
        assert!(matches!(Pool::new(0), Err(PoolError::NoThreads)));
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller() {
        let pool = Pool::new(2).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(8, |t| assert!(t != 5, "task five"));
        }));
        assert!(caught.is_err());
    }
}
