//! Executors without a model: one that takes virtual time, one that follows a script.
//!
//! Both move no data; the engine around them is the real one. The token of position `p` of
//! request `r` is [`simulated_token`]`(r, p, vocab)` unless a script says otherwise, so it depends
//! on nothing that scheduling could change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pb_contract::{BlockId, Clock, Nanos, RequestId, TokenId, VirtualClock};
use pb_model::forward::{ForwardTiming, LogitSink};
use serde::{Deserialize, Serialize};

use crate::execute::{Chunk, Executor};

/// How long a step takes, after DistServe's model of the two phases.
///
/// A prompt-only step takes `prefill.step_ns + prefill.token_ns * tokens + prefill.pair_ns *
/// pairs`; a chunk of `n` tokens after `s` others has `n * s + n * (n + 1) / 2` pairs of query and
/// key. A decode-only step takes `decode.step_ns + decode.context_token_ns * context tokens +
/// decode.sequence_ns * sequences`. A step with both pays the larger of the two constants and all
/// other terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Where the coefficients come from.
    pub source: String,
    /// Prompt tokens.
    pub prefill: PrefillCost,
    /// Decodes.
    pub decode: DecodeCost,
}

/// Cost of prompt tokens, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillCost {
    /// A step.
    pub step_ns: f64,
    /// A token.
    pub token_ns: f64,
    /// A pair of query and key.
    pub pair_ns: f64,
}

/// Cost of decodes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeCost {
    /// A step.
    pub step_ns: f64,
    /// A token of context.
    pub context_token_ns: f64,
    /// A sequence.
    pub sequence_ns: f64,
}

/// Cost models that come with the crate, by name.
const BUILTIN: [(&str, &str); 2] = [
    (
        "llama31-8b-rtxpro6000",
        include_str!("../data/cost_llama31_8b_rtxpro6000.toml"),
    ),
    (
        "opt-13b-a100",
        include_str!("../data/cost_opt13b_a100.toml"),
    ),
];

impl CostModel {
    /// Reads a cost file.
    ///
    /// # Errors
    /// What is wrong with the text, or a coefficient that is negative or no number.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let cost: CostModel = toml::from_str(text).map_err(|e| e.to_string())?;
        let (p, d) = (&cost.prefill, &cost.decode);
        let coefficients = [
            ("prefill.step_ns", p.step_ns),
            ("prefill.token_ns", p.token_ns),
            ("prefill.pair_ns", p.pair_ns),
            ("decode.step_ns", d.step_ns),
            ("decode.context_token_ns", d.context_token_ns),
            ("decode.sequence_ns", d.sequence_ns),
        ];
        let bad = |&&(_, value): &&(&str, f64)| !(value.is_finite() && value >= 0.0);
        match coefficients.iter().find(bad) {
            Some((key, value)) => Err(format!("{key} = {value}: must be finite and at least 0")),
            None => Ok(cost),
        }
    }

    /// A model that comes with the crate; see [`CostModel::builtin_names`].
    ///
    /// # Errors
    /// The names that exist.
    pub fn builtin(name: &str) -> Result<Self, String> {
        match BUILTIN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::from_toml(text),
            None => Err(format!(
                "cost model {name:?}: unknown; there are {}",
                Self::builtin_names().join(", ")
            )),
        }
    }

    /// Names that [`CostModel::builtin`] takes, the default first.
    pub fn builtin_names() -> Vec<&'static str> {
        BUILTIN.iter().map(|(name, _)| *name).collect()
    }

    /// Time of a step over `chunks`, by part.
    fn timing(&self, chunks: &[Chunk<'_>]) -> ForwardTiming {
        let mut load = Load::default();
        chunks.iter().for_each(|chunk| load.add(chunk));
        let (p, d) = (&self.prefill, &self.decode);
        let constant = match (load.prefills, load.sequences) {
            (0, 0) => 0.0,
            (0, _) => d.step_ns,
            (_, 0) => p.step_ns,
            _ => p.step_ns.max(d.step_ns),
        };
        let gemm = constant + p.token_ns * load.tokens + d.sequence_ns * load.sequences as f64;
        ForwardTiming {
            gemm_ns: nanos(gemm),
            prefill_attention_ns: nanos(p.pair_ns * load.pairs),
            decode_attention_ns: nanos(d.context_token_ns * load.context),
            sink_ns: Nanos::ZERO,
        }
    }
}

