//! ServeGen's client models: not requests but, for each client, the rate and the distribution of
//! gaps in windows of ten minutes, and of lengths in windows of six hours.
//!
//! `chunk-N-trace.csv` has no header: window start (s), rate (1/s), coefficient of variation,
//! `Gamma` or `Weibull` or nothing, shape, scale (s). `chunk-N-dataset.json` maps window starts to
//! Python dictionaries in strings: `{tokens: probability, ...}`, `{}` where the client was idle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pb_contract::{Nanos, Stream};
use serde_json::Value;

use crate::plain::plain;
use crate::trace::TraceRow;
use crate::trace::error::{Place, TraceError};

/// More requests than this are a typing error.
const MAX_REQUESTS: f64 = 50e6;

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeGenParams {
    /// Start within the models' time, in seconds.
    pub start_s: u64,
    /// Length in seconds.
    pub duration_s: u64,
    /// All rates are multiplied by this.
    pub rate_scale: f64,
    /// Seed of gaps and lengths.
    pub seed: u64,
}

impl Default for ServeGenParams {
    fn default() -> Self {
        ServeGenParams {
            start_s: 0,
            duration_s: 600,
            rate_scale: 1.0,
            seed: 0,
        }
    }
}

/// A generated trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// Requests by arrival.
    pub rows: Vec<TraceRow>,
    /// Arrivals of clients without lengths, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
}

/// Distribution of gaps, by shape; the scale follows from the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gaps {
    Gamma(f64),
    Weibull(f64),
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start_s: u64,
    rate: f64,
    gaps: Gaps,
}

/// Values and the probability of each or one before it.
#[derive(Clone, Debug, Default)]
struct Lengths {
    cumulative: Vec<(f64, usize)>,
}

#[derive(Clone, Debug, Default)]
struct LengthWindow {
    input: Lengths,
    output: Lengths,
}

#[derive(Clone, Debug)]
struct Client {
    number: u64,
    windows: Vec<Window>,
    lengths: Option<BTreeMap<u64, LengthWindow>>,
}

/// The client models of a directory.
#[derive(Clone, Debug)]
pub struct ServeGen {
    clients: Vec<Client>,
}

impl ServeGen {
    /// Reads every `chunk-N-trace.csv` of a directory and the `chunk-N-dataset.json` beside it.
    ///
    /// # Errors
    /// No such file, or one that is not in the format.
    pub fn open(directory: &Path) -> Result<Self, TraceError> {
        let listed = std::fs::read_dir(directory).map_err(|source| TraceError::Io {
            place: at(directory, 0),
            source,
        })?;
        let number = |path: &Path| -> Option<u64> {
            let name = path.file_name()?.to_str()?;
            name.strip_prefix("chunk-")?
                .strip_suffix("-trace.csv")?
                .parse()
                .ok()
        };
        let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<(u64, PathBuf)> = paths
            .filter_map(|path| Some((number(&path)?, path)))
            .collect();
        found.sort();
        if found.is_empty() {
            return Err(TraceError::Ambiguous {
                place: Place::whole(directory.display().to_string()),
                key: None,
                message: "a directory without chunk-N-trace.csv files, the only kind of directory \
                          that holds a trace"
                    .into(),
            });
        }
        let client = |(number, path): (u64, PathBuf)| {
            let dataset = directory.join(format!("chunk-{number}-dataset.json"));
            Ok(Client {
                number,
                windows: windows(&path)?,
                lengths: dataset.exists().then(|| lengths(&dataset)).transpose()?,
            })
        };
        let clients = found
            .into_iter()
            .map(client)
            .collect::<Result<_, TraceError>>()?;
        Ok(ServeGen { clients })
    }

    /// Clients, and how many of them have lengths.
    pub fn clients(&self) -> (usize, usize) {
        let with_lengths = self
            .clients
            .iter()
            .filter(|client| client.lengths.is_some());
        (self.clients.len(), with_lengths.count())
    }

    pub(crate) fn summary(&self) -> String {
        let (all, with_lengths) = self.clients();
        format!("{all} clients, {with_lengths} of them with lengths; only those are replayed")
    }

    /// Requests per second of all clients in the window at `at_s`.
    pub fn rate(&self, at_s: u64) -> f64 {
        let rates = self.clients.iter().map(|client| client.window(at_s));
        rates.flatten().map(|window| window.rate).sum()
    }

