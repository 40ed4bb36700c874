//! The result under the keys that `vllm bench serve --save-result` writes, for tools that read
//! those files.
//!
//! The names are theirs and so are the rules behind them: latencies count from the first byte
//! sent, the wait in the client stands apart, an inter-token latency is a gap between two events
//! however many tokens the later one carries, percentiles interpolate. What they write as 0 when
//! there was nothing to measure is null here. The key set is that of version 0.32.

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestRow, RequestStatus};
use serde_json::{Map, Value, json};

use crate::distribution::Distribution;
use crate::document::Document;
use crate::load::peak;
use crate::select::{Metric, Selection, percentile_name};
use crate::tally::Tally;

/// What is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VllmOptions {
    /// Metrics and percentiles.
    pub selection: Selection,
    /// Lists with a value for each request too. Its gaps need [`Tally::with_streams`].
    pub detailed: bool,
}

/// The result as one object.
pub fn vllm_result(document: &Document, tally: &Tally, options: &VllmOptions) -> Value {
    let mut out = settings(document);
    totals(document, tally, &mut out);
    always(tally, &mut out);
    if options.detailed {
        lists(document, tally, &mut out);
    }
    latencies(document, tally, &options.selection, &mut out);
    Value::Object(out)
}

fn settings(document: &Document) -> Map<String, Value> {
    let (identity, asked) = (&document.identity, &document.load.asked);
    let backend = match identity.api.as_str() {
        "chat" => "openai-chat",
        _ => "openai",
    };
    let mut out = Map::new();
    out.insert("date".into(), json!(date(&identity.created)));
    out.insert("endpoint_type".into(), json!(backend));
    out.insert("backend".into(), json!(backend));
    out.insert("label".into(), json!(identity.label));
    out.insert("model_id".into(), json!(identity.model));
    out.insert("tokenizer_id".into(), json!(identity.tokenizer));
    let prompts = asked.num_prompts.unwrap_or(document.counts.offered);
    out.insert("num_prompts".into(), json!(prompts));
    for (key, value) in &identity.metadata {
        out.insert(key.clone(), json!(value));
    }
    let rate = asked
        .rate_rps
        .map_or_else(|| json!("inf"), |rate| json!(rate));
    out.insert("request_rate".into(), rate);
    out.insert("burstiness".into(), json!(asked.burstiness.unwrap_or(1.0)));
    out.insert("max_concurrency".into(), json!(asked.max_concurrency));
    out
}

/// `2030-01-02T03:04:05Z` as `20300102-030405`.
fn date(created: &str) -> String {
    let digits: String = created
        .chars()
        .filter(char::is_ascii_digit)
        .take(14)
        .collect();
    match digits.split_at_checked(8) {
        Some((day, time)) => format!("{day}-{time}"),
        None => digits,
    }
}

fn totals(document: &Document, tally: &Tally, out: &mut Map<String, Value>) {
    let (counts, tokens, rates) = (&document.counts, &document.tokens, &document.rates);
    let input = tokens.input_served.unwrap_or(tokens.input_planned);
    let run = document.window.run_s.filter(|s| *s > 0.0);
    let per_second = |count: u64| run.map(|s| count as f64 / s);
    out.insert("duration".into(), json!(document.window.run_s));
    out.insert("completed".into(), json!(counts.ok));
    out.insert("failed".into(), json!(counts.offered - counts.ok));
    out.insert("total_input_tokens".into(), json!(input));
    out.insert("total_output_tokens".into(), json!(tokens.output));
    out.insert("request_throughput".into(), json!(rates.achieved_rps));
    out.insert("request_goodput".into(), json!(rates.goodput_rps));
    out.insert("output_throughput".into(), json!(rates.output_tps));
    let total = per_second(input + tokens.output);
    out.insert("total_token_throughput".into(), json!(total));
    let most = tally.most_events_in_a_second() as f64;
    out.insert("max_output_tokens_per_s".into(), json!(most));
    let spans = tally
        .ok()
        .filter_map(|row| Some((row.sent_ns?, row.last_token_ns?)));
    out.insert("max_concurrent_requests".into(), json!(peak(spans)));
    // Of audio only.
    out.insert("rtfx".into(), json!(0.0));
}

/// The rows in the order of their arrival, each with its number in the tally.
fn by_arrival(tally: &Tally) -> Vec<(usize, &RequestRow)> {
    let mut rows: Vec<(usize, &RequestRow)> = tally.rows().iter().enumerate().collect();
    rows.sort_by_key(|(_, row)| (row.intended_ns, row.request));
    rows
}