/// What a step has to do, as the cost model counts it.
#[derive(Default)]
struct Load {
    prefills: usize,
    tokens: f64,
    pairs: f64,
    sequences: usize,
    context: f64,
}

impl Load {
    fn add(&mut self, chunk: &Chunk<'_>) {
        let (n, start) = (chunk.tokens.len() as f64, chunk.start as f64);
        if chunk.is_prefill {
            self.prefills += 1;
            self.tokens += n;
            self.pairs += n * start + n * (n + 1.0) / 2.0;
        } else {
            self.sequences += 1;
            self.context += start + n;
        }
    }
}

fn nanos(ns: f64) -> Nanos {
    Nanos(ns.round() as u64)
}

/// The token at `position` of request `id` where nothing computes one: a fixed pseudo-random
/// function of the two (SplitMix64's finaliser), below `vocab`.
pub fn simulated_token(id: RequestId, position: usize, vocab: usize) -> TokenId {
    let mut x = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position as u64);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % vocab.max(1) as u64) as TokenId
}

/// Takes virtual time for what it is given and computes nothing.
pub struct SimExecutor {
    cost: CostModel,
    clock: Arc<VirtualClock>,
    vocab: usize,
}

impl SimExecutor {
    /// An executor that advances `clock`, the one that the engine is stepped with, by what `cost`
    /// says.
    pub fn new(cost: CostModel, clock: Arc<VirtualClock>, vocab: usize) -> Self {
        SimExecutor { cost, clock, vocab }
    }
}

/// Hands `token(id, position)` on for every chunk that ends its sequence.
fn emit(
    chunks: &[Chunk<'_>],
    sink: &mut dyn LogitSink,
    mut token: impl FnMut(RequestId, usize) -> TokenId,
) {
    for (seq, chunk) in chunks.iter().enumerate() {
        if chunk.is_last {
            sink.token(seq, token(chunk.id, chunk.start + chunk.tokens.len()));
        }
    }
}

impl Executor for SimExecutor {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        _clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let timing = self.cost.timing(chunks);
        let parts = timing.gemm_ns + timing.prefill_attention_ns + timing.decode_attention_ns;
        self.clock.advance_to(self.clock.now() + parts);
        emit(chunks, sink, |id, position| {
            simulated_token(id, position, self.vocab)
        });
        Ok(timing)
    }

    fn own_token(&mut self, id: RequestId, position: usize) -> Option<TokenId> {
        Some(simulated_token(id, position, self.vocab))
    }

    fn resize_kv(&mut self, _block_size: usize, _num_blocks: usize) {}

    fn kv_bytes(&self) -> usize {
        0
    }

    fn copy_block(&mut self, _from: BlockId, _to: BlockId) {}

    fn read_block(&self, _block: BlockId, _out: &mut Vec<u8>) {}

    fn write_block(&mut self, _block: BlockId, image: &[u8]) -> Result<(), String> {
        no_data(image)
    }
}

/// Refuses an image where there are only empty ones.
fn no_data(image: &[u8]) -> Result<(), String> {
    match image {
        [] => Ok(()),
        _ => Err(format!(
            "a block image of {} bytes: a simulated block has none",
            image.len()
        )),
    }
}

/// The tokens that a [`ScriptedExecutor`] is to give, filled from outside.
#[derive(Clone, Default)]
pub struct Script {
    tokens: Arc<Mutex<BTreeMap<(RequestId, usize), TokenId>>>,
}

impl Script {
    /// Sets the token at `position` of request `id`.
    pub fn set(&self, id: RequestId, position: usize, token: TokenId) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert((id, position), token);
    }

    /// Drops the tokens that were not used.
    pub fn clear(&self) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.clear();
    }

    fn take(&self, id: RequestId, position: usize) -> Option<TokenId> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.remove(&(id, position))
    }
}