    /// Draws a trace. The gaps of a window begin with its start; each client has streams of its
    /// own, so that leaving one out does not change the others.
    ///
    /// # Errors
    /// A scale that is not a positive number, or far too many requests.
    pub fn generate(&self, params: &ServeGenParams) -> Result<Generated, TraceError> {
        let scale = params.rate_scale;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(TraceError::Parameter {
                key: "rate_scale",
                value: scale.to_string(),
                fix: "must be a positive number".into(),
            });
        }
        let expected = self.expected(params);
        if expected > MAX_REQUESTS {
            return Err(TraceError::Parameter {
                key: "duration_s",
                value: params.duration_s.to_string(),
                fix: format!(
                    "would give {expected:.0} requests: shorten it or lower the rate scale"
                ),
            });
        }
        let mut generated = Generated::default();
        let mut keyed = Vec::new();
        for client in &self.clients {
            client.generate(params, &mut keyed, &mut generated.dropped);
        }
        // Stable: clients stay in order at one instant.
        keyed.sort_by_key(|row: &TraceRow| row.arrival_ns);
        for (number, row) in keyed.iter_mut().enumerate() {
            row.number = number as u64;
        }
        generated.rows = keyed;
        Ok(generated)
    }

    fn expected(&self, params: &ServeGenParams) -> f64 {
        let spans = self.clients.iter().flat_map(|client| client.spans(params));
        let counts = spans.map(|(window, from, to)| window.rate * (to - from));
        counts.sum::<f64>() * params.rate_scale
    }
}

impl Client {
    fn window(&self, at_s: u64) -> Option<&Window> {
        let after = self
            .windows
            .partition_point(|window| window.start_s <= at_s);
        self.windows[..after].last()
    }

    /// The windows within the asked time, each with its part of it in seconds.
    fn spans(&self, params: &ServeGenParams) -> impl Iterator<Item = (Window, f64, f64)> {
        let (start, end) = (
            params.start_s,
            params.start_s.saturating_add(params.duration_s),
        );
        let step = match &self.windows[..] {
            [first, second, ..] => second.start_s - first.start_s,
            _ => 600,
        };
        let ends = self.windows.iter().skip(1).map(|window| window.start_s);
        let last = self.windows.last().map(|window| window.start_s + step);
        let spans = self.windows.iter().zip(ends.chain(last));
        spans.filter_map(move |(window, window_end)| {
            let (from, to) = (window.start_s.max(start), window_end.min(end));
            (from < to).then_some((*window, from as f64, to as f64))
        })
    }

    fn generate(
        &self,
        params: &ServeGenParams,
        rows: &mut Vec<TraceRow>,
        dropped: &mut BTreeMap<&'static str, u64>,
    ) {
        let label = |what: &str| format!("servegen client {} {what}", self.number);
        let mut gaps = Stream::new(params.seed, &label("gaps"));
        let mut draws = Stream::new(params.seed, &label("lengths"));
        for (window, from, to) in self.spans(params) {
            let rate = window.rate * params.rate_scale;
            if rate <= 0.0 {
                continue;
            }
            let mut at = from;
            loop {
                at += window.gaps.draw(&mut gaps) / rate;
                if at >= to {
                    break;
                }
                let arrival_ns = Nanos::from_secs_f64(at - params.start_s as f64);
                match self.row(at, arrival_ns, &mut draws) {
                    Ok(row) => rows.push(row),
                    Err(reason) => *dropped.entry(reason).or_default() += 1,
                }
            }
        }
    }

    fn row(
        &self,
        at_s: f64,
        arrival_ns: Nanos,
        draws: &mut Stream,
    ) -> Result<TraceRow, &'static str> {
        let windows = self.lengths.as_ref().ok_or("client_without_lengths")?;
        let window = windows.range(..=at_s as u64).next_back();
        let (_, window) = window.ok_or("window_without_lengths")?;
        let lengths = window.input.draw(draws).zip(window.output.draw(draws));
        let (input_tokens, output_tokens) = lengths.ok_or("window_without_lengths")?;
        if input_tokens == 0 {
            return Err("empty_input");
        }
        Ok(TraceRow {
            arrival_ns,
            input_tokens,
            output_tokens,
            ..TraceRow::default()
        })
    }
}

