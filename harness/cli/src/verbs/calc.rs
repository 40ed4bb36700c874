//! `prefillbench calc ...`: the arithmetic behind chunking, prefix reuse and KV transfer.
//!
//! Every line shows its formula and unit. None of these numbers predicts a time to first token:
//! they leave out norms, activations, rotary embedding, softmax, queueing and protocol.

mod measured;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use pb_contract::formulas as f;
use serde_json::{Value, json};

use crate::args::{CalcArgs, CalcWhat, KvShapeArgs};

/// One result: key, value, and the formula with its unit.
type Line = (&'static str, Value, &'static str);

/// Computes and prints.
pub(crate) fn run(args: &CalcArgs) -> Result<ExitCode> {
    let (lines, as_json) = match &args.what {
        CalcWhat::Chunks {
            budget,
            decodes,
            prompt,
            chunk,
            json,
        } => (chunks(*budget, *decodes, *prompt, *chunk)?, *json),
        CalcWhat::Prefix {
            prompt,
            shared,
            block_size,
            json,
        } => (prefix(*prompt, *shared, *block_size)?, *json),
        CalcWhat::Flops { json, .. } => (flops(&args.what)?, *json),
        CalcWhat::Kv(shape) => (kv(shape)?, shape.json),
        CalcWhat::Transfer {
            shape,
            link,
            layer_ms,
            post_us,
            run,
        } => {
            let link = link.0;
            let mut lines = transfer(shape, link, *layer_ms)?;
            if let Some(post_us) = post_us {
                lines.push(streaming(shape, link, *post_us)?);
            }
            if let Some(dir) = run {
                let per_token = shape_of(shape)?.bytes_per_token();
                lines.extend(measured::lines(dir, per_token, link)?);
            }
            (lines, shape.json)
        }
    };
    for (key, value, _) in &lines {
        ensure!(
            !value.is_null(),
            "{key} is not finite: the arguments are too large"
        );
    }
    print(&lines, as_json)?;
    Ok(ExitCode::SUCCESS)
}

fn print(lines: &[Line], as_json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        let map: serde_json::Map<String, Value> = lines
            .iter()
            .map(|(key, value, _)| ((*key).to_string(), value.clone()))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&map)?)?;
        return Ok(());
    }
    for (key, value, formula) in lines {
        writeln!(out, "{key:<24} {:<22} {formula}", display(value))?;
    }
    Ok(())
}

/// A value as people read it: integers whole, others to six significant digits, lists joined.
fn display(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(display).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => {
            let x = n.as_f64().unwrap_or(f64::NAN);
            if x.fract() == 0.0 && x.abs() < 1e15 {
                return format!("{x:.0}");
            }
            let digits = (5 - x.abs().log10().floor() as i32).clamp(0, 12) as usize;
            format!("{x:.digits$}")
        }
        other => other.to_string(),
    }
}

/// An exact count as JSON; counts beyond 64 bits become a float.
fn count(n: u128) -> Value {
    u64::try_from(n).map_or_else(|_| json!(n as f64), |n| json!(n))
}

fn chunks(budget: usize, decodes: usize, prompt: usize, chunk: Option<usize>) -> Result<Vec<Line>> {
    let chunks = pb_core::chunk_schedule(budget, decodes, prompt, chunk)?;
    let cached: Vec<usize> = chunks
        .iter()
        .scan(0, |sum, c| {
            *sum += c;
            Some(*sum)
        })
        .collect();
    Ok(vec![
        (
            "available_budget",
            json!(budget - decodes),
            "tokens a step: budget - decodes",
        ),
        ("count", json!(chunks.len()), "chunks"),
        ("chunks", json!(chunks), "tokens"),
        (
            "cached_after",
            json!(cached),
            "tokens in the cache after each",
        ),
    ])
}

fn prefix(prompt: u64, shared: u64, block_size: u64) -> Result<Vec<Line>> {
    ensure!(
        shared <= prompt,
        "--shared {shared}: a prompt of {prompt} tokens shares no more"
    );
    let hit = f::block_hit_tokens(prompt, shared, block_size)
        .context("--block-size 0: a block holds at least one token")?;
    let work = f::prefix_work(prompt, hit).context("the hit is longer than the prompt")?;
    let ratio = work.total_pairs as f64 / (work.full_pairs as f64).max(1.0);
    Ok(vec![
        (
            "hit_blocks",
            json!(hit / block_size),
            "full blocks; the last token is never taken",
        ),
        ("hit_tokens", json!(hit), "K = blocks * block size"),
        ("fresh_tokens", json!(work.fresh_tokens), "U = prompt - K"),
        (
            "suffix_prefix_pairs",
            count(work.suffix_prefix_pairs),
            "U * K",
        ),
        (
            "suffix_suffix_pairs",
            count(work.suffix_suffix_pairs),
            "U * (U + 1) / 2",
        ),
        ("total_pairs", count(work.total_pairs), "sum of the two"),
        (
            "skipped_pairs",
            count(work.skipped_pairs),
            "K * (K + 1) / 2",
        ),
        ("full_pairs", count(work.full_pairs), "P * (P + 1) / 2"),
        (
            "pair_ratio",
            json!(ratio),
            "total / full; says nothing about time",
        ),
    ])
}

