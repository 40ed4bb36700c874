//! What a run asks of its target, resolved from the options.

use anyhow::{Context, Result, anyhow, bail};
use pb_bench::{Objective, Selection, Shard, Slo};
use pb_contract::Nanos;
use pb_load::Limits;
use pb_record::visible::hides;
use pb_target::ServerKind;
use pb_workloads::{ArrivalKind, Dataset, Form, IndexRamp, LoadShape, MAX_REQUESTS, Ramp};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::dataset::dataset;
use crate::args::{
    Api, ArrivalArg, Backend, BenchOptions, CacheArg, Format, InputUnit, RampStrategy, Text,
    Timeout, Warmup,
};

/// Token ids that prompts are drawn from when nothing else is known of the vocabulary.
const IDS: (u32, u32) = (1000, 16_000);

/// Seed when none is given.
const SEED: u64 = 1;

/// Milliseconds between two readings of the metrics page.
const SCRAPE_MS: usize = 1000;

/// The longest time between them: a day.
const MAX_SCRAPE_MS: usize = 86_400_000;

/// The resolved settings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Address of the server.
    pub(crate) base_url: String,
    /// Interface.
    pub(crate) api: Api,
    /// Form of the prompts.
    pub(crate) form: Form,
    /// Token ids of the prompts, the last one excluded; absent: of the tokenizer, or the default.
    pub(crate) ids: Option<(u32, u32)>,
    /// The workload.
    pub(crate) dataset: Dataset,
    /// When requests are due.
    pub(crate) shape: LoadShape,
    /// Seed of the schedule.
    pub(crate) seed: u64,
    /// What the nonce makes of it; 0 without one.
    pub(crate) nonce: u64,
    /// The part of the schedule that is sent.
    pub(crate) shard: Option<Shard>,
    /// Whether the end-of-sequence token is ignored.
    pub(crate) ignore_eos: bool,
    /// State of the cache that is asked for.
    pub(crate) cache: CacheArg,
    /// When a request is good.
    pub(crate) objectives: Vec<Objective>,
    /// Limits of a request.
    pub(crate) limits: Limits,
    /// Between two readings of the metrics page; absent: it is not read.
    pub(crate) scrape_ns: Option<Nanos>,
    /// Whether the client is calibrated before the run.
    pub(crate) calibrate: bool,
    /// What was given, header values hidden.
    pub(crate) options: BenchOptions,
    /// Gates.
    #[serde(skip)]
    pub(crate) gates: Vec<Slo>,
    /// What is sent before the measurement.
    #[serde(skip)]
    pub(crate) warmup: Option<Warmup>,
    /// Form of the result.
    #[serde(skip)]
    pub(crate) format: Format,
    /// Latencies and percentiles that were chosen.
    #[serde(skip)]
    pub(crate) selection: Option<Selection>,
}

impl Settings {
    /// Resolves the options.
    ///
    /// # Errors
    /// Options that contradict each other or their data set.
    pub(crate) fn new(options: BenchOptions, json: bool) -> Result<Settings> {
        named(&options)?;
        let api = api(&options)?;
        let form = form(&options, api)?;
        let shape = shape(&options)?;
        let Some(base_url) = base_url(&options)? else {
            bail!("--base-url: where is the server? Write it as http://HOST:PORT");
        };
        let scrape = options.scrape_interval_ms.as_ref();
        let every = scrape.map_or(SCRAPE_MS, |text| text.value.0) as u64;
        let scraped = options.no_scrape != Some(true);
        Ok(Settings {
            base_url,
            api,
            form,
            ids: options
                .random_range_ids
                .as_ref()
                .map(|text| (text.value.0, text.value.1)),
            dataset: dataset(&options)?,
            shape,
            seed: options.seed.unwrap_or(SEED),
            nonce: nonce(&options)?,
            shard: options.shard.as_ref().map(|text| text.value),
            ignore_eos: options.ignore_eos.unwrap_or(false),
            cache: options.cache.unwrap_or(CacheArg::Asis),
            objectives: options
                .goodput
                .iter()
                .flatten()
                .map(|text| text.value)
                .collect(),
            limits: limits(&options),
            scrape_ns: scraped.then(|| Nanos::from_millis(every)),
            calibrate: options.no_calibration != Some(true),
            gates: options
                .slo
                .iter()
                .flatten()
                .map(|text| text.value)
                .collect(),
            warmup: options.warmup.as_ref().map(|text| text.value),
            format: match json {
                true => Format::Json,
                false => options.format.unwrap_or(Format::Table),
            },
            selection: selection(&options)?,
            options,
        })
    }

