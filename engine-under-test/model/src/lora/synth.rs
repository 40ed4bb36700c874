//! Generated adapters, for tests and for runs without a trained one.

use std::path::Path;

use pb_contract::rng::Stream;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

use super::config::CONFIG_FILE;
use super::load::{WEIGHTS_FILE, tensor_names};
use super::{LayerDeltas, LoraAdapter, LowRank, Projection};
use crate::config::LlamaConfig;
use crate::error::{ModelError, Result};

/// An adapter of every projection, with normal values of deviation `1/sqrt(inputs)` in A and
/// `1/sqrt(rank)` in B, so that with `alpha = rank` a delta is as large as a sharp projection.
///
/// The same arguments give the same bits on every machine. (PEFT starts training from B = 0, which
/// would change nothing and so test nothing.)
pub fn adapter(
    name: &str,
    config: &LlamaConfig,
    rank: usize,
    alpha: f64,
    seed: u64,
) -> LoraAdapter {
    let layer = |layer: usize| -> LayerDeltas {
        Projection::ALL.map(|projection| {
            let (outputs, inputs) = projection.shape(config);
            let draw = |side: &str, count: usize, fan_in: usize| -> Vec<f32> {
                let label = format!("lora.{layer}.{}.{side}", projection.name());
                let mut stream = Stream::new(seed, &label);
                let sigma = 1.0 / libm::sqrt(fan_in as f64);
                (0..count)
                    .map(|_| (sigma * stream.normal()) as f32)
                    .collect()
            };
            Some(LowRank {
                rank,
                a: draw("a", rank * inputs, inputs),
                b: draw("b", outputs * rank, rank),
                scale: alpha / rank as f64,
            })
        })
    };
    LoraAdapter::new(name, (0..config.layers).map(layer).collect())
}

/// Writes [`adapter`] as a PEFT folder, which is created if need be.
///
/// # Errors
/// [`ModelError::Io`].
pub fn write_dir(
    dir: &Path,
    config: &LlamaConfig,
    rank: usize,
    alpha: f64,
    seed: u64,
) -> Result<()> {
    let adapter = adapter("", config, rank, alpha, seed);
    std::fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|e| ModelError::io(path, e))
    };
    put(WEIGHTS_FILE, &safetensors_bytes(&adapter, config)?)?;
    let document = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": false,
        "target_modules": Projection::ALL.map(Projection::name),
        "bias": "none",
        "fan_in_fan_out": false,
        "modules_to_save": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": true,
        "inference_mode": true,
    });
    put(CONFIG_FILE, format!("{document:#}\n").as_bytes())
}

/// The adapter's tensors as one safetensors file in f32.
fn safetensors_bytes(adapter: &LoraAdapter, config: &LlamaConfig) -> Result<Vec<u8>> {
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for layer in 0..config.layers {
        for projection in Projection::ALL {
            let Some(delta) = adapter.delta(layer, projection) else {
                continue;
            };
            let (outputs, inputs) = projection.shape(config);
            let [a, b] = tensor_names(layer, projection);
            tensors.push((a, vec![delta.rank, inputs], bytes(&delta.a)));
            tensors.push((b, vec![outputs, delta.rank], bytes(&delta.b)));
        }
    }
    let mut views = Vec::new();
    for (name, shape, data) in &tensors {
        let view = TensorView::new(Dtype::F32, shape.clone(), data)
            .map_err(|e| ModelError::tensor(name, e.to_string()))?;
        views.push((name.clone(), view));
    }
    serialize(views, None).map_err(|e| ModelError::format(WEIGHTS_FILE, e))
}
