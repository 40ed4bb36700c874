//! Stopping a run by hand.
//!
//! The first SIGINT or SIGTERM ends what is going on in order: nothing new is sent, the rows of
//! what had ended are kept, the document is written. The second ends the process at once. Rows
//! are appended without a buffer, so even then nothing is lost that had ended.

use std::fmt;
use std::future::Future;
use std::sync::mpsc;

use anyhow::{Context, Result, anyhow};
use pb_load::StopSignal;

/// Exit code of a program that ended in order because somebody wished so.
pub(crate) const EXIT_INTERRUPTED: u8 = 3;

/// Exit code of a process that a second signal ended: 128 and the number of SIGINT, as shells
/// have it.
pub(crate) const EXIT_AT_ONCE: i32 = 130;

/// A phase before the measurement was interrupted: there is nothing to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted before the measurement began")
    }
}

impl std::error::Error for Interrupted {}

/// The wish to stop. Clones are the same wish.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    signal: StopSignal,
}

impl Interrupt {
    /// Catches SIGINT and SIGTERM from now on, on a thread of its own.
    ///
    /// # Errors
    /// The system does not allow it.
    pub(crate) fn install() -> Result<Interrupt> {
        Interrupt::with_second(|| std::process::exit(EXIT_AT_ONCE))
    }

    /// As [`Interrupt::install`]; `second` is what the second signal does.
    fn with_second(second: impl FnOnce() + Send + 'static) -> Result<Interrupt> {
        const WHAT: &str = "cannot catch signals";
        let interrupt = Interrupt::default();
        let signal = interrupt.signal.clone();
        let (ready, is_ready) = mpsc::channel();
        let builder = std::thread::Builder::new().name("signals".to_owned());
        builder
            .spawn(move || watch(&signal, &ready, second))
            .context(WHAT)?;
        let caught = is_ready.recv();
        let caught = caught
            .map_err(|_| anyhow!("the thread ended"))
            .context(WHAT)?;
        caught.context(WHAT)?;
        Ok(interrupt)
    }

    /// The switch that run loops look at.
    pub(crate) fn signal(&self) -> StopSignal {
        self.signal.clone()
    }

    /// Does `work`, unless the wish comes first; `work` is dropped then.
    ///
    /// # Errors
    /// The wish came first.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        tokio::select! {
            biased;
            () = self.signal.stopped() => Err(Interrupted),
            done = work => Ok(done),
        }
    }
}

/// Waits for signals: the first one turns `signal` on, the second one does `second`.
fn watch(signal: &StopSignal, ready: &mpsc::Sender<std::io::Result<()>>, second: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let mut signals = Signals::new()?;
            // The installer waits for this and is there.
            let _ = ready.send(Ok(()));
            signals.next().await;
            crate::console::say("stopping; what has ended is kept. Once more to end at once.");
            signal.stop();
            signals.next().await;
            second();
            Ok(())
        })
    });
    if let Err(error) = served {
        // Nobody listens any more when signals were caught already.
        let _ = ready.send(Err(error));
    }
}

/// The signals that ask a process to end.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The signals that ask a process to end.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        // Without it there is no wish to stop, and the process ends as the system has it.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn send(name: &str) {
        let id = std::process::id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(sent.success());
    }

    #[tokio::test]
    async fn the_first_signal_asks_and_the_second_ends() {
        let (ended, has_ended) = mpsc::channel();
        let interrupt = Interrupt::with_second(move || ended.send(()).unwrap()).unwrap();
        assert!(!interrupt.signal().is_stopped());
        assert_eq!(interrupt.guard(async { 7 }).await, Ok(7));
        send("-TERM");
        let long = tokio::time::sleep(Duration::from_secs(30));
        assert_eq!(interrupt.guard(long).await, Err(Interrupted));
        assert!(interrupt.signal().is_stopped());
        let quiet = has_ended.recv_timeout(Duration::from_millis(100));
        assert!(quiet.is_err(), "one signal must not end the process");
        send("-INT");
        has_ended
            .recv_timeout(Duration::from_secs(10))
            .expect("the second signal");
    }

    #[tokio::test]
    async fn a_wish_that_came_before_stops_at_once() {
        let interrupt = Interrupt::default();
        interrupt.signal().stop();
        // Ready work is not done either.
        assert_eq!(interrupt.guard(async { 7 }).await, Err(Interrupted));
    }
}
