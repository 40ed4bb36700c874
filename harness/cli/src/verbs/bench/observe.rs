//! The server's own figures over the measured window.
//!
//! Its metrics page is read at the edges of the window and at a fixed cadence between, on a
//! thread and a connection of its own, and is stored as it came (`scrapes.jsonl`); what is made
//! of it comes after the run, so that nothing is parsed while the client measures. A server
//! without such a page is measured all the same.

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use pb_bench::{Gauge, Gauges, SERVER_FILE, Server, ServerLatency, WindowCounters};
use pb_contract::{Clock, Nanos, RequestRow, RequestStatus, WallClock};
use pb_load::Endpoint;
use pb_load::control::{Control, Method};
use pb_record::metrics::request_metrics;
use pb_target::{
    Edge, Exposition, Histogram, Scrape, ScrapeReader, ScrapeSummary, ServerStats, ServerWindow,
    TtftGap,
};
use serde::Serialize;

/// The pages as they came, a line of JSON each.
pub(crate) const SCRAPES_FILE: &str = "scrapes.jsonl";

/// How long one page is waited for.
const PAGE: Nanos = Nanos::from_secs(2);

/// How long the counters are waited for after the last request: servers write them at the end of
/// a step, or once in a while.
const SETTLE: Nanos = Nanos::from_secs(2);

/// Between two looks at them.
const PAUSE: Nanos = Nanos::from_millis(50);

/// Where the page is, and how often it is read.
#[derive(Clone, Debug)]
pub(crate) struct ObservePlan {
    /// Server that has the page.
    pub(crate) endpoint: Endpoint,
    /// Path of the page.
    pub(crate) route: String,
    /// Cadence.
    pub(crate) every: Nanos,
}

/// A window that is being observed.
#[derive(Debug)]
pub(crate) struct Observer {
    plan: ObservePlan,
    dir: PathBuf,
    reader: Option<ScrapeReader>,
    kept: Arc<Mutex<Kept>>,
}

/// What the reader's thread leaves behind.
#[derive(Debug, Default)]
struct Kept {
    first: Option<ServerStats>,
    /// The first error of each kind: of a page, and of the file.
    page_error: Option<String>,
    file_error: Option<String>,
}

/// What was observed.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    plan: ObservePlan,
    summary: ScrapeSummary,
    window: Option<ServerWindow>,
    gauges: Gauges,
    notes: Vec<String>,
}

impl Observer {
    /// Reads the start of the window, returns, and goes on reading.
    ///
    /// # Errors
    /// `scrapes.jsonl` cannot be created in `dir`, or no thread can be started.
    pub(crate) fn start(plan: ObservePlan, dir: &Path) -> Result<Observer> {
        let path = dir.join(SCRAPES_FILE);
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let kept = Arc::new(Mutex::new(Kept::default()));
        let into = Arc::clone(&kept);
        let on = move |scrape: &Scrape| keep(&into, scrape, &mut file);
        let cadence = (plan.every, PAGE);
        let reader = ScrapeReader::spawn(&plan.endpoint, &plan.route, cadence, on)?;
        Ok(Observer {
            plan,
            dir: dir.to_owned(),
            reader: Some(reader),
            kept,
        })
    }

