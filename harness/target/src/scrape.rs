//! Reading a server's metrics page while it is measured.
//!
//! The page is stored as it came, at the edges of the window and at a fixed cadence between, so
//! that any later question can be asked of it. The reader has a thread and a connection of its
//! own and delays no request.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use pb_contract::{Clock, Nanos, WallClock};
use pb_load::control::{Control, Method};
use pb_load::{Endpoint, LoadError};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::prometheus::Exposition;
use crate::stats::{ServerStats, ServerWindow};

/// Where in the window a page was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Before the first request.
    Start,
    /// At the cadence.
    Between,
    /// After the last request.
    End,
}

/// One reading of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrape {
    /// Where in the window.
    pub edge: Edge,
    /// When it was asked for, on the machine's monotonic clock.
    pub at_ns: Nanos,
    /// How long the answer took.
    pub took_ns: Nanos,
    /// The page as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Scrape {
    /// The page's figures.
    pub fn stats(&self) -> Option<ServerStats> {
        let body = self.body.as_deref()?;
        Some(ServerStats::read(&Exposition::parse(body)))
    }

    /// Writes it as one line of JSON.
    ///
    /// # Errors
    /// The writer fails.
    pub fn write_line(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Reads what [`Scrape::write_line`] wrote.
    ///
    /// # Errors
    /// The reader fails, or a line is no scrape.
    pub fn read_lines(from: impl BufRead) -> io::Result<Vec<Scrape>> {
        let parse = |line: io::Result<String>| Ok(serde_json::from_str(&line?)?);
        from.lines().map(parse).collect()
    }
}

/// What a reader has read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrapeSummary {
    /// Readings.
    pub scrapes: u64,
    /// Of these, without a page.
    pub failed: u64,
    /// Instants of the cadence that passed while an earlier page was still read.
    pub missed: u64,
    /// Figures at the start of the window.
    pub first: Option<ServerStats>,
    /// Figures at its end.
    pub last: Option<ServerStats>,
    /// Most requests seen in the queue.
    pub waiting_max: Option<f64>,
    /// Most requests seen running.
    pub running_max: Option<f64>,
    /// Highest use of the KV cache seen, 0 to 1.
    pub kv_usage_max: Option<f64>,
}

impl ScrapeSummary {
    /// What the server did within the window; `None` without both of its edges.
    pub fn window(&self) -> Option<ServerWindow> {
        Some(ServerWindow::between(
            self.first.as_ref()?,
            self.last.as_ref()?,
        ))
    }

    fn add(&mut self, scrape: &Scrape) {
        self.scrapes += 1;
        let Some(stats) = scrape.stats() else {
            self.failed += 1;
            return;
        };
        let max = |a: Option<f64>, b: Option<f64>| a.max_by_value(b);
        self.waiting_max = max(self.waiting_max, stats.waiting);
        self.running_max = max(self.running_max, stats.running);
        self.kv_usage_max = max(self.kv_usage_max, stats.kv_usage);
        match scrape.edge {
            Edge::Start => self.first = Some(stats),
            Edge::Between => {}
            Edge::End => self.last = Some(stats),
        }
    }
}

/// The larger of two figures that may be absent.
trait MaxByValue {
    fn max_by_value(self, other: Self) -> Self;
}

impl MaxByValue for Option<f64> {
    fn max_by_value(self, other: Self) -> Self {
        match (self, other) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
    }
}

/// A thread that reads the page until it is stopped.
#[derive(Debug)]
pub struct ScrapeReader {
    stop: Sender<()>,
    thread: JoinHandle<ScrapeSummary>,
}

impl ScrapeReader {
    /// Reads the start of the window, returns, and goes on reading every `every`; each reading
    /// is handed to `on`. A page that does not come within `limit` is a reading without a page.
    ///
    /// # Errors
    /// The thread or its HTTP client cannot be set up.
    pub fn spawn(
        endpoint: &Endpoint,
        route: &str,
        (every, limit): (Nanos, Nanos),
        on: impl FnMut(&Scrape) + Send + 'static,
    ) -> Result<ScrapeReader, LoadError> {
        let system = |what| move |source| LoadError::System { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("cannot start a runtime"))?;
        let mut reader = Reader {
            runtime,
            control: Control::new(endpoint)?,
            route: route.to_owned(),
            limit,
            on,
            summary: ScrapeSummary::default(),
        };
        let (started, at_start) = channel();
        let (stop, stopped) = channel();
        let work = move || {
            reader.read(Edge::Start);
            let _ = started.send(());
            reader.run(every, &stopped);
            reader.summary
        };
        let builder = std::thread::Builder::new().name("metrics".to_owned());
        let thread = builder
            .spawn(work)
            .map_err(system("cannot start a thread"))?;
        // An error means that the thread panicked; `stop` tells.
        let _ = at_start.recv();
        Ok(ScrapeReader { stop, thread })
    }

    /// Reads the end of the window and stops.
    ///
    /// # Errors
    /// The thread panicked, in `on` for example.
    pub fn stop(self) -> Result<ScrapeSummary, LoadError> {
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| LoadError::System {
            what: "the metrics reader panicked",
            source: io::Error::other("see the message above"),
        })
    }
}

struct Reader<F> {
    runtime: Runtime,
    control: Control,
    route: String,
    limit: Nanos,
    on: F,
    summary: ScrapeSummary,
}

impl<F: FnMut(&Scrape)> Reader<F> {
    fn run(&mut self, every: Nanos, stopped: &Receiver<()>) {
        let every = every.max(Nanos::from_millis(1));
        let start = WallClock.now();
        let mut slot = 1;
        loop {
            let due = Nanos(start.0.saturating_add(every.0.saturating_mul(slot)));
            let wait = due.saturating_sub(WallClock.now()).to_duration();
            match stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => self.read(Edge::Between),
                // Dropped without a stop: nobody waits for the end of the window.
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(()) => {
                    self.read(Edge::End);
                    return;
                }
            }
            let next = (WallClock.now() - start).0 / every.0 + 1;
            self.summary.missed += next.saturating_sub(slot + 1);
            slot = next.max(slot + 1);
        }
    }

    fn read(&mut self, edge: Edge) {
        let at_ns = WallClock.now();
        let asked = self.control.exchange(Method::GET, &self.route, None);
        let limit = self.limit.to_duration();
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(limit, asked).await });
        let (body, error) = match answer {
            Ok(Ok(answer)) if answer.status == 200 => (Some(answer.body), None),
            Ok(Ok(answer)) => (None, Some(format!("HTTP {}", answer.status))),
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some(format!("no answer within {}", self.limit))),
        };
        let took_ns = WallClock.now() - at_ns;
        let scrape = Scrape {
            edge,
            at_ns,
            took_ns,
            body,
            error,
        };
        self.summary.add(&scrape);
        (self.on)(&scrape);
    }
}
