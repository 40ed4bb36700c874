//! Exact mode: the bits of every logit do not depend on how the work was cut or placed.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use pb_contract::{EngineConfig, KvDtype, Numerics, PrefixCacheKind, RequestId, Stream, TokenId};
use pb_core::{Engine, EngineParts};
use pb_model::forward::KvScales;
use pb_model::synth::{self, Kind, Size};
use pb_tests::engine::{Rows, Tap, config, drain, greedy};

/// Every element type that `exact` has. The 8-bit floats run with scale 1.
const KV_DTYPES: [KvDtype; 6] = [
    KvDtype::F32,
    KvDtype::Bf16,
    KvDtype::F16,
    KvDtype::Fp8E4m3,
    KvDtype::Fp8E5m2,
    KvDtype::Int8,
];

/// Weights packed once, used under many configurations.
struct Bench {
    parts: EngineParts,
    vocab: usize,
}

impl Bench {
    fn synthetic() -> Bench {
        let model = synth::model(Kind::Sharp, Size::Small, 3).expect("a generated model");
        Bench::of(model)
    }

    fn real() -> Option<Bench> {
        let path = pb_tests::real_model()?;
        Some(Bench::of(pb_model::load(&path).expect("the model loads")))
    }

    fn of(model: pb_model::Model) -> Bench {
        let vocab = model.config.vocab;
        Bench {
            parts: EngineParts::new(Arc::new(model.weights), [0; 32]),
            vocab,
        }
    }

    fn prompt(&self, seed: u64, n: usize) -> Vec<TokenId> {
        let mut stream = Stream::new(seed, "prompt");
        (0..n)
            .map(|_| stream.below(self.vocab as u64) as TokenId)
            .collect()
    }

    fn engine(&self, config: EngineConfig) -> Engine {
        self.parts
            .build_under_test(config)
            .expect("a valid configuration")
    }
}

/// Logits of `prompt`'s positions under `config`, by position.
fn logits(engine: &mut Engine, id: u64, prompt: &[TokenId]) -> Result<Rows> {
    let tap = Tap::default();
    engine.set_tap(Some(Box::new(tap.clone())));
    engine.add(greedy(id, prompt, 1))?;
    drain(engine, 10 * prompt.len() + 10)?;
    engine.set_tap(None);
    let mut rows = tap.take();
    rows.retain(|(request, _), _| *request == RequestId(id));
    Ok(rows
        .into_iter()
        .map(|((_, position), row)| ((RequestId(0), position), row))
        .collect())
}

/// Compares bit patterns, not values.
fn assert_same(reference: &Rows, rows: &Rows, from: usize, what: &str) {
    let expected = reference
        .iter()
        .filter(|((_, position), _)| *position >= from);
    let mut compared = 0;
    for (key, want) in expected {
        let got = rows
            .get(key)
            .unwrap_or_else(|| panic!("{what}: no row at {}", key.1));
        let same = want
            .iter()
            .zip(got)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(
            same && want.len() == got.len(),
            "{what}: bits differ at position {}",
            key.1
        );
        compared += 1;
    }
    assert!(compared > 0, "{what}: nothing was compared");
    assert_eq!(compared, rows.len(), "{what}: other rows than expected");
}

fn exact(max_model_len: usize) -> EngineConfig {
    config(
        Numerics::Exact,
        2 * max_model_len.div_ceil(8),
        max_model_len,
    )
}

fn chunked(mut config: EngineConfig, chunk: usize) -> EngineConfig {
    config.chunked = true;
    config.max_batched_tokens = chunk;
    config
}

fn of_type(kv_dtype: KvDtype, config: EngineConfig) -> EngineConfig {
    EngineConfig { kv_dtype, ..config }
}

fn sizes(n: usize) -> Vec<usize> {
    vec![1, 15, 16, 17, 37, n - 1, n, n + 1]
}

fn every_chunk_size(bench: &Bench, n: usize, chunks: &[usize]) -> Result<()> {
    let prompt = bench.prompt(1, n);
    let reference = logits(&mut bench.engine(exact(n + 2)), 0, &prompt)?;
    assert_eq!(reference.len(), n);
    for &chunk in chunks {
        let mut engine = bench.engine(chunked(exact(n + 2), chunk));
        let rows = logits(&mut engine, 0, &prompt)?;
        assert_same(&reference, &rows, 0, &format!("n {n} chunk {chunk}"));
    }
    Ok(())
}