    /// Waits until the counters show `rows`, reads the end of the window and stops. Writes
    /// `server.csv`.
    ///
    /// # Errors
    /// A file of the run directory cannot be written or read back.
    pub(crate) fn stop(mut self, rows: &[RequestRow]) -> Result<Observed> {
        let first = self.locked(|kept| kept.first.clone());
        let mut notes = Vec::new();
        if let Some(first) = &first
            && !self.settle(first, rows)?
        {
            notes.push(format!(
                "the server's counters did not come to show all requests within {SETTLE}"
            ));
        }
        let summary = match self.reader.take() {
            Some(reader) => reader.stop()?,
            None => ScrapeSummary::default(),
        };
        let (page_error, file_error) =
            self.locked(|kept| (kept.page_error.take(), kept.file_error.take()));
        if let Some(error) = file_error {
            anyhow::bail!(
                "cannot write {}: {error}",
                self.dir.join(SCRAPES_FILE).display()
            );
        }
        let window = summary.window();
        if let Some(error) = page_error {
            let (failed, all) = (summary.failed, summary.scrapes);
            let route = self.plan.endpoint.url(&self.plan.route);
            notes.push(format!(
                "{failed} of {all} readings of {route} gave no page: {error}"
            ));
        }
        for stats in [&summary.first, &summary.last].into_iter().flatten() {
            notes.extend(stats.problems.iter().cloned());
        }
        notes.dedup();
        let gauges = self.write_series()?;
        Ok(Observed {
            plan: self.plan,
            summary,
            window,
            gauges,
            notes,
        })
    }

    fn locked<T>(&self, read: impl FnOnce(&mut Kept) -> T) -> T {
        read(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the counters came to show `rows`, or do not exist.
    fn settle(&self, first: &ServerStats, rows: &[RequestRow]) -> Result<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let control = Control::new(&self.plan.endpoint)?;
        let start = WallClock.now();
        loop {
            let asked = control.exchange(Method::GET, &self.plan.route, None);
            let limit = PAGE.to_duration();
            let answer = runtime.block_on(async { tokio::time::timeout(limit, asked).await });
            // A page that does not come is noted by the reader.
            let Ok(Ok(page)) = answer else {
                return Ok(true);
            };
            let stats = ServerStats::read(&Exposition::parse(&page.body));
            if shows(&ServerWindow::between(first, &stats), rows) {
                return Ok(true);
            }
            if WallClock.now() + PAUSE > start + SETTLE {
                return Ok(false);
            }
            // Made inside the runtime: its timer is needed.
            runtime.block_on(async { tokio::time::sleep(PAUSE.to_duration()).await });
        }
    }

    /// Writes the series; the gauges over it.
    fn write_series(&self) -> Result<Gauges> {
        let path = self.dir.join(SCRAPES_FILE);
        let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let scrapes = Scrape::read_lines(BufReader::new(file))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let rows: Vec<SeriesRow> = scrapes.iter().filter_map(SeriesRow::of).collect();
        let path = self.dir.join(SERVER_FILE);
        let write = || -> Result<()> {
            let mut out = csv::Writer::from_path(&path)?;
            for row in &rows {
                out.serialize(row)?;
            }
            Ok(out.flush()?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Gauges {
            running: Gauge::of(rows.iter().map(|row| row.running)),
            waiting: Gauge::of(rows.iter().map(|row| row.waiting)),
            kv_usage: Gauge::of(rows.iter().map(|row| row.kv_usage)),
        })
    }
}

/// Stores a page; on the reader's thread.
fn keep(kept: &Mutex<Kept>, scrape: &Scrape, file: &mut File) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    // Only the first page is looked at, before the first request.
    if scrape.edge == Edge::Start {
        kept.first = scrape.stats();
    }
    if let Some(error) = &scrape.error {
        kept.page_error.get_or_insert_with(|| error.clone());
    }
    if kept.file_error.is_none()
        && let Err(error) = scrape.write_line(file)
    {
        kept.file_error = Some(error.to_string());
    }
}

/// Whether the counters that there are show every request of `rows`.
fn shows(window: &ServerWindow, rows: &[RequestRow]) -> bool {
    let first_tokens = rows.iter().filter(|row| row.first_token_ns.is_some());
    let ended = rows.iter().filter(|row| row.status == RequestStatus::Ok);
    let prompts = ended.clone().filter_map(|row| row.prompt_tokens);
    let reached = |have: Option<u64>, want: u64| have.is_none_or(|have| have >= want);
    let count = |histogram: &Option<Histogram>| histogram.as_ref().map(|h| h.count);
    reached(count(&window.latencies.ttft), first_tokens.count() as u64)
        && reached(count(&window.latencies.e2e), ended.count() as u64)
        && reached(window.counters.prompt_tokens, prompts.map(u64::from).sum())
}

/// The figures of one page; its first columns are those of `pb_bench::ServerPoint`. Counters
/// count since the server started.
#[derive(Debug, Serialize)]
struct SeriesRow {
    at_ns: u64,
    running: Option<f64>,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    took_ns: u64,
    hit_tokens: Option<u64>,
    query_tokens: Option<u64>,
    external_hit_tokens: Option<u64>,
    preemptions: Option<u64>,
    prompt_tokens: Option<u64>,
    generation_tokens: Option<u64>,
}

impl SeriesRow {
    /// Nothing for a reading without a page.
    fn of(scrape: &Scrape) -> Option<SeriesRow> {
        let stats = scrape.stats()?;
        let counters = stats.counters;
        Some(SeriesRow {
            at_ns: scrape.at_ns.0,
            running: stats.running,
            waiting: stats.waiting,
            kv_usage: stats.kv_usage,
            took_ns: scrape.took_ns.0,
            hit_tokens: counters.hit_tokens,
            query_tokens: counters.query_tokens,
            external_hit_tokens: counters.external_hit_tokens,
            preemptions: counters.preemptions,
            prompt_tokens: counters.prompt_tokens,
            generation_tokens: counters.generation_tokens,
        })
    }
}

impl Observed {
    /// What the server did within the window; absent without both of its edges.
    pub(crate) fn window(&self) -> Option<&ServerWindow> {
        self.window.as_ref()
    }

