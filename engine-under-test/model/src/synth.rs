//! Generated models, for when no file can be had and for tests that need small ones.
//!
//! Random weights with the usual small deviation give nearly uniform attention, and a model that
//! attends to everything alike cannot show that a key was rotated to the wrong position. "Sharp"
//! weights (deviation `1/sqrt(fan_in)`, doubled on q, k and the output head) attend to few
//! positions and make such faults visible. Grouped-query attention is always on, so that mixed-up
//! heads show as well. The same seed gives the same bytes on every machine.

mod files;
mod vocab;

use pb_contract::rng::Stream;

use crate::Model;
use crate::chat::ChatTemplate;
use crate::config::{Arch, LlamaConfig, RopeScaling};
use crate::error::Result;
use crate::gguf::{MatrixType, metadata_from_config, write_model};
use crate::identity::{ModelIdentity, ModelKind, digest_bytes};
use crate::tokenizer::Tokenizer;
use crate::weights::{LayerWeights, Matrix, Weights};
pub use files::write_dir;
pub use vocab::{CHAT_TEMPLATE, SIZE as VOCAB, tokenizer_json};

/// How weights are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Deviation `1/sqrt(fan_in)`, twice that on q, k and the head; norms scattered around 1.
    Sharp,
    /// Deviation 0.02 everywhere, norms 1: what transformers starts training from.
    HfInit,
}

impl Kind {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sharp => "sharp",
            Kind::HfInit => "hf-init",
        }
    }
}

/// How large the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 2 layers of width 64: unit tests.
    Tiny,
    /// 4 layers of width 256: a workload that takes measurable time.
    Small,
}

impl Size {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::Small => "small",
        }
    }
}

/// The shape of a generated model.
pub fn config(size: Size) -> LlamaConfig {
    let (hidden, layers, q_heads, kv_heads, ffn) = match size {
        Size::Tiny => (64, 2, 4, 2, 128),
        Size::Small => (256, 4, 8, 2, 704),
    };
    LlamaConfig {
        arch: Arch::Llama,
        hidden,
        layers,
        q_heads,
        kv_heads,
        d_head: hidden / q_heads,
        ffn,
        vocab: vocab::SIZE,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        rms_eps: 1e-5,
        max_position: 8192,
        tied_embeddings: false,
        qkv_bias: false,
        bos_id: Some(vocab::START),
        eos_ids: vec![vocab::END],
    }
}

/// Generates a model: its shape, weights and `tokenizer.json`.
pub fn generate(kind: Kind, size: Size, seed: u64) -> (LlamaConfig, Weights, String) {
    let config = config(size);
    let weights = weights(kind, &config, seed);
    (config, weights, tokenizer_json())
}

/// Generates a model that is ready to run, without touching a file. Its digest is that of the
/// `model.safetensors` that [`write_dir`] writes.
///
/// # Errors
/// None in practice: the tokenizer and template are this crate's own.
pub fn model(kind: Kind, size: Size, seed: u64) -> Result<Model> {
    let (config, weights, tokenizer_json) = generate(kind, size, seed);
    let mut tokenizer = Tokenizer::from_json(&tokenizer_json)?;
    let template = ChatTemplate::new(
        CHAT_TEMPLATE,
        vocab::name(vocab::START),
        vocab::name(vocab::END),
    )?;
    tokenizer.set_chat_template(Some(template));
    let bytes = files::safetensors_bytes(&weights)?;
    let identity = ModelIdentity {
        name: model_name(kind, size, seed),
        path: "synthetic".into(),
        kind: ModelKind::Synthetic,
        sha256: digest_bytes(&bytes),
        weight_bytes: bytes.len() as u64,
    };
    Ok(Model {
        config,
        weights,
        tokenizer,
        identity,
    })
}

/// The generated model as one GGUF file with its tokenizer.
pub fn gguf_bytes(kind: Kind, size: Size, seed: u64, matrices: MatrixType) -> Vec<u8> {
    let (config, weights, _) = generate(kind, size, seed);
    let mut metadata = metadata_from_config(&config, &model_name(kind, size, seed));
    metadata.extend(vocab::gguf_metadata());
    let mut out = Vec::new();
    // OK because writing to memory does not fail.
    write_model(&mut out, &weights, &metadata, matrices).expect("a Vec takes every byte");
    out
}

/// What the model is called in results.
fn model_name(kind: Kind, size: Size, seed: u64) -> String {
    format!("synthetic-{}-{}-seed{seed}", kind.name(), size.name())
}

/// Draws every weight of a model of any shape.
pub fn weights(kind: Kind, config: &LlamaConfig, seed: u64) -> Weights {
    let draw = Draw { kind, seed };
    let (hidden, ffn) = (config.hidden, config.ffn);
    let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
    let layer = |index: usize| {
        let name = |part: &str| format!("layer{index}.{part}");
        LayerWeights {
            attn_norm: draw.norm(&name("attn_norm"), hidden),
            q: draw.matrix(&name("q"), q_dim, hidden, 2.0),
            k: draw.matrix(&name("k"), kv_dim, hidden, 2.0),
            v: draw.matrix(&name("v"), kv_dim, hidden, 1.0),
            o: draw.matrix(&name("o"), hidden, q_dim, 1.0),
            q_bias: None,
            k_bias: None,
            v_bias: None,
            mlp_norm: draw.norm(&name("mlp_norm"), hidden),
            gate: draw.matrix(&name("gate"), ffn, hidden, 1.0),
            up: draw.matrix(&name("up"), ffn, hidden, 1.0),
            down: draw.matrix(&name("down"), hidden, ffn, 1.0),
        }
    };
    Weights {
        config: config.clone(),
        embed: draw.embedding("embed", config.vocab, hidden),
        layers: (0..config.layers).map(layer).collect(),
        final_norm: draw.norm("final_norm", hidden),
        lm_head: Some(draw.matrix("lm_head", config.vocab, hidden, 2.0)),
    }
}

/// Draws tensors, each from a stream of its own, so that their order does not matter.
struct Draw {
    kind: Kind,
    seed: u64,
}

impl Draw {
    /// `count` normal values around `mean`.
    fn normal(&self, name: &str, count: usize, mean: f64, sigma: f64) -> Vec<f32> {
        let mut stream = Stream::new(self.seed, &format!("synth.{}.{name}", self.kind.name()));
        (0..count)
            .map(|_| (mean + sigma * stream.normal()) as f32)
            .collect()
    }

    /// A projection; `gain` multiplies the deviation of sharp weights.
    fn matrix(&self, name: &str, rows: usize, cols: usize, gain: f64) -> Matrix {
        let sigma = match self.kind {
            Kind::Sharp => gain / libm::sqrt(cols as f64),
            Kind::HfInit => 0.02,
        };
        Matrix::new(rows, cols, self.normal(name, rows * cols, 0.0, sigma))
    }

    /// The embedding table: a lookup sums over one input, so its fan-in is 1.
    fn embedding(&self, name: &str, rows: usize, cols: usize) -> Matrix {
        let sigma = match self.kind {
            Kind::Sharp => 1.0,
            Kind::HfInit => 0.02,
        };
        Matrix::new(rows, cols, self.normal(name, rows * cols, 0.0, sigma))
    }

    /// A norm's scale: scattered in sharp models, so that swapped norms show.
    fn norm(&self, name: &str, len: usize) -> Vec<f32> {
        match self.kind {
            Kind::Sharp => self.normal(name, len, 1.0, 0.1),
            Kind::HfInit => vec![1.0; len],
        }
    }
}

#[cfg(test)]
mod tests;
