//! Weights out of a GGUF file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::cursor::Stop;
use super::dequant::dequantize;
use super::header::{Header, TensorInfo};
use crate::config::{Arch, LlamaConfig, RopeScaling};
use crate::error::{ModelError, Result};
use crate::weights::{LayerPart, TensorNames, TensorSource, Weights, assemble};

/// GGUF's tensor names.
pub(crate) const NAMES: TensorNames = TensorNames {
    embed: "token_embd.weight",
    final_norm: "output_norm.weight",
    lm_head: "output.weight",
    layer: layer_name,
};

/// The tensor with one divisor for each rotary frequency.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The name of a layer's tensor.
fn layer_name(index: usize, part: LayerPart) -> String {
    let name = match part {
        LayerPart::AttnNorm => "attn_norm.weight",
        LayerPart::Q => "attn_q.weight",
        LayerPart::K => "attn_k.weight",
        LayerPart::V => "attn_v.weight",
        LayerPart::O => "attn_output.weight",
        LayerPart::QBias => "attn_q.bias",
        LayerPart::KBias => "attn_k.bias",
        LayerPart::VBias => "attn_v.bias",
        LayerPart::MlpNorm => "ffn_norm.weight",
        LayerPart::Gate => "ffn_gate.weight",
        LayerPart::Up => "ffn_up.weight",
        LayerPart::Down => "ffn_down.weight",
    };
    format!("blk.{index}.{name}")
}

/// Whether files of `arch` hold query and key rows in interleaved order.
pub(super) fn interleaved(arch: Arch) -> bool {
    arch == Arch::Llama
}

/// An open file with its parsed header.
#[derive(Debug)]
pub struct GgufFile {
    /// The header.
    pub header: Header,
    file: File,
    path: PathBuf,
}

/// First guess at the header's length; a vocabulary usually takes two or three of these.
const FIRST_PREFIX_BYTES: u64 = 1 << 20;

impl GgufFile {
    /// Opens `path` and parses its header, reading no more than the header and its round-up.
    ///
    /// # Errors
    /// [`ModelError::Io`], or [`ModelError::Gguf`] naming field, offset and value.
    pub fn open(path: &Path) -> Result<GgufFile> {
        let file = File::open(path).map_err(|e| ModelError::io(path, e))?;
        let file_len = file.metadata().map_err(|e| ModelError::io(path, e))?.len();
        let mut want = FIRST_PREFIX_BYTES.min(file_len);
        loop {
            let prefix = read_at(&file, path, 0, want)?;
            match Header::parse_prefix(&prefix, file_len) {
                Ok(header) => {
                    return Ok(GgufFile {
                        header,
                        file,
                        path: path.into(),
                    });
                }
                Err(Stop::Bad(error)) => return Err(error),
                // Growing by half at least keeps the re-parsing linear in the header's length.
                Err(Stop::NeedBytes(end)) => want = end.max(want + want / 2).min(file_len),
            }
        }
    }

    /// Reads the configuration and every weight.
    ///
    /// # Errors
    /// As [`GgufFile::open`], and [`ModelError::Config`] or [`ModelError::Tensor`].
    pub fn weights(&self) -> Result<(LlamaConfig, Weights)> {
        build(&self.header, &|info| {
            read_at(&self.file, &self.path, info.offset, info.len_bytes)
        })
    }
}

/// Configuration and weights of a whole GGUF file in memory.
///
/// # Errors
/// [`ModelError::Gguf`], [`ModelError::Config`] or [`ModelError::Tensor`].
pub fn config_and_weights(header: &Header, file: &[u8]) -> Result<(LlamaConfig, Weights)> {
    build(header, &|info| {
        let range = usize::try_from(info.offset)
            .ok()
            .zip(usize::try_from(info.offset + info.len_bytes).ok());
        range
            .and_then(|(start, end)| file.get(start..end))
            .map(<[u8]>::to_vec)
            .ok_or_else(|| ModelError::tensor(&info.name, "lies outside the file"))
    })
}

/// Reads `len` bytes at `offset`, which are known to be in the file.
fn read_at(file: &File, path: &Path, offset: u64, len: u64) -> Result<Vec<u8>> {
    let too_large = || ModelError::tensor(path.display().to_string(), "is too large");
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| too_large())?];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| ModelError::io(path, e))?;
    Ok(bytes)
}

/// Fetches the bytes of a tensor.
type Fetch<'a> = dyn Fn(&TensorInfo) -> Result<Vec<u8>> + 'a;

/// Builds configuration and weights from a header and a way to fetch data.
fn build(header: &Header, fetch: &Fetch<'_>) -> Result<(LlamaConfig, Weights)> {
    let mut config = LlamaConfig::from_gguf(header)?;
    let source = GgufSource { header, fetch };
    if header.tensor(ROPE_FREQS).is_some() {
        let factors = source.tensor(ROPE_FREQS, &[config.d_head / 2])?;
        config.rope_scaling = RopeScaling::Factors(factors);
        config.validate()?;
    }
    let weights = assemble(&config, &source, &NAMES, interleaved(config.arch))?;
    Ok((config, weights))
}

/// The tensors of a GGUF file.
struct GgufSource<'a> {
    header: &'a Header,
    fetch: &'a Fetch<'a>,
}

impl TensorSource for GgufSource<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let info = self
            .header
            .tensor(name)
            .ok_or_else(|| ModelError::tensor(name, "is missing"))?;
        // GGUF lists the contiguous dimension first.
        let wanted: Vec<u64> = shape.iter().rev().map(|dim| *dim as u64).collect();
        if info.dims != wanted {
            let problem = format!(
                "has dimensions {:?}, the config needs {wanted:?}",
                info.dims
            );
            return Err(ModelError::tensor(name, problem));
        }
        Ok(dequantize(info.kind, &(self.fetch)(info)?))
    }
}
