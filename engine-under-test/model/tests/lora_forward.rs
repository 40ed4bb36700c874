//! Adapters in the forward pass: against merged weights, against PEFT, and in mixed batches.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Prompt, Rows, decoder, distance, logits, prompt, real_model, repository};
use pb_contract::{Numerics, Stream, TokenId};
use pb_model::forward::round_matrices_to_bf16;
use pb_model::gguf::{GgufFile, MatrixType, metadata_from_config, write_model};
use pb_model::lora::{AdapterSet, LoraAdapter, Projection, synth};
use pb_model::synth::{Kind, Size, generate};
use pb_model::{LayerWeights, LlamaConfig, Matrix, Weights};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

const RANK: usize = 4;
/// `alpha / rank` is 1/2.
const ALPHA: f64 = 2.0;

/// `count` multiples of `1 / steps` within `limit`.
fn grid(label: &str, count: usize, steps: f32, limit: u64) -> Vec<f32> {
    let mut stream = Stream::new(7, label);
    (0..count)
        .map(|_| (stream.below(2 * limit + 1) as f32 - limit as f32) / steps)
        .collect()
}

fn matrices(layer: &mut LayerWeights) -> [&mut Matrix; 7] {
    [
        &mut layer.q,
        &mut layer.k,
        &mut layer.v,
        &mut layer.o,
        &mut layer.gate,
        &mut layer.up,
        &mut layer.down,
    ]
}

/// A model whose matrices are multiples of 2^-12, so that a delta of the adapter below can be
/// added to them without rounding.
fn base() -> Weights {
    let (_, mut weights, _) = generate(Kind::Sharp, Size::Tiny, 3);
    for layer in &mut weights.layers {
        for m in matrices(layer) {
            m.data
                .iter_mut()
                .for_each(|v| *v = (*v * 4096.0).round() / 4096.0);
        }
    }
    weights
}

/// A and B of a module: multiples of 2^-6 up to a half.
fn pair(layer: usize, projection: Projection, config: &LlamaConfig) -> (Vec<f32>, Vec<f32>) {
    let (outputs, inputs) = projection.shape(config);
    let label = |side| format!("{layer} {projection:?} {side}");
    (
        grid(&label("a"), RANK * inputs, 64.0, 32),
        grid(&label("b"), outputs * RANK, 64.0, 32),
    )
}

/// Writes the adapter as PEFT would.
fn write_adapter(dir: &Path, config: &LlamaConfig) {
    let mut tensors = Vec::new();
    let bytes = |v: Vec<f32>| -> Vec<u8> { v.iter().flat_map(|x| x.to_le_bytes()).collect() };
    for layer in 0..config.layers {
        for projection in Projection::ALL {
            let (outputs, inputs) = projection.shape(config);
            let (a, b) = pair(layer, projection, config);
            let name = format!(
                "base_model.model.model.layers.{layer}.{}",
                projection.path()
            );
            tensors.push((
                format!("{name}.lora_A.weight"),
                vec![RANK, inputs],
                bytes(a),
            ));
            tensors.push((
                format!("{name}.lora_B.weight"),
                vec![outputs, RANK],
                bytes(b),
            ));
        }
    }
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap();
        (name.clone(), view)
    });
    serialize_to_file(views, None, &dir.join("adapter_model.safetensors")).unwrap();
    let json = format!(
        r#"{{"peft_type": "LORA", "r": {RANK}, "lora_alpha": {ALPHA}, "bias": "none",
            "target_modules": "all-linear"}}"#
    );
    std::fs::write(dir.join("adapter_config.json"), json).unwrap();
}