/// Takes no time, computes nothing and gives the tokens of a script, for replaying schedules.
pub struct ScriptedExecutor {
    script: Script,
    vocab: usize,
}

impl ScriptedExecutor {
    /// An executor that follows `script`, and [`simulated_token`] where that says nothing.
    pub fn new(script: Script, vocab: usize) -> Self {
        ScriptedExecutor { script, vocab }
    }
}

impl Executor for ScriptedExecutor {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        _clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let (script, vocab) = (&self.script, self.vocab);
        emit(chunks, sink, |id, position| {
            let scripted = script.take(id, position);
            scripted.unwrap_or_else(|| simulated_token(id, position, vocab))
        });
        Ok(ForwardTiming::default())
    }

    fn own_token(&mut self, id: RequestId, position: usize) -> Option<TokenId> {
        let scripted = self.script.take(id, position);
        Some(scripted.unwrap_or_else(|| simulated_token(id, position, self.vocab)))
    }

    fn resize_kv(&mut self, _block_size: usize, _num_blocks: usize) {}

    fn kv_bytes(&self) -> usize {
        0
    }

    fn copy_block(&mut self, _from: BlockId, _to: BlockId) {}

    fn read_block(&self, _block: BlockId, _out: &mut Vec<u8>) {}

    fn write_block(&mut self, _block: BlockId, image: &[u8]) -> Result<(), String> {
        no_data(image)
    }
}

#[cfg(test)]
mod tests {
    use pb_model::forward::LogitRows;

    use super::*;

    fn chunk(tokens: &[TokenId], start: usize, is_prefill: bool) -> Chunk<'_> {
        Chunk {
            id: RequestId(0),
            tokens,
            start,
            block_table: &[],
            rows: LogitRows::None,
            is_prefill,
            is_last: false,
            adapter: None,
        }
    }

    #[test]
    fn time_is_the_sum_of_the_terms() {
        let text = "source = \"by hand\"\n[prefill]\nstep_ns = 1000\ntoken_ns = 10\npair_ns = 1\n\
                    [decode]\nstep_ns = 500\ncontext_token_ns = 2\nsequence_ns = 7\n";
        let cost = CostModel::from_toml(text).unwrap();
        let tokens = [0; 4];
        let total = |chunks: &[Chunk<'_>]| {
            let t = cost.timing(chunks);
            (t.gemm_ns + t.prefill_attention_ns + t.decode_attention_ns).0
        };
        // Four tokens after ten: 4 * 10 + 1 + 2 + 3 + 4 = 50 pairs.
        let prefill = chunk(&tokens, 10, true);
        assert_eq!(total(std::slice::from_ref(&prefill)), 1000 + 40 + 50);
        let decode = chunk(&tokens[..1], 20, false);
        assert_eq!(total(std::slice::from_ref(&decode)), 500 + 2 * 21 + 7);
        // Together: the larger constant once.
        assert_eq!(total(&[decode, prefill]), 1000 + 40 + 50 + 42 + 7);
        assert_eq!(total(&[]), 0);
    }

    #[test]
    fn cost_files_are_checked() {
        for name in CostModel::builtin_names() {
            let cost = CostModel::builtin(name).unwrap();
            // One prompt of 1,000 tokens takes between 10 ms and 1 s on any of these machines.
            let tokens = vec![0; 1000];
            let t = cost.timing(&[chunk(&tokens, 0, true)]);
            assert!((10_000_000..1_000_000_000).contains(&t.gemm_ns.0), "{name}");
        }
        let unknown = CostModel::builtin("gpu").unwrap_err();
        assert!(unknown.contains("llama31-8b-rtxpro6000"), "{unknown}");
        let text = "source = \"\"\n[prefill]\nstep_ns = -1\ntoken_ns = 0\npair_ns = 0\n\
                    [decode]\nstep_ns = 0\ncontext_token_ns = 0\nsequence_ns = 0\n";
        let negative = CostModel::from_toml(text).unwrap_err();
        assert!(negative.contains("prefill.step_ns = -1"), "{negative}");
    }
}
