//! From what the user calls a model to a loaded one.

mod fetch;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use pb_contract::manifest::ModelReceipt;
use pb_model::Model;
use pb_model::synth::{self, Kind, Size};

use crate::progress::Progress;

pub(crate) use fetch::{SMOLLM2, fetch};

/// Seed of the generated models that have a name.
const SYNTHETIC_SEED: u64 = 1;

/// A loaded model with its receipt.
pub(crate) struct Obtained {
    /// The model.
    pub(crate) model: Model,
    /// What it is.
    pub(crate) receipt: ModelReceipt,
    /// What a child process is to pass as `--model`.
    pub(crate) argument: String,
}

/// The size of the generated model called `name`, if it is one.
fn synthetic_size(name: &str) -> Option<Size> {
    match name {
        "synthetic" | "synthetic-small" => Some(Size::Small),
        "synthetic-tiny" => Some(Size::Tiny),
        _ => None,
    }
}

/// Loads the model called `name`: a generated one, one in the cache directory, or a path.
pub(crate) fn load(name: &str) -> Result<Obtained> {
    if let Some(size) = synthetic_size(name) {
        let model = synth::model(Kind::Sharp, size, SYNTHETIC_SEED)?;
        return Ok(obtained(model, name, "synthetic", None));
    }
    let path = path(name)?;
    let model = pb_model::load(&path).with_context(|| format!("loading model `{name}`"))?;
    let kind = if path.is_dir() { "safetensors" } else { "gguf" };
    Ok(obtained(model, name, kind, None))
}

/// Where the model called `name` lies: in the cache directory, or at that path.
pub(crate) fn path(name: &str) -> Result<PathBuf> {
    if name == SMOLLM2.name {
        let path = fetch::cached_path()?;
        if !path.exists() {
            bail!("{name} is not in the cache; get it with `prefillbench model fetch {name}`");
        }
        return Ok(path);
    }
    let path = PathBuf::from(name);
    if !path.exists() {
        bail!(
            "model `{name}`: no such file or directory, and not one of the names {}, synthetic, \
             synthetic-tiny",
            SMOLLM2.name
        );
    }
    Ok(path)
}

fn obtained(model: Model, name: &str, kind: &str, reason: Option<String>) -> Obtained {
    let receipt = ModelReceipt {
        name: model.identity.name.clone(),
        kind: kind.into(),
        sha256: model.identity.sha256.clone(),
        substitute_reason: reason,
    };
    Obtained {
        model,
        receipt,
        argument: name.into(),
    }
}

/// Loads the model called `name`, downloading it first when it has a name and is not there.
pub(crate) fn obtain(name: &str, progress: &Progress) -> Result<Obtained> {
    if name == SMOLLM2.name && !fetch::cached_path()?.exists() {
        fetch(progress)?;
    }
    progress.phase(format!("loading {name}"));
    load(name)
}

/// As [`obtain`], but when the download is impossible, says so and goes on with a generated
/// model; the receipt then holds the reason.
pub(crate) fn obtain_or_generate(name: &str, progress: &Progress) -> Result<Obtained> {
    let error = match obtain(name, progress) {
        Ok(model) => return Ok(model),
        Err(error) if name == SMOLLM2.name => error,
        Err(error) => return Err(error),
    };
    let reason = format!("{name} could not be had: {error:#}");
    progress.note(format!(
        "warning: {reason}; going on with a generated model"
    ));
    let mut generated = load("synthetic")?;
    generated.receipt.substitute_reason = Some(reason);
    Ok(generated)
}
