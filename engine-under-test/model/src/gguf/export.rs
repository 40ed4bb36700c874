//! Weights back to a GGUF file in bf16, for running the same model in another engine.
//!
//! A speed comparison is only fair when both engines read the same numbers in the same width. The
//! export keeps the source's metadata, and with it the tokenizer, and puts query and key rows
//! back into the order that llama.cpp expects.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::header::Header;
use super::load::{NAMES, ROPE_FREQS, interleaved};
use super::value::Value;
use super::write::{TensorData, TensorOut, write_gguf};
use crate::config::{LlamaConfig, RopeScaling};
use crate::error::{ModelError, Result};
use crate::weights::rotary::interleaved_from_half_split;
use crate::weights::{LayerPart, NamedTensor, Weights, named_tensors};

/// How matrices are stored; vectors are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixType {
    /// 32-bit floats, bit for bit what the forward pass uses.
    F32,
    /// bf16, rounded to nearest-even.
    Bf16,
}

impl MatrixType {
    /// llama.cpp's `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            MatrixType::F32 => 0,
            MatrixType::Bf16 => 32,
        }
    }
}

/// Writes `weights` as GGUF: matrices as `matrices` says, norms and biases in f32.
///
/// `metadata` is the source file's, or [`metadata_from_config`]'s; `general.file_type` is
/// replaced and everything else kept.
///
/// # Errors
/// Whatever `out` reports.
pub fn write_model(
    out: &mut impl Write,
    weights: &Weights,
    metadata: &[(String, Value)],
    matrices: MatrixType,
) -> std::io::Result<()> {
    let file_type = (
        "general.file_type".to_string(),
        Value::U32(matrices.file_type()),
    );
    let mut metadata: Vec<(String, Value)> = metadata.to_vec();
    match metadata.iter_mut().find(|(key, _)| *key == file_type.0) {
        Some(entry) => *entry = file_type,
        None => metadata.push(file_type),
    }
    // The data is laid out at the default alignment, whatever the source used.
    metadata.retain(|(key, _)| key != "general.alignment");
    let config = &weights.config;
    let named = named_tensors(weights, &NAMES);
    let mut tensors: Vec<TensorOut<'_>> = named
        .iter()
        .map(|t| tensor_out(config, t, matrices))
        .collect();
    tensors.extend(rope_factors(config).map(|factors| TensorOut {
        name: ROPE_FREQS.into(),
        dims: vec![factors.len() as u64],
        data: TensorData::F32(factors.into()),
    }));
    write_gguf(out, &metadata, &tensors)
}

/// Writes the bf16 GGUF of a model that was read from `source` to `path`, through a temporary
/// file in the same folder.
///
/// # Errors
/// [`ModelError::Io`].
pub fn export_bf16(weights: &Weights, source: &Header, path: &Path) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let written = File::create(partial).and_then(|file| {
        let mut out = BufWriter::new(file);
        write_model(&mut out, weights, &source.metadata, MatrixType::Bf16)
    });
    written.map_err(|e| ModelError::io(partial, e))?;
    std::fs::rename(partial, path).map_err(|e| ModelError::io(path, e))
}

/// The divisors of the rotary frequencies, for the scaling kinds that GGUF stores as a tensor.
fn rope_factors(config: &LlamaConfig) -> Option<Vec<f32>> {
    match &config.rope_scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => None,
        RopeScaling::Factors(factors) => Some(factors.clone()),
        RopeScaling::Llama3 { .. } => {
            let plain = LlamaConfig {
                rope_scaling: RopeScaling::None,
                ..config.clone()
            };
            let pairs = plain.inv_freq().into_iter().zip(config.inv_freq());
            Some(
                pairs
                    .map(|(plain, scaled)| (plain / scaled) as f32)
                    .collect(),
            )
        }
    }
}

/// One tensor as it is stored.
fn tensor_out<'a>(
    config: &LlamaConfig,
    tensor: &NamedTensor<'a>,
    matrices: MatrixType,
) -> TensorOut<'a> {
    let cols = if tensor.shape.len() == 2 {
        tensor.shape[1]
    } else {
        1
    };
    let turned = matches!(
        tensor.part,
        Some(LayerPart::Q | LayerPart::K | LayerPart::QBias | LayerPart::KBias)
    );
    let data = if turned && interleaved(config.arch) {
        Cow::Owned(interleaved_from_half_split(
            tensor.data,
            config.d_head,
            cols,
        ))
    } else {
        Cow::Borrowed(tensor.data)
    };
    TensorOut {
        name: tensor.name.clone(),
        dims: tensor.shape.iter().rev().map(|dim| *dim as u64).collect(),
        data: if tensor.shape.len() == 2 && matrices == MatrixType::Bf16 {
            TensorData::Bf16(data)
        } else {
            TensorData::F32(data)
        },
    }
}

/// The metadata that describes `config`, without a tokenizer.
///
/// `Llama3` scaling has no metadata form: it is stored as a `rope_freqs.weight` tensor.
pub fn metadata_from_config(config: &LlamaConfig, name: &str) -> Vec<(String, Value)> {
    let arch = config.arch.name();
    // OK because validated dimensions are below 2^30.
    let size = |value: usize| Value::U32(u32::try_from(value).expect("dimension fits 32 bits"));
    let mut all = vec![
        (
            "general.architecture".to_string(),
            Value::String(arch.into()),
        ),
        ("general.name".to_string(), Value::String(name.into())),
    ];
    let mut push = |key: &str, value| all.push((format!("{arch}.{key}"), value));
    push("block_count", size(config.layers));
    push("context_length", size(config.max_position));
    push("embedding_length", size(config.hidden));
    push("feed_forward_length", size(config.ffn));
    push("attention.head_count", size(config.q_heads));
    push("attention.head_count_kv", size(config.kv_heads));
    push("attention.key_length", size(config.d_head));
    push("attention.value_length", size(config.d_head));
    push(
        "attention.layer_norm_rms_epsilon",
        Value::F32(config.rms_eps as f32),
    );
    push("rope.freq_base", Value::F32(config.rope_theta as f32));
    push("rope.dimension_count", size(config.d_head));
    push("vocab_size", size(config.vocab));
    if let RopeScaling::Linear { factor } = config.rope_scaling {
        push("rope.scaling.type", Value::String("linear".into()));
        push("rope.scaling.factor", Value::F32(factor as f32));
    }
    let token = |name: &str, id: u32| (format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
    all.extend(config.bos_id.map(|id| token("bos", id)));
    let kinds = ["eos", "eot", "eom"];
    all.extend(
        kinds
            .iter()
            .zip(&config.eos_ids)
            .map(|(kind, id)| token(kind, *id)),
    );
    all
}
