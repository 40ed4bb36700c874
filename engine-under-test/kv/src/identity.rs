//! What is fixed for one engine and decides whether KV blocks mean the same in two engines.
//!
//! Keys and values depend on more than tokens: on the weights, on where and how positions enter,
//! on how the cache stores numbers and on the arithmetic that made them. All of it is digested
//! into one identity, which seeds the chain of block names, so blocks that outlive a restart or a
//! reload (in a tier, in another process) are found again only where they are right.

use pb_contract::{KvDtype, Numerics};

/// Version of the encoding below.
const CONTEXT: &[u8] = b"prefillbench cache identity v1";

const TAG_WEIGHTS: u8 = 1;
const TAG_POSITIONAL: u8 = 2;
const TAG_KV: u8 = 3;
const TAG_ENGINE: u8 = 4;

/// How positions enter keys and attention.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Positional {
    /// Base of the rotary frequencies; 0 without rotary embedding.
    pub rope_theta: f64,
    /// Rotary scaling as `(parameter, value)`, such as `("linear.factor", 4.0)`; the order counts.
    pub rope_scaling: Vec<(String, f64)>,
    /// Added to every position.
    pub offset: i64,
    /// Longest context in tokens that the frequencies are made for.
    pub max_position: usize,
    /// Tokens that attention looks back; `None` is a full causal mask.
    pub sliding_window: Option<usize>,
}

/// How KV values are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct KvFormat {
    /// Element type.
    pub dtype: KvDtype,
    /// Fixed quantisation scales in the order of the layers, keys before values; empty without.
    pub scales: Vec<f32>,
    /// Name of the order of elements in a block, such as `layer,side,head,slot,dim`.
    pub layout: String,
}

/// What else makes the numbers of one engine differ from those of another.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFormat {
    /// Arithmetic of the forward pass.
    pub numerics: Numerics,
    /// Tokens in a block.
    pub block_size: usize,
    /// Name and version of the kernels.
    pub revision: String,
}

/// Everything that beside tokens, adapter and salt must agree for KV to be shared.
///
/// ```
/// use pb_contract::{KvDtype, Numerics};
/// use pb_kv::{CacheIdentity, CacheScope, EngineFormat, KvFormat, Positional};
///
/// let identity = CacheIdentity {
///     weights: [7; 32],
///     positional: Positional { rope_theta: 1e5, max_position: 8192, ..Positional::default() },
///     kv: KvFormat { dtype: KvDtype::F32, scales: vec![], layout: "layer,slot".to_owned() },
///     engine: EngineFormat {
///         numerics: Numerics::Exact,
///         block_size: 16,
///         revision: "cpu 1".to_owned(),
///     },
/// };
/// let scope = CacheScope { identity: identity.digest(), ..CacheScope::default() };
/// assert_ne!(scope.identity, [0; 32]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CacheIdentity {
    /// Digest of architecture and weights.
    pub weights: [u8; 32],
    /// Positions.
    pub positional: Positional,
    /// Storage.
    pub kv: KvFormat,
    /// Arithmetic.
    pub engine: EngineFormat,
}

impl CacheIdentity {
    /// The digest that goes into [`crate::CacheScope::identity`]: BLAKE3 over the four parts, each
    /// tagged by its kind and length, so that nothing in one part can pass for another.
    pub fn digest(&self) -> [u8; 32] {
        let mut all = Encoder(CONTEXT.to_vec());
        all.part(TAG_WEIGHTS, &self.weights);
        all.part(TAG_POSITIONAL, &self.positional.encode());
        all.part(TAG_KV, &self.kv.encode());
        all.part(TAG_ENGINE, &self.engine.encode());
        *blake3::hash(&all.0).as_bytes()
    }
}

impl Positional {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.part(1, &self.rope_theta.to_bits().to_le_bytes());
        for (name, value) in &self.rope_scaling {
            out.part(2, name.as_bytes());
            out.part(3, &value.to_bits().to_le_bytes());
        }
        out.part(4, &self.offset.to_le_bytes());
        out.part(5, &(self.max_position as u64).to_le_bytes());
        if let Some(window) = self.sliding_window {
            out.part(6, &(window as u64).to_le_bytes());
        }
        out.0
    }
}

impl KvFormat {
    fn encode(&self) -> Vec<u8> {
        let scales = self.scales.iter().flat_map(|s| s.to_bits().to_le_bytes());
        let mut out = Encoder::default();
        // The variant's name, not its number: a new variant must not rename the old ones.
        out.part(1, format!("{:?}", self.dtype).as_bytes());
        out.part(2, &scales.collect::<Vec<u8>>());
        out.part(3, self.layout.as_bytes());
        out.0
    }
}

impl EngineFormat {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.part(1, format!("{:?}", self.numerics).as_bytes());
        out.part(2, &(self.block_size as u64).to_le_bytes());
        out.part(3, self.revision.as_bytes());
        out.0
    }
}

/// Appends tagged parts, each as tag, length and bytes.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn part(&mut self, tag: u8, value: &[u8]) {
        push_tagged(&mut self.0, tag, value);
    }
}

/// Appends `value` with its kind and length in front.
pub(crate) fn push_tagged(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    out.extend_from_slice(value);
}