impl Gaps {
    /// A gap of mean 1.
    fn draw(self, stream: &mut Stream) -> f64 {
        match self {
            Gaps::Gamma(shape) => stream.gamma(shape, 1.0 / shape),
            Gaps::Weibull(shape) => {
                let exponential = stream.exponential(1.0);
                libm::pow(exponential, 1.0 / shape) / libm::tgamma(1.0 + 1.0 / shape)
            }
        }
    }
}

impl Lengths {
    fn draw(&self, stream: &mut Stream) -> Option<usize> {
        let total = self.cumulative.last()?.0;
        let at = stream.unit_f64() * total;
        let index = self.cumulative.partition_point(|&(below, _)| below <= at);
        let index = index.min(self.cumulative.len() - 1);
        Some(self.cumulative[index].1)
    }

    /// `{value: probability, ...}` as Python prints it.
    fn parse(text: &str) -> Option<Self> {
        let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
        let (mut cumulative, mut sum) = (Vec::new(), 0.0);
        for pair in inside.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (value, probability) = pair.split_once(':')?;
            let probability: f64 = probability.trim().parse().ok()?;
            if !(probability.is_finite() && probability >= 0.0) {
                return None;
            }
            sum += probability;
            cumulative.push((sum, value.trim().parse::<u32>().ok()? as usize));
        }
        let usable = sum > 0.0 || cumulative.is_empty();
        usable.then_some(Lengths { cumulative })
    }
}

fn at(path: &Path, line: u64) -> Place {
    Place {
        file: Arc::from(path.display().to_string()),
        line,
    }
}

fn text_of(path: &Path) -> Result<String, TraceError> {
    std::fs::read_to_string(path).map_err(|source| TraceError::Io {
        place: at(path, 0),
        source,
    })
}

fn windows(path: &Path) -> Result<Vec<Window>, TraceError> {
    let text = text_of(path)?;
    let mut windows: Vec<Window> = Vec::new();
    for (line, number) in text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty())
    {
        let place = at(path, number);
        let window = window(line).ok_or_else(|| {
            let fix = "must be start, rate, cv, Gamma or Weibull or nothing, shape, scale";
            TraceError::value(&place, "window", line, fix)
        })?;
        let ordered = windows
            .last()
            .is_none_or(|last| last.start_s < window.start_s);
        if !ordered {
            let fix = "must start after the window before";
            return Err(TraceError::value(&place, "window", line, fix));
        }
        windows.push(window);
    }
    Ok(windows)
}

fn window(line: &str) -> Option<Window> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [start, rate, _cv, pattern, shape, _scale] = fields[..] else {
        return None;
    };
    let rate: f64 = rate
        .parse()
        .ok()
        .filter(|r: &f64| r.is_finite() && *r >= 0.0)?;
    let shape = || {
        shape
            .parse()
            .ok()
            .filter(|s: &f64| s.is_finite() && *s > 0.0)
    };
    let gaps = match pattern {
        "Gamma" => Gaps::Gamma(shape()?),
        "Weibull" => Gaps::Weibull(shape()?),
        // Poisson, where a rate is given at all.
        "" => Gaps::Gamma(1.0),
        _ => return None,
    };
    let start: f64 = start.parse().ok().filter(|s| (0.0..=1e12).contains(s))?;
    Some(Window {
        start_s: start as u64,
        rate,
        gaps,
    })
}

fn lengths(path: &Path) -> Result<BTreeMap<u64, LengthWindow>, TraceError> {
    let text = text_of(path)?;
    let place = at(path, 1);
    let parsed: BTreeMap<String, Value> = serde_json::from_str(&text).map_err(|e| {
        TraceError::line(
            &place,
            format!("not a JSON object of windows: {}", plain(&e.to_string())),
        )
    })?;
    let mut windows = BTreeMap::new();
    for (start, fields) in parsed {
        let read = |key: &str| {
            let value = fields.get(key).unwrap_or(&Value::Null);
            let lengths = value.as_str().and_then(Lengths::parse);
            lengths.ok_or_else(|| {
                let fix = "must be a string that holds a Python dictionary of probabilities";
                TraceError::value(&place, &format!("{start}.{key}"), value, fix)
            })
        };
        let window = LengthWindow {
            input: read("input_tokens")?,
            output: read("output_tokens")?,
        };
        let start_s: u64 = start
            .parse()
            .map_err(|_| TraceError::value(&place, "window", &start, "must be whole seconds"))?;
        windows.insert(start_s, window);
    }
    Ok(windows)
}