/// `W + s B A` in every matrix; exact, which is checked.
fn merged(base: &Weights) -> Weights {
    let mut weights = base.clone();
    let config = weights.config.clone();
    for (index, layer) in weights.layers.iter_mut().enumerate() {
        for (projection, m) in Projection::ALL.into_iter().zip(matrices(layer)) {
            let (a, b) = pair(index, projection, &config);
            for (o, row) in m.data.chunks_exact_mut(m.cols).enumerate() {
                for (i, w) in row.iter_mut().enumerate() {
                    let product = |r| f64::from(b[o * RANK + r]) * f64::from(a[r * m.cols + i]);
                    let delta: f64 = (0..RANK).map(product).sum();
                    let sum = f64::from(*w) + ALPHA / RANK as f64 * delta;
                    *w = sum as f32;
                    assert_eq!(f64::from(*w), sum, "the grids make the sum exact");
                }
            }
        }
    }
    weights
}

fn loaded(config: &LlamaConfig) -> Arc<AdapterSet> {
    let dir = tempfile::tempdir().unwrap();
    write_adapter(dir.path(), config);
    let adapter = LoraAdapter::load("one", dir.path(), config).unwrap();
    Arc::new(AdapterSet::new(vec![adapter]).unwrap())
}

/// Every position of one prompt, in chunks of `chunk`.
fn one(
    weights: &Weights,
    adapters: &Arc<AdapterSet>,
    numerics: Numerics,
    adapter: Option<usize>,
    chunk: usize,
) -> Rows {
    let mut decoder = decoder(&Arc::new(weights.clone()), adapters, numerics);
    logits(decoder.as_mut(), &[(prompt(1, 40), adapter)], &[chunk])
}

#[test]
fn merged_weights_compute_the_same() {
    let base = base();
    let merged = merged(&base);
    let (adapters, none) = (loaded(&base.config), Arc::default());
    let truth = one(&merged, &none, Numerics::F64, None, 40);
    let f64_path = one(&base, &adapters, Numerics::F64, Some(0), 40);
    assert!(distance(&f64_path, &truth) < 1e-12);
    // The adapter matters: without it the logits are elsewhere.
    let without = one(&base, &adapters, Numerics::F64, None, 40);
    assert!(distance(&without, &truth) > 0.1);
    // In f32 both ways round, and by about as much.
    let merged_error = distance(&one(&merged, &none, Numerics::Exact, None, 40), &truth);
    let exact = one(&base, &adapters, Numerics::Exact, Some(0), 40);
    let error = distance(&exact, &truth);
    eprintln!("exact: merged {merged_error:.1e}, adapter {error:.1e}");
    assert!(error < 2.0 * merged_error && merged_error < 1e-5);
}

#[test]
fn the_fast_mode_adds_them_to_its_rounded_weights() {
    let base = base();
    let adapters = loaded(&base.config);
    let rounded = round_matrices_to_bf16(&base);
    let error = |adapter| {
        let truth = one(&rounded, &adapters, Numerics::F64, adapter, 40);
        distance(&one(&base, &adapters, Numerics::Fast, adapter, 40), &truth)
    };
    let (with, without) = (error(Some(0)), error(None));
    eprintln!("fast: base {without:.1e}, adapter {with:.1e}");
    assert!(with < 3.0 * without && without < 1e-5);
}

#[test]
fn a_mixed_batch_has_the_bits_of_solo_runs_in_any_chunks() {
    let (config, weights, _) = generate(Kind::Sharp, Size::Tiny, 3);
    let weights = Arc::new(weights);
    let set = vec![
        synth::adapter("a", &config, 4, 4.0, 1),
        synth::adapter("b", &config, 7, 3.0, 2),
    ];
    let adapters = Arc::new(AdapterSet::new(set).unwrap());
    let prompts: Vec<Prompt> = vec![
        (prompt(1, 50), None),
        (prompt(1, 50), Some(0)),
        (prompt(1, 50), Some(1)),
        (prompt(2, 33), Some(0)),
        (prompt(3, 21), Some(0)),
    ];
    let solo: Vec<Rows> = prompts
        .iter()
        .map(|p| {
            let mut decoder = decoder(&weights, &adapters, Numerics::Exact);
            logits(decoder.as_mut(), std::slice::from_ref(p), &[p.0.len()])
        })
        .collect();
    for chunks in [[50; 5], [1; 5], [16; 5], [7, 17, 13, 5, 21]] {
        let mut decoder = decoder(&weights, &adapters, Numerics::Exact);
        let rows = logits(decoder.as_mut(), &prompts, &chunks);
        assert_eq!(rows.len(), 50 * 3 + 33 + 21);
        for ((seq, position), row) in rows {
            let same = row == solo[seq][&(0, position)];
            assert!(same, "chunks {chunks:?}: prompt {seq} position {position}");
        }
    }
    // Three adapters, three answers.
    let last = |i: usize| &solo[i][&(0, 49)];
    assert!(last(0) != last(1) && last(1) != last(2) && last(0) != last(2));
}