#[test]
fn every_chunk_size_on_a_generated_model() -> Result<()> {
    let bench = Bench::synthetic();
    for n in [1, 2, 15, 16, 17, 33, 70] {
        every_chunk_size(&bench, n, &(1..=n).collect::<Vec<_>>())?;
    }
    every_chunk_size(&bench, 700, &sizes(700))
}

#[test]
fn every_chunk_size_of_every_kv_type() -> Result<()> {
    let bench = Bench::synthetic();
    let n = 37;
    let prompt = bench.prompt(6, n);
    let mut seen = Vec::new();
    for kv_dtype in KV_DTYPES {
        let base = of_type(kv_dtype, exact(n + 2));
        let reference = logits(&mut bench.engine(base.clone()), 0, &prompt)?;
        for chunk in 1..=n {
            let rows = logits(&mut bench.engine(chunked(base.clone(), chunk)), 0, &prompt)?;
            assert_same(&reference, &rows, 0, &format!("{kv_dtype:?} chunk {chunk}"));
        }
        assert!(!seen.contains(&reference), "{kv_dtype:?} rounds as another");
        seen.push(reference);
    }
    Ok(())
}

#[test]
fn calibrated_scales_keep_the_bits_over_chunks_and_change_them_against_scale_one() -> Result<()> {
    let mut bench = Bench::synthetic();
    let n = 70;
    let (prompt, sample) = (bench.prompt(7, n), bench.prompt(8, n));
    for kv_dtype in [KvDtype::Fp8E4m3, KvDtype::Fp8E5m2] {
        bench.parts.kv_scales = None;
        let base = of_type(kv_dtype, exact(n + 2));
        let unscaled = logits(&mut bench.engine(base.clone()), 0, &prompt)?;
        let scales = KvScales::calibrate(&bench.parts.weights, kv_dtype, &sample)?;
        bench.parts.kv_scales = Some(Arc::new(scales));
        let reference = logits(&mut bench.engine(base.clone()), 0, &prompt)?;
        assert_ne!(
            reference, unscaled,
            "{kv_dtype:?}: the scales have no effect"
        );
        for chunk in [1, 15, 16, 17, 50] {
            let rows = logits(&mut bench.engine(chunked(base.clone(), chunk)), 0, &prompt)?;
            assert_same(&reference, &rows, 0, &format!("{kv_dtype:?} chunk {chunk}"));
        }
    }
    Ok(())
}

#[test]
fn every_chunk_size_on_the_real_model() -> Result<()> {
    let Some(bench) = Bench::real() else {
        return Ok(());
    };
    every_chunk_size(&bench, 70, &(1..=70).collect::<Vec<_>>())
}

#[test]
fn a_long_prompt_on_the_real_model() -> Result<()> {
    let Some(bench) = Bench::real() else {
        return Ok(());
    };
    every_chunk_size(&bench, 700, &sizes(700))
}

