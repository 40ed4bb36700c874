//! Rotary angle tables, computed in f64 and rounded once.
//!
//! The angle `position * frequency` loses digits in f32 at long contexts, so it is formed and
//! its sine and cosine are taken in f64 (`libm`, the same bits on every machine).

use crate::config::LlamaConfig;

/// Cosines and sines of every position, `[positions][d_head / 2]` each.
pub struct RopeTables {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
    /// `d_head / 2`.
    pub half: usize,
}

impl RopeTables {
    /// Tables for positions `0..=max_position`; the extra one serves the planted fault that
    /// shifts positions by one.
    pub fn new(config: &LlamaConfig) -> Self {
        let freqs = config.inv_freq();
        let rows = config.max_position + 1;
        let mut cos = Vec::with_capacity(rows * freqs.len());
        let mut sin = Vec::with_capacity(rows * freqs.len());
        for position in 0..rows {
            for freq in &freqs {
                let angle = position as f64 * freq;
                cos.push(libm::cos(angle) as f32);
                sin.push(libm::sin(angle) as f32);
            }
        }
        RopeTables {
            cos,
            sin,
            half: freqs.len(),
        }
    }
}
