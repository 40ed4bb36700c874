//! LoRA adapters: a trained change of some projections, of low rank, added at run time.
//!
//! An adapted projection computes `W x + s B (A x)`, where A is `[rank][in]`, B `[out][rank]` and
//! `s = alpha / rank` (Hu et al. 2021, arXiv 2106.09685). The base weights stay as they are, so
//! sequences with different adapters, and with none, share one batch.
//!
//! Adapters are folders in PEFT's format. Their rows are in Hugging Face's order, which is the
//! order that [`crate::Weights`] has whatever file the base model came from, so that an adapter
//! fits a GGUF file too.
//!
//! ```
//! use pb_model::lora::{AdapterSet, synth};
//! use pb_model::synth::{Size, config};
//!
//! let tone = synth::adapter("tone", &config(Size::Tiny), 4, 8.0, 1);
//! let set = AdapterSet::new(vec![tone])?;
//! assert_eq!(set.index("tone"), Some(0));
//! # Ok::<(), pb_model::ModelError>(())
//! ```

mod config;
mod digest;
mod load;
mod packed;
mod reference;
pub mod synth;

pub(crate) use packed::{LoraScratch, PackedAdapters, Place, Target};
pub(crate) use reference::add_delta_f64;

use crate::config::LlamaConfig;
use crate::error::{ModelError, Result};

/// A projection that an adapter may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Projection {
    /// Query.
    Q,
    /// Key.
    K,
    /// Value.
    V,
    /// Attention output.
    O,
    /// SwiGLU gate.
    Gate,
    /// SwiGLU up.
    Up,
    /// Down.
    Down,
}

impl Projection {
    /// Every projection, in the order of a layer.
    pub const ALL: [Projection; 7] = [
        Projection::Q,
        Projection::K,
        Projection::V,
        Projection::O,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// The module's own name in transformers.
    pub fn name(self) -> &'static str {
        match self {
            Projection::Q => "q_proj",
            Projection::K => "k_proj",
            Projection::V => "v_proj",
            Projection::O => "o_proj",
            Projection::Gate => "gate_proj",
            Projection::Up => "up_proj",
            Projection::Down => "down_proj",
        }
    }

    /// The module's name within a layer, such as `self_attn.q_proj`.
    pub fn path(self) -> String {
        let block = match self {
            Projection::Gate | Projection::Up | Projection::Down => "mlp",
            _ => "self_attn",
        };
        format!("{block}.{}", self.name())
    }

    /// Outputs and inputs of the projection.
    pub fn shape(self, config: &LlamaConfig) -> (usize, usize) {
        match self {
            Projection::Q => (config.q_dim(), config.hidden),
            Projection::K | Projection::V => (config.kv_dim(), config.hidden),
            Projection::O => (config.hidden, config.q_dim()),
            Projection::Gate | Projection::Up => (config.ffn, config.hidden),
            Projection::Down => (config.hidden, config.ffn),
        }
    }
}

/// The change of one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// Rows of `a`, columns of `b`.
    pub rank: usize,
    /// `[rank][inputs]`, row-major.
    pub a: Vec<f32>,
    /// `[outputs][rank]`, row-major.
    pub b: Vec<f32>,
    /// What the product is multiplied by.
    pub scale: f64,
}

/// The changes of one layer's projections, in the order of [`Projection::ALL`].
pub(crate) type LayerDeltas = [Option<LowRank>; 7];

/// A loaded adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraAdapter {
    /// The name that requests choose it by.
    pub name: String,
    /// sha256 of everything that its results depend on; part of a cached block's identity, so
    /// that another adapter under an old name finds nothing.
    pub digest: [u8; 32],
    /// Deltas of every layer.
    layers: Vec<LayerDeltas>,
}

impl LoraAdapter {
    /// An adapter from its deltas.
    fn new(name: &str, layers: Vec<LayerDeltas>) -> LoraAdapter {
        LoraAdapter {
            name: name.into(),
            digest: digest::of(&layers),
            layers,
        }
    }

    /// The change of a projection, if the adapter has one.
    pub fn delta(&self, layer: usize, projection: Projection) -> Option<&LowRank> {
        self.layers.get(layer)?[projection as usize].as_ref()
    }

    /// The adapter with every value of A and B replaced by what `f` makes of it: how a backend
    /// sees it that stores them in another precision.
    pub fn map_values(&self, f: impl Fn(f32) -> f32) -> LoraAdapter {
        let mut layers = self.layers.clone();
        for delta in layers.iter_mut().flatten().flatten() {
            let values = delta.a.iter_mut().chain(&mut delta.b);
            values.for_each(|x| *x = f(*x));
        }
        LoraAdapter::new(&self.name, layers)
    }

    /// Number of values in all A and B.
    pub fn parameter_count(&self) -> usize {
        let deltas = self.layers.iter().flatten().flatten();
        deltas.map(|d| d.a.len() + d.b.len()).sum()
    }

    /// Checks that every delta has the shape that `config` needs.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] naming the adapter, the module and both shapes.
    pub fn check_fits(&self, config: &LlamaConfig) -> Result<()> {
        if self.layers.len() != config.layers {
            let problem = format!(
                "has {} layers, the model {}; load it for this model",
                self.layers.len(),
                config.layers
            );
            return Err(ModelError::tensor(
                format!("adapter {}", self.name),
                problem,
            ));
        }
        for (layer, deltas) in self.layers.iter().enumerate() {
            for (projection, delta) in Projection::ALL.into_iter().zip(deltas) {
                let Some(delta) = delta else { continue };
                let (outputs, inputs) = projection.shape(config);
                let want = (outputs * delta.rank, inputs * delta.rank);
                if (delta.b.len(), delta.a.len()) != want {
                    let module = format!("{} layers.{layer}.{}", self.name, projection.path());
                    let problem = format!("does not fit {outputs} outputs of {inputs} inputs");
                    return Err(ModelError::tensor(module, problem));
                }
            }
        }
        Ok(())
    }
}

/// The adapters that a decoder serves, by index and by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterSet {
    adapters: Vec<LoraAdapter>,
}

impl AdapterSet {
    /// Takes adapters with different names, in order.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming a name that is empty or was given twice.
    pub fn new(adapters: Vec<LoraAdapter>) -> Result<AdapterSet> {
        for (i, adapter) in adapters.iter().enumerate() {
            let problem = if adapter.name.is_empty() {
                "an adapter needs a name"
            } else if adapters[..i].iter().any(|a| a.name == adapter.name) {
                "was given twice; requests could not tell which is meant"
            } else {
                continue;
            };
            return Err(ModelError::Config {
                origin: "adapters".into(),
                key: "name".into(),
                value: format!("{:?}", adapter.name),
                problem: problem.into(),
            });
        }
        Ok(AdapterSet { adapters })
    }

    /// The index of the adapter called `name`.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.adapters.iter().position(|a| a.name == name)
    }

    /// The adapter with an index.
    pub fn get(&self, index: usize) -> Option<&LoraAdapter> {
        self.adapters.get(index)
    }

    /// The adapter with an index that is known to exist.
    ///
    /// # Panics
    /// When it does not: to compute without it would be silently wrong.
    pub(crate) fn at(&self, index: usize) -> &LoraAdapter {
        &self.adapters[index]
    }

    /// All adapters, by index.
    pub fn iter(&self) -> impl Iterator<Item = &LoraAdapter> {
        self.adapters.iter()
    }

    /// Number of adapters.
    pub fn len(&self) -> usize {
        self.adapters.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.adapters.is_empty()
    }
}