/// Seconds from the first byte sent.
fn after(row: &RequestRow, at: Option<Nanos>) -> Option<f64> {
    Some(at?.saturating_sub(row.sent_ns?).as_secs_f64())
}

/// The two lists that are always written, in seconds: latency and wait in the client.
fn always(tally: &Tally, out: &mut Map<String, Value>) {
    let rows = by_arrival(tally);
    let ok = |row: &RequestRow| row.status == RequestStatus::Ok;
    let latency = |row: &RequestRow| after(row, row.last_token_ns.filter(|_| ok(row)));
    let latencies: Value = rows.iter().map(|(_, row)| json!(latency(row))).collect();
    let wait = |row: &RequestRow| {
        let sent = row.sent_ns?;
        Some(sent.saturating_sub(row.intended_ns).as_secs_f64())
    };
    let waits: Value = rows.iter().map(|(_, row)| json!(wait(row))).collect();
    out.insert("latencies".into(), latencies);
    out.insert("queue_times".into(), waits);
}

/// The lists of a detailed result, a value for each request.
fn lists(document: &Document, tally: &Tally, out: &mut Map<String, Value>) {
    let rows = by_arrival(tally);
    let each = |of: &dyn Fn(usize, &RequestRow) -> Value| -> Value {
        rows.iter().map(|&(i, row)| of(i, row)).collect()
    };
    let prompt = |row: &RequestRow| row.prompt_tokens.unwrap_or(row.prompt_tokens_planned);
    let ok = |row: &RequestRow| row.status == RequestStatus::Ok;
    let output = |row: &RequestRow| match ok(row) {
        true => row.completion_tokens.unwrap_or(row.streamed_tokens),
        false => 0,
    };
    let gaps = |i: usize| -> Vec<f64> {
        let stream = tally.stream(i).unwrap_or_default();
        stream.iter().map(|&gap| Nanos(gap).as_secs_f64()).collect()
    };
    let error = |row: &RequestRow| match ok(row) {
        true => String::new(),
        false => row.fail_message.clone().unwrap_or_else(|| {
            let kind = serde_json::to_value(row.fail).unwrap_or_default();
            kind.as_str().unwrap_or("failed").to_owned()
        }),
    };
    let start = document.window.start_ns;
    let since = |row: &RequestRow| Some(row.sent_ns?.saturating_sub(start).as_secs_f64());
    out.insert("input_lens".into(), each(&|_, row| json!(prompt(row))));
    out.insert("output_lens".into(), each(&|_, row| json!(output(row))));
    let first = |row: &RequestRow| after(row, row.first_token_ns);
    out.insert("ttfts".into(), each(&|_, row| json!(first(row))));
    out.insert("itls".into(), each(&|i, _| json!(gaps(i))));
    out.insert("start_times".into(), each(&|_, row| json!(since(row))));
    // Texts are not kept: a benchmark's answers may be anyone's.
    out.insert("generated_texts".into(), json!([]));
    out.insert("errors".into(), each(&|_, row| json!(error(row))));
}

fn latencies(
    document: &Document,
    tally: &Tally,
    selection: &Selection,
    out: &mut Map<String, Value>,
) {
    let asked = &document.load.asked;
    let capped = asked.max_concurrency.is_some();
    let mut named: BTreeMap<&str, Distribution> = BTreeMap::new();
    for metric in &selection.metrics {
        let (name, of) = match metric {
            Metric::Ttft | Metric::ServiceTtft => ("ttft", Metric::ServiceTtft),
            Metric::Itl | Metric::EventGap => ("itl", Metric::EventGap),
            Metric::E2el | Metric::ServiceE2el => ("e2el", Metric::ServiceE2el),
            // As theirs: only where requests can wait in the client at all.
            Metric::DriverLag if capped => ("client_queue_time", Metric::DriverLag),
            Metric::E2elIncludingClientQueue if !capped || asked.rate_rps.is_none() => continue,
            other => (other.name(), *other),
        };
        named.insert(name, of.of(tally.all()));
    }
    for (name, samples) in named {
        let ms = |ns: Option<f64>| json!(ns.map(|ns| ns / 1e6));
        out.insert(format!("mean_{name}_ms"), ms(samples.mean_ns()));
        out.insert(format!("median_{name}_ms"), ms(samples.linear(0.5)));
        out.insert(format!("std_{name}_ms"), ms(samples.std_ns()));
        for &percentile in &selection.percentiles {
            let key = format!("{}_{name}_ms", percentile_name(percentile));
            out.insert(key, ms(samples.linear(percentile / 100.0)));
        }
    }
}
