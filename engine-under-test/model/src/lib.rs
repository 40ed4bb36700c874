//! Llama-family models: files in, one weight layout and one tokenizer out, and the forward pass.
//!
//! The numerical claims of this project are about real models, so it must read the files that
//! real engines read (GGUF, Hugging Face folders) and agree with them on every token id and every
//! weight bit. Everything that differs between files is settled in this crate's loaders; above
//! them there is one [`LlamaConfig`], one [`Weights`], one [`Tokenizer`]. When no file can be had,
//! [`synth`] generates a model whose weights are sharp enough to show positional bugs.
//!
//! ```
//! use pb_model::synth::{self, Kind, Size};
//!
//! let model = synth::model(Kind::Sharp, Size::Tiny, 1)?;
//! let ids = model.tokenizer.encode("Hi<|im_end|>", false)?;
//! assert_eq!(ids, [u32::from(b'H'), u32::from(b'i'), model.config.eos_ids[0]]);
//! assert_eq!(model.weights.layers.len(), model.config.layers);
//! # Ok::<(), pb_model::ModelError>(())
//! ```

pub mod chat;
pub mod config;
pub mod error;
pub mod forward;
pub mod fuzz;
pub mod gguf;
pub mod hf;
pub mod identity;
pub mod lora;
pub mod synth;
pub mod tokenizer;
pub mod weights;

use std::path::Path;

pub use chat::{ChatMessage, ChatTemplate};
pub use config::{Arch, LlamaConfig, RopeScaling};
pub use error::{ModelError, Result};
pub use identity::{ModelIdentity, ModelKind};
pub use tokenizer::{DetokenizeStream, Tokenizer};
pub use weights::{LayerWeights, Matrix, Weights};

/// A loaded model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its shape; the same as `weights.config`.
    pub config: LlamaConfig,
    /// Its weights in f32.
    pub weights: Weights,
    /// Its tokenizer and chat template.
    pub tokenizer: Tokenizer,
    /// Which model it is.
    pub identity: ModelIdentity,
}

/// Loads a GGUF file or a Hugging Face folder.
///
/// # Errors
/// [`ModelError`] naming the file and the field at fault.
pub fn load(path: &Path) -> Result<Model> {
    let model = if path.is_dir() {
        load_dir(path)?
    } else {
        load_gguf(path)?
    };
    let (ids, rows) = (model.tokenizer.id_bound(), model.config.vocab);
    if ids > rows {
        let problem = format!("has ids up to {}, the embedding table {rows} rows", ids - 1);
        return Err(ModelError::tokenizer("vocabulary", problem));
    }
    model.weights.check_finite()?;
    Ok(model)
}

/// Loads a GGUF file.
fn load_gguf(path: &Path) -> Result<Model> {
    let file = gguf::GgufFile::open(path)?;
    let tokenizer = Tokenizer::from_gguf(&file.header)?;
    let (config, weights) = file.weights()?;
    let (sha256, weight_bytes) = identity::digest_files(&[path.to_path_buf()])?;
    let name = file
        .header
        .text("general.name")?
        .map_or_else(|| file_name(path), str::to_string);
    let path = path.to_path_buf();
    let kind = ModelKind::Gguf;
    let identity = ModelIdentity {
        name,
        path,
        kind,
        sha256,
        weight_bytes,
    };
    Ok(Model {
        config,
        weights,
        tokenizer,
        identity,
    })
}

/// Loads a Hugging Face folder.
fn load_dir(path: &Path) -> Result<Model> {
    let config = hf::read_config(path)?;
    let tokenizer = Tokenizer::from_dir(path)?;
    let weights = hf::read_weights(path, &config)?;
    let (sha256, weight_bytes) = identity::digest_files(&hf::weight_files(path)?)?;
    let identity = ModelIdentity {
        name: file_name(path),
        path: path.to_path_buf(),
        kind: ModelKind::HfDir,
        sha256,
        weight_bytes,
    };
    Ok(Model {
        config,
        weights,
        tokenizer,
        identity,
    })
}

/// The last component of a path, as text.
fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
