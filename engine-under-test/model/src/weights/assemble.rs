//! From named tensors to [`Weights`], once for every file format.
//!
//! The formats differ only in names and in how bytes become f32, so each supplies a
//! [`TensorSource`] and a [`TensorNames`]; shapes and the rotary order are checked and settled in
//! this one place. Nothing is allocated for a tensor before its source has found that the file
//! holds that many bytes.

use super::rotary::half_split_from_interleaved;
use super::{LayerWeights, Matrix, Weights};
use crate::config::LlamaConfig;
use crate::error::Result;

/// Something that yields tensors by name.
pub(crate) trait TensorSource {
    /// The values of `name`, row-major, whose shape (outermost first) must be `shape`.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>>;
}

/// A tensor of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerPart {
    AttnNorm,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    MlpNorm,
    Gate,
    Up,
    Down,
}

/// What a format calls its tensors.
pub(crate) struct TensorNames {
    pub(crate) embed: &'static str,
    pub(crate) final_norm: &'static str,
    pub(crate) lm_head: &'static str,
    pub(crate) layer: fn(usize, LayerPart) -> String,
}

/// A tensor of [`Weights`] under its name in a format, for writers.
pub(crate) struct NamedTensor<'a> {
    pub(crate) name: String,
    /// Outermost dimension first.
    pub(crate) shape: Vec<usize>,
    pub(crate) data: &'a [f32],
    pub(crate) part: Option<LayerPart>,
}

/// Reads every tensor that `config` calls for.
///
/// `interleaved` says that query and key rows are in interleaved rotary order.
pub(crate) fn assemble(
    config: &LlamaConfig,
    source: &dyn TensorSource,
    names: &TensorNames,
    interleaved: bool,
) -> Result<Weights> {
    let matrix = |name: &str, rows: usize, cols: usize| -> Result<Matrix> {
        Ok(Matrix::new(rows, cols, source.tensor(name, &[rows, cols])?))
    };
    let embed = matrix(names.embed, config.vocab, config.hidden)?;
    let final_norm = source.tensor(names.final_norm, &[config.hidden])?;
    let lm_head = if config.tied_embeddings {
        None
    } else {
        Some(matrix(names.lm_head, config.vocab, config.hidden)?)
    };
    // No capacity up front: the layer count is only a number in a file until its tensors exist.
    let mut layers = Vec::new();
    for index in 0..config.layers {
        layers.push(layer(config, source, names, interleaved, index)?);
    }
    Ok(Weights {
        config: config.clone(),
        embed,
        layers,
        final_norm,
        lm_head,
    })
}

/// Reads layer `index`.
fn layer(
    config: &LlamaConfig,
    source: &dyn TensorSource,
    names: &TensorNames,
    interleaved: bool,
    index: usize,
) -> Result<LayerWeights> {
    let (hidden, ffn, d_head) = (config.hidden, config.ffn, config.d_head);
    let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
    let name = |part| (names.layer)(index, part);
    let matrix = |part, rows: usize, cols: usize| -> Result<Matrix> {
        Ok(Matrix::new(
            rows,
            cols,
            source.tensor(&name(part), &[rows, cols])?,
        ))
    };
    let turned = |part, rows: usize| -> Result<Matrix> {
        let mut m = matrix(part, rows, hidden)?;
        if interleaved {
            m.data = half_split_from_interleaved(&m.data, d_head, hidden);
        }
        Ok(m)
    };
    let bias = |part, len: usize, turn: bool| -> Result<Option<Vec<f32>>> {
        if !config.qkv_bias {
            return Ok(None);
        }
        let values = source.tensor(&name(part), &[len])?;
        Ok(Some(if turn {
            half_split_from_interleaved(&values, d_head, 1)
        } else {
            values
        }))
    };
    Ok(LayerWeights {
        attn_norm: source.tensor(&name(LayerPart::AttnNorm), &[hidden])?,
        q: turned(LayerPart::Q, q_dim)?,
        k: turned(LayerPart::K, kv_dim)?,
        v: matrix(LayerPart::V, kv_dim, hidden)?,
        o: matrix(LayerPart::O, hidden, q_dim)?,
        q_bias: bias(LayerPart::QBias, q_dim, interleaved)?,
        k_bias: bias(LayerPart::KBias, kv_dim, interleaved)?,
        v_bias: bias(LayerPart::VBias, kv_dim, false)?,
        mlp_norm: source.tensor(&name(LayerPart::MlpNorm), &[hidden])?,
        gate: matrix(LayerPart::Gate, ffn, hidden)?,
        up: matrix(LayerPart::Up, ffn, hidden)?,
        down: matrix(LayerPart::Down, hidden, ffn)?,
    })
}

/// Every tensor of `weights` in file order, named for a format.
pub(crate) fn named_tensors<'a>(weights: &'a Weights, names: &TensorNames) -> Vec<NamedTensor<'a>> {
    let matrix = |name: String, m: &'a Matrix, part| NamedTensor {
        name,
        shape: vec![m.rows, m.cols],
        data: &m.data,
        part,
    };
    let vector = |name: String, v: &'a [f32], part| NamedTensor {
        name,
        shape: vec![v.len()],
        data: v,
        part,
    };
    let mut all = vec![matrix(names.embed.into(), &weights.embed, None)];
    for (index, l) in weights.layers.iter().enumerate() {
        let name = |part| (names.layer)(index, part);
        let matrices = [
            (LayerPart::Q, &l.q),
            (LayerPart::K, &l.k),
            (LayerPart::V, &l.v),
            (LayerPart::O, &l.o),
            (LayerPart::Gate, &l.gate),
            (LayerPart::Up, &l.up),
            (LayerPart::Down, &l.down),
        ];
        let norms = [
            (LayerPart::AttnNorm, &l.attn_norm),
            (LayerPart::MlpNorm, &l.mlp_norm),
        ];
        let biases = [
            (LayerPart::QBias, &l.q_bias),
            (LayerPart::KBias, &l.k_bias),
            (LayerPart::VBias, &l.v_bias),
        ];
        all.extend(norms.map(|(part, v)| vector(name(part), v, Some(part))));
        all.extend(matrices.map(|(part, m)| matrix(name(part), m, Some(part))));
        for (part, values) in biases {
            all.extend(values.as_deref().map(|v| vector(name(part), v, Some(part))));
        }
    }
    all.push(vector(names.final_norm.into(), &weights.final_norm, None));
    all.extend(
        weights
            .lm_head
            .as_ref()
            .map(|m| matrix(names.lm_head.into(), m, None)),
    );
    all
}
