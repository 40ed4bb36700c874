//! The reference logits in `golden/logits`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Names of the reference prompts.
pub const NAMES: [&str; 6] = [
    "single_token",
    "chat_sky",
    "austen_b_64",
    "austen_a_337",
    "austen_c_512",
    "jargon_1031",
];

/// One reference prompt.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// Name.
    pub name: String,
    /// sha256 of the weights file.
    pub model_sha256: String,
    /// Prompt tokens.
    pub tokens: Vec<u32>,
    /// Prompt text.
    pub text: String,
    /// The eight most likely next tokens at each position.
    pub topk_ids: Vec<Vec<u32>>,
    /// Their log-probabilities.
    pub topk_logprobs: Vec<Vec<f64>>,
    /// Log-probability of the prompt's own next token at each position but the last.
    pub next_token_logprob: Vec<f64>,
    /// Greedy continuation.
    pub greedy_tokens: Vec<u32>,
    /// Two best log-probabilities at each step of it.
    pub greedy_top2_logprobs: Vec<[f64; 2]>,
}

/// The same prompts in float64 throughout (see `golden/make_f64.py`).
#[derive(Debug, Deserialize)]
pub struct GoldenF64 {
    /// sha256 of the weights file.
    pub model_sha256: String,
    /// Log-probabilities of [`Golden::topk_ids`].
    pub topk_logprobs: Vec<Vec<f64>>,
    /// Log-probability of the prompt's own next token at each position but the last.
    pub next_token_logprob: Vec<f64>,
    /// Raw logits of the last position's most likely tokens.
    pub last_top_logits: Vec<f64>,
}

impl GoldenF64 {
    /// Reads the values of a reference prompt.
    ///
    /// # Errors
    /// When the file is missing or does not have the expected fields.
    pub fn load(name: &str) -> Result<GoldenF64> {
        let path = crate::repository().join(format!("golden/logits_f64/{name}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))
    }
}

fn folder() -> PathBuf {
    crate::repository().join("golden/logits")
}

impl Golden {
    /// Reads a reference prompt.
    ///
    /// # Errors
    /// When the file is missing or does not have the expected fields.
    pub fn load(name: &str) -> Result<Golden> {
        let path = folder().join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))
    }

    /// The raw logits of the last position, `[vocab]`.
    ///
    /// # Errors
    /// When the file is missing.
    pub fn last_logits(&self) -> Result<Vec<f32>> {
        let path = folder().join(format!("{}.last_logits.f32", self.name));
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(bytes.chunks_exact(4).map(value).collect())
    }

    /// Steps of the greedy continuation before the first one whose margin is below `margin`.
    pub fn decided_steps(&self, margin: f64) -> usize {
        let near = |top: &[f64; 2]| top[0] - top[1] < margin;
        self.greedy_top2_logprobs
            .iter()
            .position(near)
            .unwrap_or(self.greedy_tokens.len())
    }
}