    /// Whether connections are kept for further requests. llama.cpp's server closes a kept one
    /// now and then in the moment in which the next request is on its way.
    pub(crate) fn reuses_connections(&self, server: ServerKind) -> bool {
        let given = self.options.reuse_connections;
        given.unwrap_or(server != ServerKind::LlamaCpp)
    }

    /// Token ids that prompts are drawn from; `bound` is one more than the tokenizer's last.
    pub(crate) fn id_range(&self, bound: Option<usize>) -> (u32, u32) {
        let own = bound.and_then(|bound| u32::try_from(bound).ok());
        let default = (IDS.0, own.map_or(IDS.1, |bound| IDS.1.min(bound)));
        self.ids.unwrap_or(default)
    }
}

/// The number that a nonce stands for: the first eight bytes of its sha256, the lowest first.
///
/// # Errors
/// A data set whose prompts are those of its file.
fn nonce(options: &BenchOptions) -> Result<u64> {
    use crate::args::DatasetName as D;
    let Some(nonce) = &options.nonce else {
        return Ok(0);
    };
    if let Some(name @ (D::Sharegpt | D::Custom)) = options.dataset_name {
        bail!(
            "--nonce {nonce}: the prompts of --dataset-name {} are the texts of its file, and no \
             nonce changes them; use --cache cold",
            name.name()
        );
    }
    let digest = Sha256::digest(nonce.value.0.as_bytes());
    let bytes = digest.iter().take(8).rev();
    Ok(bytes.fold(0, |number, &byte| (number << 8) | u64::from(byte)))
}

/// Checks names that are no numbers: an empty one is a variable that was not set.
fn named(options: &BenchOptions) -> Result<()> {
    for (flag, value) in [
        ("--model", &options.model),
        ("--served-model-name", &options.served_model_name),
        ("--label", &options.label),
        ("--result-filename", &options.result_filename),
    ] {
        if value.as_ref().is_some_and(|value| value.trim().is_empty()) {
            bail!("{flag}: is empty; give a name, or leave it out");
        }
    }
    if let Some(label) = &options.label
        && (label.contains(['/', '\\']) || label.starts_with('.') || label.chars().any(hides))
    {
        bail!(
            "--label {label}: becomes a part of a file's name: leave out slashes, control \
             characters and a leading point"
        );
    }
    if options.port == Some(0) {
        bail!("--port 0: no server listens there; give a port from 1 to 65535");
    }
    if let Some(slots) = &options.max_concurrency
        && slots.value.0 > MAX_REQUESTS
    {
        bail!(
            "--max-concurrency {slots}: must be at most {MAX_REQUESTS}, the requests that a plan \
             may hold"
        );
    }
    if options
        .scrape_interval_ms
        .as_ref()
        .is_some_and(|ms| ms.value.0 > MAX_SCRAPE_MS)
    {
        bail!("--scrape-interval-ms: must be at most {MAX_SCRAPE_MS}; --no-scrape reads nothing");
    }
    Ok(())
}

fn selection(options: &BenchOptions) -> Result<Option<Selection>> {
    let metrics = options.percentile_metrics.as_deref();
    let percentiles = options.metric_percentiles.as_deref();
    if metrics.is_none() && percentiles.is_none() {
        return Ok(None);
    }
    Selection::parse(metrics, percentiles)
        .map(Some)
        .map_err(|error| anyhow!(error))
}

fn base_url(options: &BenchOptions) -> Result<Option<String>> {
    let placed = options.host.is_some() || options.port.is_some();
    match &options.base_url {
        Some(_) if placed => {
            bail!("--base-url says where the server is: leave --host and --port out")
        }
        Some(url) => Ok(Some(url.clone())),
        None if placed => {
            let host = options.host.as_deref().unwrap_or("127.0.0.1");
            Ok(Some(format!(
                "http://{host}:{}",
                options.port.unwrap_or(8000)
            )))
        }
        None => Ok(None),
    }
}

fn api(options: &BenchOptions) -> Result<Api> {
    let backend = options.backend.map(|backend| match backend {
        Backend::Openai | Backend::Vllm => Api::Completions,
        Backend::OpenaiChat => Api::Chat,
    });
    if let (Some(api), Some(backend)) = (options.api, backend)
        && api != backend
    {
        bail!("--api and --backend name two interfaces: leave one out");
    }
    let route = options.endpoint.as_ref().map(|text| &text.value.0);
    let chat = route.is_some_and(|route| route.ends_with("/chat/completions"));
    let told = if chat { Api::Chat } else { Api::Completions };
    Ok(options.api.or(backend).unwrap_or(told))
}