#[test]
fn block_sizes_threads_and_kv_types() -> Result<()> {
    let bench = Bench::synthetic();
    let n = 203;
    let prompt = bench.prompt(2, n);
    for kv_dtype in KV_DTYPES {
        let base = of_type(kv_dtype, exact(n + 2));
        let reference = logits(&mut bench.engine(base.clone()), 0, &prompt)?;
        for block_size in [8, 16, 32] {
            for threads in [1, 2] {
                for chunk in [31, n] {
                    let config = EngineConfig {
                        block_size,
                        threads,
                        ..chunked(base.clone(), chunk)
                    };
                    let rows = logits(&mut bench.engine(config), 0, &prompt)?;
                    let what = format!("{kv_dtype:?} B {block_size} threads {threads} {chunk}");
                    assert_same(&reference, &rows, 0, &what);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn in_a_batch_with_decodes_and_in_permuted_blocks() -> Result<()> {
    let bench = Bench::synthetic();
    KV_DTYPES
        .into_iter()
        .try_for_each(|kv_dtype| mixed_and_permuted(&bench, kv_dtype))
}

fn mixed_and_permuted(bench: &Bench, kv_dtype: KvDtype) -> Result<()> {
    let n = 120;
    let prompt = bench.prompt(3, n);
    let alone = of_type(kv_dtype, exact(n + 2));
    let reference = logits(&mut bench.engine(alone), 0, &prompt)?;
    let mut config = chunked(of_type(kv_dtype, exact(256)), 29);
    config.num_blocks = 46;
    let mut engine = bench.engine(config);
    // Seven streams decode while the prompt is prefilled chunk by chunk. Three requests that fill
    // the pool and go before it leave the free list in another order than a fresh pool's.
    for (id, len) in [(100, 230), (101, 230), (102, 230)] {
        engine.add(greedy(id, &bench.prompt(id, len), 5))?;
    }
    drain(&mut engine, 500)?;
    for id in 1..8 {
        engine.add(greedy(id, &bench.prompt(10 + id, 5 + id as usize), 60))?;
    }
    for _ in 0..6 {
        engine.step(&pb_contract::WallClock)?;
    }
    let tap = Tap::default();
    engine.set_tap(Some(Box::new(tap.clone())));
    engine.add(greedy(0, &prompt, 1))?;
    let mut tables = Vec::new();
    while engine.has_work() {
        let step = engine.step(&pb_contract::WallClock)?;
        tables.push((step.row, engine.block_table(RequestId(0)).to_vec()));
    }
    let mixed = tables
        .iter()
        .filter(|(row, _)| row.prefill_tokens > 0 && row.decode_seqs == 7);
    assert!(
        mixed.count() >= 3,
        "the prompt was prefilled beside seven decodes"
    );
    let longest = tables
        .iter()
        .map(|(_, table)| table)
        .max_by_key(|t| t.len())
        .cloned();
    let longest = longest.ok_or_else(|| anyhow!("no step"))?;
    assert!(
        !longest.is_sorted(),
        "the blocks are not in ascending order: {longest:?}"
    );
    let mut rows = tap.take();
    rows.retain(|(id, position), _| *id == RequestId(0) && *position < n);
    assert_same(&reference, &rows, 0, &format!("{kv_dtype:?}, mixed batch"));
    Ok(())
}

#[test]
fn cached_against_cold() -> Result<()> {
    let bench = Bench::synthetic();
    KV_DTYPES
        .into_iter()
        .try_for_each(|kv_dtype| cached(&bench, kv_dtype))
}

fn cached(bench: &Bench, kv_dtype: KvDtype) -> Result<()> {
    let n = 100;
    let prompt = bench.prompt(4, n);
    let reference = logits(
        &mut bench.engine(of_type(kv_dtype, exact(n + 2))),
        0,
        &prompt,
    )?;
    let config = EngineConfig {
        prefix_cache: PrefixCacheKind::HashChain,
        ..of_type(kv_dtype, exact(n + 2))
    };
    let mut engine = bench.engine(chunked(config, 23));
    let cold = logits(&mut engine, 1, &prompt)?;
    assert_same(&reference, &cold, 0, "cold");
    let warm = logits(&mut engine, 2, &prompt)?;
    // 99 tokens may hit: six full blocks of 16.
    assert_eq!(warm.len(), n - 96, "96 tokens came from the cache");
    assert_same(&reference, &warm, 96, "warm");
    Ok(())
}

#[test]
fn a_planted_rotary_fault_changes_the_bits() -> Result<()> {
    let bench = Bench::synthetic();
    let n = 70;
    let prompt = bench.prompt(5, n);
    let reference = logits(&mut bench.engine(exact(n + 2)), 0, &prompt)?;
    let mut config = chunked(exact(n + 2), 16);
    config.fault = pb_contract::Fault::RopePlusOneAfterFirstChunk;
    let rows = logits(&mut bench.engine(config), 0, &prompt)?;
    let differs = |p: usize| reference[&(RequestId(0), p)] != rows[&(RequestId(0), p)];
    assert!(
        (0..16).all(|p| !differs(p)),
        "the first chunk is not touched"
    );
    assert!((16..n).any(differs), "the fault must show");
    Ok(())
}
