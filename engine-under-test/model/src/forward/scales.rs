//! Scales of an fp8 cache: one for the keys and one for the values of each layer.

use std::sync::Arc;

use pb_contract::{BlockId, KvDtype, Numerics, TokenId, VirtualClock};
use pb_kernels_cpu::Pool;

use super::reference::ReferenceDecoder;
use super::{Decoder, ForwardError, ForwardOptions, LogitRow, LogitRows, LogitSink, SeqInput};
use crate::lora::AdapterSet;
use crate::weights::Weights;

/// Scales of an fp8 cache. A value `x` is stored as the code nearest to `x / scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvScales {
    /// Scale of the keys of each layer.
    pub k: Vec<f32>,
    /// Scale of the values of each layer.
    pub v: Vec<f32>,
}

/// Whether `dtype` takes scales for each layer.
fn is_fp8(dtype: KvDtype) -> bool {
    matches!(dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2)
}

impl KvScales {
    /// Scale 1 everywhere: codes are the values themselves.
    pub fn ones(layers: usize) -> Self {
        KvScales {
            k: vec![1.0; layers],
            v: vec![1.0; layers],
        }
    }

    /// All scales in the order of the layers, keys before values.
    pub fn flat(&self) -> Vec<f32> {
        let layers = self.k.iter().zip(&self.v);
        layers.flat_map(|(k, v)| [*k, *v]).collect()
    }

    /// The scales that map the largest magnitude of each layer and side, as seen on the sample
    /// `tokens`, to the largest number of `dtype`. A side that is zero on the sample has scale 1.
    ///
    /// # Errors
    /// [`ForwardError`] when `dtype` is not an fp8 type or `tokens` is empty.
    ///
    /// # Panics
    /// When a token is not below the vocabulary size.
    pub fn calibrate(
        weights: &Arc<Weights>,
        dtype: KvDtype,
        tokens: &[TokenId],
    ) -> Result<Self, ForwardError> {
        let largest = match dtype {
            KvDtype::Fp8E4m3 => 448.0,
            KvDtype::Fp8E5m2 => 57_344.0,
            kv_dtype => return Err(ForwardError::NoScales { kv_dtype }),
        };
        if tokens.is_empty() {
            return Err(ForwardError::EmptySample);
        }
        let options = ForwardOptions {
            numerics: Numerics::F64,
            kv_dtype: KvDtype::F64,
            block_size: tokens.len(),
            num_blocks: 1,
            ..ForwardOptions::default()
        };
        let pool = Pool::new(1).map_err(|e| ForwardError::Threads {
            threads: 1,
            problem: e.to_string(),
        })?;
        let adapters = Arc::new(AdapterSet::default());
        let mut decoder = ReferenceDecoder::new(Arc::clone(weights), adapters, &options, pool);
        let run = SeqInput {
            tokens,
            start: 0,
            block_table: &[BlockId(0)],
            rows: LogitRows::None,
            is_prefill: true,
            adapter: None,
        };
        decoder.forward(&[run], &VirtualClock::new(), &mut NoRows);
        let scale = |magnitude: f64| match (magnitude / largest) as f32 {
            s if s > 0.0 && s.is_finite() => s,
            _ => 1.0,
        };
        let (k, v) = decoder
            .magnitudes()
            .map(|[k, v]| (scale(k), scale(v)))
            .unzip();
        Ok(KvScales { k, v })
    }

    /// Checks scales for a cache of `dtype` with `layers` layers.
    ///
    /// # Errors
    /// [`ForwardError`] when the type takes none, or they are not one positive number a layer.
    pub fn check(&self, dtype: KvDtype, layers: usize) -> Result<(), ForwardError> {
        if !is_fp8(dtype) {
            return Err(ForwardError::NoScales { kv_dtype: dtype });
        }
        for (side, scales) in [("k", &self.k), ("v", &self.v)] {
            if scales.len() != layers {
                return Err(ForwardError::ScaleCount {
                    side,
                    found: scales.len(),
                    layers,
                });
            }
            let bad = |s: &f32| !(*s > 0.0 && s.is_finite());
            if let Some(layer) = scales.iter().position(bad) {
                return Err(ForwardError::Scale {
                    side,
                    layer,
                    value: scales[layer],
                });
            }
        }
        Ok(())
    }
}

/// Scales of keys and values of `layer`, 1 where none are given.
pub fn layer_scales(scales: Option<&KvScales>, layer: usize) -> [f32; 2] {
    scales.map_or([1.0; 2], |s| [s.k[layer], s.v[layer]])
}

/// A sample run wants no logits.
struct NoRows;

impl LogitSink for NoRows {
    fn row(&mut self, _seq: usize, _position: usize, _logits: LogitRow<'_>) {}

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}