fn form(options: &BenchOptions, api: Api) -> Result<Form> {
    match (api, options.input_unit) {
        (Api::Chat, Some(InputUnit::Ids)) => {
            bail!("--input-unit ids: a chat message is a text; use text, or --api completions")
        }
        (Api::Chat, _) => Ok(Form::Chat),
        (Api::Completions, Some(InputUnit::Text)) => Ok(Form::Text),
        (Api::Completions, Some(InputUnit::Ids) | None) => Ok(Form::Ids),
    }
}

fn shape(options: &BenchOptions) -> Result<LoadShape> {
    let rate = options.request_rate.as_ref().map(|text| text.value.0);
    let rate = rate.filter(|rate| rate.is_finite());
    let streams = options.max_concurrency.as_ref().map(|text| text.value.0);
    let ramp = ramp(options)?;
    let rated = rate.is_some() || ramp.is_some();
    if let Some(burstiness) = &options.burstiness
        && burstiness.value.0 != 1.0
        && !rated
    {
        bail!("--burstiness {burstiness} shapes the gaps of an open loop: give --request-rate too");
    }
    let timed = |name| {
        use crate::args::DatasetName as D;
        matches!(
            name,
            D::TimedTrace | D::Trace | D::Servegen | D::Interference
        )
    };
    let has_times = options.dataset_name.is_some_and(timed);
    if options.duration.is_some() && !rated && streams.is_none() && !has_times {
        bail!("--duration: give --request-rate or --max-concurrency too");
    }
    let shape = LoadShape {
        arrival: options.arrival.map(arrival),
        request_rate: rate,
        burstiness: options.burstiness.as_ref().map_or(1.0, |text| text.value.0),
        max_concurrency: streams,
        num_prompts: options.num_prompts.as_ref().map(|text| text.value.0),
        duration_s: options.duration.as_ref().map(|text| text.value.0),
        ramp,
    };
    // Told before the server is asked; whether the data set has times is known later.
    shape.resolve(true).context("--arrival")?;
    Ok(shape)
}

fn arrival(arrival: ArrivalArg) -> ArrivalKind {
    match arrival {
        ArrivalArg::Poisson => ArrivalKind::Poisson,
        ArrivalArg::Gamma => ArrivalKind::Gamma,
        ArrivalArg::Constant => ArrivalKind::Constant,
        ArrivalArg::Burst => ArrivalKind::Burst,
        ArrivalArg::Trace => ArrivalKind::Trace,
        ArrivalArg::Closed => ArrivalKind::Closed,
    }
}

fn ramp(options: &BenchOptions) -> Result<Option<Ramp>> {
    let by_index = (
        options.ramp_up_strategy,
        options.ramp_up_start_rps.as_ref().map(|text| text.value.0),
        options.ramp_up_end_rps.as_ref().map(|text| text.value.0),
    );
    let strategy = match (&options.ramp, by_index) {
        (None, (None, None, None)) => return Ok(None),
        (Some(text), (None, None, None)) => {
            return match text.parse() {
                Ok(ramp) => Ok(Some(ramp)),
                Err(error) => bail!("--ramp {text}: {error}"),
            };
        }
        (None, (Some(strategy), Some(start), Some(end))) => (strategy, start, end),
        (Some(_), _) => bail!("--ramp and --ramp-up-strategy are two ramps: leave one out"),
        (None, _) => bail!(
            "--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps go together: give all \
             three"
        ),
    };
    let (strategy, start, end) = strategy;
    let strategy = match strategy {
        RampStrategy::Linear => IndexRamp::Linear,
        RampStrategy::Exponential => IndexRamp::Exponential,
    };
    Ramp::by_index(strategy, start, end)
        .context("--ramp-up-strategy")
        .map(Some)
}

fn limits(options: &BenchOptions) -> Limits {
    let usual = Limits::default();
    let seconds = |given: &Option<Text<Timeout>>, usual| match given {
        Some(text) => Nanos::from_secs_f64(text.value.0),
        None => usual,
    };
    Limits {
        connect_ns: seconds(&options.timeout_connect, usual.connect_ns),
        first_token_ns: seconds(&options.timeout_first_token, usual.first_token_ns),
        idle_ns: seconds(&options.timeout_idle, usual.idle_ns),
        total_ns: seconds(&options.timeout_total, usual.total_ns),
        ..usual
    }
}
