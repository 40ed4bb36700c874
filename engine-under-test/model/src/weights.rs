//! Weights as the forward pass wants them: f32, row-major `[out][in]`, one rotary convention.
//!
//! Files differ in element type, tensor names and in how query and key rows are ordered. All of
//! that ends here: matrices are dequantised, and q and k rows are in Hugging Face's half-split
//! order (dimension `i` of a head turns with dimension `i + d_head / 2`). A second layout further
//! down would be a second place to get the rotary convention wrong, and that mistake produces
//! fluent nonsense rather than an error.

mod assemble;
pub mod rotary;

pub(crate) use assemble::{LayerPart, NamedTensor, TensorNames, TensorSource};
pub(crate) use assemble::{assemble, named_tensors};

use crate::config::LlamaConfig;

/// A dense matrix: `rows` outputs, `cols` inputs, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Number of output features.
    pub rows: usize,
    /// Number of input features.
    pub cols: usize,
    /// `rows * cols` values; row `r` is `data[r * cols..(r + 1) * cols]`.
    pub data: Vec<f32>,
}

impl Matrix {
    /// Wraps `data`.
    ///
    /// # Panics
    /// When `data.len() != rows * cols`, which is a mistake of the caller.
    pub fn new(rows: usize, cols: usize, data: Vec<f32>) -> Matrix {
        assert_eq!(
            Some(data.len()),
            rows.checked_mul(cols),
            "matrix data does not fit its shape"
        );
        Matrix { rows, cols, data }
    }

    /// Row `r`: the weights of output feature `r`, `cols` long.
    ///
    /// # Panics
    /// When `r >= rows`.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }
}

/// The weights of one decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerWeights {
    /// RMSNorm scale before attention, `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// Query projection, `[q_heads * d_head][hidden]`, half-split rotary rows.
    pub q: Matrix,
    /// Key projection, `[kv_heads * d_head][hidden]`, half-split rotary rows.
    pub k: Matrix,
    /// Value projection, `[kv_heads * d_head][hidden]`.
    pub v: Matrix,
    /// Attention output projection, `[hidden][q_heads * d_head]`.
    pub o: Matrix,
    /// Query bias, `[q_heads * d_head]`, in the order of `q`'s rows.
    pub q_bias: Option<Vec<f32>>,
    /// Key bias, `[kv_heads * d_head]`, in the order of `k`'s rows.
    pub k_bias: Option<Vec<f32>>,
    /// Value bias, `[kv_heads * d_head]`.
    pub v_bias: Option<Vec<f32>>,
    /// RMSNorm scale before the feed-forward layer, `[hidden]`.
    pub mlp_norm: Vec<f32>,
    /// SwiGLU gate, `[ffn][hidden]`.
    pub gate: Matrix,
    /// SwiGLU up projection, `[ffn][hidden]`.
    pub up: Matrix,
    /// Down projection, `[hidden][ffn]`.
    pub down: Matrix,
}

/// Every weight of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The shape that these weights have.
    pub config: LlamaConfig,
    /// Token embeddings, `[vocab][hidden]`.
    pub embed: Matrix,
    /// Decoder layers, first to last.
    pub layers: Vec<LayerWeights>,
    /// RMSNorm scale before the head, `[hidden]`.
    pub final_norm: Vec<f32>,
    /// Output head, `[vocab][hidden]`; `None` means tied to `embed`.
    pub lm_head: Option<Matrix>,
}

impl Weights {
    /// The output head, `[vocab][hidden]`, tied or not.
    pub fn head(&self) -> &Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed)
    }

    /// Checks that no weight is infinite or not a number: such a model answers, and every answer
    /// is nonsense.
    ///
    /// # Errors
    /// [`crate::ModelError::Tensor`] naming the part and the first such value.
    pub fn check_finite(&self) -> crate::Result<()> {
        let part = |name: String, data: &[f32]| match data.iter().position(|v| !v.is_finite()) {
            None => Ok(()),
            Some(at) => Err(crate::ModelError::Tensor {
                name,
                problem: format!("value {at} is {}: every weight must be finite", data[at]),
            }),
        };
        part("embedding".into(), &self.embed.data)?;
        part("final norm".into(), &self.final_norm)?;
        if let Some(head) = &self.lm_head {
            part("output head".into(), &head.data)?;
        }
        for (i, l) in self.layers.iter().enumerate() {
            let matrices = [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down];
            for (name, m) in ["q", "k", "v", "o", "gate", "up", "down"]
                .iter()
                .zip(matrices)
            {
                part(format!("layer {i} {name}"), &m.data)?;
            }
            for (name, v) in [("attention norm", &l.attn_norm), ("mlp norm", &l.mlp_norm)] {
                part(format!("layer {i} {name}"), v)?;
            }
            for bias in [&l.q_bias, &l.k_bias, &l.v_bias].into_iter().flatten() {
                part(format!("layer {i} bias"), bias)?;
            }
        }
        Ok(())
    }

    /// Number of parameters; a tied head counts once.
    pub fn parameter_count(&self) -> usize {
        let layer = |l: &LayerWeights| {
            let matrices = [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down];
            let biases = [&l.q_bias, &l.k_bias, &l.v_bias];
            matrices.iter().map(|m| m.data.len()).sum::<usize>()
                + biases
                    .iter()
                    .map(|b| b.as_ref().map_or(0, Vec::len))
                    .sum::<usize>()
                + l.attn_norm.len()
                + l.mlp_norm.len()
        };
        self.embed.data.len()
            + self.layers.iter().map(layer).sum::<usize>()
            + self.final_norm.len()
            + self.lm_head.as_ref().map_or(0, |m| m.data.len())
    }
}