#[test]
fn chunked_prefill_with_an_adapter_agrees_in_f64_too() {
    let base = base();
    let adapters = loaded(&base.config);
    let whole = one(&base, &adapters, Numerics::F64, Some(0), 40);
    for chunk in [1, 15, 16, 17] {
        let chunked = one(&base, &adapters, Numerics::F64, Some(0), chunk);
        assert!(distance(&chunked, &whole) < 1e-12, "chunk {chunk}");
    }
}

/// Through a GGUF file, where query and key rows are in another order than in the adapter.
#[test]
fn an_adapter_in_hugging_face_order_fits_a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let through_gguf = |weights: &Weights, name: &str| -> Weights {
        let metadata = metadata_from_config(&weights.config, name);
        let mut bytes = Vec::new();
        write_model(&mut bytes, weights, &metadata, MatrixType::F32).unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        GgufFile::open(&path).unwrap().weights().unwrap().1
    };
    let base = base();
    let adapters = loaded(&base.config);
    let none = Arc::default();
    let truth = one(
        &through_gguf(&merged(&base), "m"),
        &none,
        Numerics::F64,
        None,
        40,
    );
    let path = one(
        &through_gguf(&base, "b"),
        &adapters,
        Numerics::F64,
        Some(0),
        40,
    );
    assert!(distance(&path, &truth) < 1e-12);
}

/// Largest distance of stored logits, as `golden/lora/logits.json` has them.
fn worst(rows: &Rows, seq: usize, stored: &serde_json::Value) -> f64 {
    let (ids, values) = (&stored["ids"], &stored["logits"]);
    let mut worst: f64 = 0.0;
    for (position, ids) in ids.as_array().unwrap().iter().enumerate() {
        for (i, id) in ids.as_array().unwrap().iter().enumerate() {
            let want = values[position][i].as_f64().unwrap();
            let got = rows[&(seq, position)][id.as_u64().unwrap() as usize];
            worst = worst.max((got - want).abs());
        }
    }
    worst
}

#[test]
fn real_adapters_give_the_logits_that_peft_gives() {
    let Some(path) = real_model() else { return };
    let model = pb_model::load(&path).unwrap();
    let golden = repository("golden/lora");
    let text = std::fs::read_to_string(golden.join("logits.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(stored["model_sha256"], model.identity.sha256);
    let names = ["all", "pattern"];
    let load = |name: &str| LoraAdapter::load(name, &golden.join(name), &model.config).unwrap();
    let adapters = Arc::new(AdapterSet::new(names.map(load).to_vec()).unwrap());
    let tokens: Vec<TokenId> = stored["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_u64().unwrap() as TokenId)
        .collect();
    let weights = Arc::new(model.weights);
    let batch = [None, Some(0), Some(1)].map(|adapter| (tokens.clone(), adapter));
    for (numerics, limit) in [(Numerics::F64, 1e-10), (Numerics::Exact, 5e-4)] {
        let mut decoder = decoder(&weights, &adapters, numerics);
        let rows = logits(decoder.as_mut(), &batch, &[24, 7, 10]);
        for (seq, name) in ["base", "all", "pattern"].into_iter().enumerate() {
            let error = worst(&rows, seq, &stored[name]);
            eprintln!("{numerics:?} {name}: {error:.1e}");
            assert!(error < limit, "{numerics:?} {name}: {error}");
        }
    }
}
