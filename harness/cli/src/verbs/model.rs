//! `prefillbench model ...`: get, make, inspect and convert models.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_model::gguf::{GgufFile, export_bf16};
use pb_model::synth::{self, Kind, Size};

use crate::args::{ModelAction, ModelArgs, SynthKind, SynthSize};
use crate::model_source::{self, SMOLLM2};
use crate::progress::Progress;

/// Runs the action.
pub(crate) fn run(args: &ModelArgs) -> Result<ExitCode> {
    match &args.action {
        ModelAction::Fetch { name, json } => fetch(name, *json)?,
        ModelAction::Synth {
            dir,
            size,
            kind,
            seed,
        } => synthesise(dir, *size, *kind, *seed)?,
        ModelAction::Info { model, json } => info(model, *json)?,
        ModelAction::ExportBf16 { model, out } => export(model, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fetch(name: &str, json: bool) -> Result<()> {
    if name != SMOLLM2.name {
        anyhow::bail!(
            "model `{name}` cannot be downloaded: the only name is {}",
            SMOLLM2.name
        );
    }
    let progress = Progress::new();
    let path = model_source::fetch(&progress);
    progress.clear();
    let path = path?;
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{}", serde_json::json!({ "name": name, "path": path }))?;
    } else {
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

fn synthesise(dir: &Path, size: SynthSize, kind: SynthKind, seed: u64) -> Result<()> {
    let size = match size {
        SynthSize::Tiny => Size::Tiny,
        SynthSize::Small => Size::Small,
    };
    let kind = match kind {
        SynthKind::Sharp => Kind::Sharp,
        SynthKind::HfInit => Kind::HfInit,
    };
    if dir.exists() {
        bail!("{} exists: name a directory that does not", dir.display());
    }
    synth::write_dir(dir, kind, size, seed)
        .with_context(|| format!("writing a generated model to {}", dir.display()))?;
    writeln!(std::io::stdout(), "{}", dir.display())?;
    Ok(())
}

fn info(name: &str, json: bool) -> Result<()> {
    let model = model_source::load(name)?;
    let c = &model.model.config;
    let document = serde_json::json!({
        "name": model.receipt.name,
        "kind": model.receipt.kind,
        "sha256": model.receipt.sha256,
        "parameters": model.model.weights.parameter_count(),
        "config": c,
        "kv_bytes_per_token_f32": pb_model::forward::kv_bytes_per_token(
            c, pb_contract::KvDtype::F32),
    });
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(());
    }
    writeln!(out, "{} ({})", model.receipt.name, model.receipt.kind)?;
    writeln!(out, "  sha256      {}", model.receipt.sha256)?;
    writeln!(
        out,
        "  parameters  {}",
        model.model.weights.parameter_count()
    )?;
    writeln!(
        out,
        "  shape       {} layers, hidden {}, {} query / {} KV heads of {}, ffn {}, vocab {}",
        c.layers, c.hidden, c.q_heads, c.kv_heads, c.d_head, c.ffn, c.vocab
    )?;
    writeln!(out, "  context     {} tokens", c.max_position)?;
    Ok(())
}

fn export(name: &str, out: &Path) -> Result<()> {
    if out.exists() {
        bail!("{} exists: name a file that does not", out.display());
    }
    let path = model_source::path(name)?;
    let source = GgufFile::open(&path).context("only a GGUF file can be exported")?;
    let (_, weights) = source.weights()?;
    export_bf16(&weights, &source.header, out)
        .with_context(|| format!("writing {}", out.display()))?;
    writeln!(std::io::stdout(), "{}", out.display())?;
    Ok(())
}