fn flops(what: &CalcWhat) -> Result<Vec<Line>> {
    let CalcWhat::Flops {
        tokens,
        parameters,
        bytes_per_weight,
        bandwidth,
        peak,
        width,
        json: _,
    } = what
    else {
        anyhow::bail!("not a flops calculation");
    };
    for (key, value) in [
        ("--parameters", *parameters),
        ("--bytes-per-weight", *bytes_per_weight),
        ("--bandwidth", *bandwidth),
        ("--peak", *peak),
    ] {
        ensure!(
            value.is_finite() && value > 0.0,
            "{key} {value}: must be finite and above 0"
        );
    }
    ensure!(
        *width > 0 && *tokens > 0,
        "--width and --tokens must be at least 1"
    );
    let (rows, width) = (*tokens as f64, *width as f64);
    let intensity = f::linear_intensity_flop_per_byte(rows, width, *bytes_per_weight);
    let ridge = f::ridge_flop_per_byte(*peak, *bandwidth);
    let bound = match f::bound(intensity, ridge) {
        f::Bound::Compute => "compute",
        f::Bound::Memory => "memory bandwidth",
    };
    let floor = f::weight_streaming_floor_ms(parameters * bytes_per_weight, *bandwidth);
    let saturated = f::saturated_intensity_flop_per_byte(width, *bytes_per_weight);
    Ok(vec![
        (
            "linear_flop",
            json!(f::linear_flop(rows, *parameters)),
            "2 * tokens * parameters",
        ),
        (
            "intensity",
            json!(intensity),
            "FLOP/byte: 2 / (b * (1/width + 1/tokens))",
        ),
        (
            "saturated_intensity",
            json!(saturated),
            "FLOP/byte: 2 * width / b",
        ),
        ("ridge", json!(ridge), "FLOP/byte: peak / bandwidth"),
        ("bound", json!(bound), "of one linear layer of this width"),
        (
            "weight_floor_ms",
            json!(floor),
            "ms: weight bytes / bandwidth, once a step",
        ),
    ])
}

fn shape_of(args: &KvShapeArgs) -> Result<f::KvShape> {
    for (key, value) in [
        ("--layers", args.layers),
        ("--kv-heads", args.kv_heads),
        ("--d-head", args.d_head),
        ("--bytes", args.bytes),
    ] {
        ensure!(
            value > 0 && value < 1 << 24,
            "{key} {value}: must be between 1 and 2^24 - 1"
        );
    }
    Ok(f::KvShape {
        layers: args.layers,
        kv_heads: args.kv_heads,
        head_dim: args.d_head,
        element_bytes: args.bytes,
    })
}

fn kv(args: &KvShapeArgs) -> Result<Vec<Line>> {
    let shape = shape_of(args)?;
    let payload = shape.payload_bytes(args.tokens);
    Ok(vec![
        (
            "bytes_per_token",
            count(shape.bytes_per_token()),
            "2 * layers * kv_heads * d_head * bytes",
        ),
        ("payload_bytes", count(payload), "tokens * bytes per token"),
        (
            "payload_mib",
            json!(payload as f64 / f64::from(1 << 20)),
            "MiB",
        ),
    ])
}

/// From which prompt on streaming pays.
fn streaming(args: &KvShapeArgs, link: f64, post_us: f64) -> Result<Line> {
    ensure!(
        post_us.is_finite() && post_us > 0.0,
        "--post-us {post_us}: must be finite and above 0"
    );
    let above = f::streaming_pays_above_tokens(shape_of(args)?, link, post_us);
    let above = above.context("--layers 1: one layer has nothing to overlap with")?;
    Ok((
        "streaming_pays_above",
        json!(above),
        "tokens: post * link / layer bytes per token",
    ))
}

fn transfer(args: &KvShapeArgs, link: f64, layer_ms: Option<f64>) -> Result<Vec<Line>> {
    let shape = shape_of(args)?;
    ensure!(
        args.tokens > 0,
        "--tokens 0: a transfer is of at least one token"
    );
    let mut lines = kv(args)?;
    lines.push(("link_bytes_per_s", json!(link), "bytes/s: --link"));
    let payload = shape.payload_bytes(args.tokens) as f64;
    let layer_bytes = payload / args.layers as f64;
    let ideal = f::ideal_transfer_ms(payload, link);
    lines.push((
        "ideal_ms",
        json!(ideal),
        "ms: payload / link; no protocol, staging or queueing",
    ));
    lines.push(("layer_bytes", json!(layer_bytes), "payload / layers"));
    let layer = f::ideal_transfer_ms(layer_bytes, link);
    lines.push(("layer_transfer_ms", json!(layer), "ms for one layer"));
    let Some(layer_ms) = layer_ms else {
        return Ok(lines);
    };
    ensure!(
        layer_ms.is_finite() && layer_ms > 0.0,
        "--layer-ms {layer_ms}: must be finite and above 0"
    );
    let wise = f::layer_wise_transfer(args.layers, layer_bytes, link, layer_ms);
    let hidden = if wise.ratio < 1.0 { "yes" } else { "no" };
    lines.push(("ratio", json!(wise.ratio), "layer transfer / layer prefill"));
    lines.push((
        "exposed_ms",
        json!(wise.exposed_ms),
        "ms after the prefill, layer by layer",
    ));
    lines.push((
        "hidden_by_compute",
        json!(hidden),
        "all but the last layer, when the ratio < 1",
    ));
    lines.push((
        "exposed_share",
        json!(wise.exposed_ms / ideal),
        "exposed / ideal in bulk: what streaming leaves of the transfer",
    ));
    Ok(lines)
}