    /// What speaks against the run.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let restarted = self.window.as_ref().is_some_and(|window| window.restarted);
        let why = "the server was started again within the window: its counters went backwards";
        restarted.then(|| why.to_owned()).into_iter().collect()
    }

    /// For the result. What is no reason against the run and must be read with care is in its
    /// notes.
    pub(crate) fn document(&self, rows: &[RequestRow]) -> Server {
        let window = self.window.clone().unwrap_or_default();
        let mut notes = self.notes.clone();
        let gap = window.latencies.ttft.as_ref();
        let gap = gap.map(|server| TtftGap::new(&service_ttft(rows), server));
        notes.extend(gap.iter().flat_map(|gap| gap.notes.iter().cloned()));
        if let Some(count) = window.counters.preemptions.filter(|&count| count > 0) {
            notes.push(format!(
                "{count} preemptions: what a preempted request finds of its own blocks is counted \
                 as a prefix hit"
            ));
        }
        if self.summary.missed > 0 {
            notes.push(format!(
                "{} readings were left out because the page before was still being read",
                self.summary.missed
            ));
        }
        let counters = window.counters;
        let [ttft, itl, queue, e2e] = window.latencies.all().map(|h| h.map(ServerLatency::from));
        Server {
            metrics_url: self.plan.endpoint.url(&self.plan.route),
            scrapes: self.summary.scrapes,
            failed_scrapes: self.summary.failed,
            interval_ms: Some(self.plan.every.as_millis_f64()),
            counters: WindowCounters {
                hit_tokens: counters.hit_tokens,
                query_tokens: counters.query_tokens,
                external_hit_tokens: counters.external_hit_tokens,
                preemptions: counters.preemptions,
                prompt_tokens: counters.prompt_tokens,
                generation_tokens: counters.generation_tokens,
            },
            gauges: self.gauges,
            ttft,
            itl,
            queue,
            e2e,
            client_minus_server_ttft: gap,
            notes,
        }
    }
}

/// From sending to the first token, of every request that had both, however it ended: the server
/// counts them too.
fn service_ttft(rows: &[RequestRow]) -> Vec<Nanos> {
    let of = |row| request_metrics(row).service_ttft_ns.map(Nanos);
    rows.iter().filter_map(of).collect()
}

#[cfg(test)]
pub(crate) mod pages;
#[cfg(test)]
mod tests;
