//! Tokens chosen on the device: the CPU sampler's, of the same logits and the same stream.

use pb_contract::{SamplingParams, Stream};
use pb_core::sample::sample;
use pb_kernels_cuda::ops::{self, SampleRow};
use pb_kernels_cuda::{Device, DeviceExt};

use super::*;
use crate::common::{Watch, watched};

fn params(temperature: f64, top_k: u32, top_p: f64) -> SamplingParams {
    SamplingParams {
        temperature,
        top_k,
        top_p,
        ..SamplingParams::default()
    }
}

/// Every kind of setting, with and without forbidden tokens.
fn settings() -> Vec<(SamplingParams, Vec<TokenId>)> {
    let kinds = [
        params(0.0, 0, 1.0),
        params(1.0, 0, 1.0),
        params(0.7, 5, 1.0),
        params(1.3, 0, 0.9),
        params(1.0, 40, 0.5),
        params(0.2, 1, 0.3),
    ];
    let with = |p: &SamplingParams| [(p.clone(), vec![]), (p.clone(), vec![0, 9, 17])];
    kinds.iter().flat_map(with).collect()
}

#[test]
fn a_token_is_the_cpu_samplers_on_the_same_bits() {
    let Some(device) = common::device() else {
        return;
    };
    let (vocab, draws) = (common::config().vocab, 12);
    let mut values = Stream::new(4, "logits");
    let mut off_by_one = 0;
    for (number, (params, forbidden)) in settings().into_iter().enumerate() {
        let logits: Vec<f32> = (0..draws * vocab)
            .map(|_| (4.0 * values.normal()) as f32)
            .collect();
        let start = Stream::new(number as u64, "request");
        let (mut stream, mut rows, mut want) = (start, Vec::new(), Vec::new());
        for row in logits.chunks_exact(vocab) {
            let (key, draw) = stream.place();
            rows.push(SampleRow {
                temperature: params.temperature,
                top_k: params.top_k,
                top_p: params.top_p,
                forbidden: &forbidden,
                key,
                draw,
            });
            let wide: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            want.push(sample(&wide, &params, &forbidden, &mut stream));
        }
        let there = device.input("logits", &logits).unwrap();
        let choose = |rows: &[SampleRow<'_>]| {
            let out = device.empty::<TokenId>("out", rows.len()).unwrap();
            ops::sample(&device, &there, rows, &out).unwrap();
            device.download(&out).unwrap()
        };
        let mark = device.mark();
        assert_eq!(choose(&rows), want, "{params:?} without {forbidden:?}");
        // Planted: the word behind the right one.
        rows.iter_mut().for_each(|row| row.draw += 1);
        let differ = choose(&rows) != want;
        assert!(!differ || params.temperature > 0.0);
        off_by_one += usize::from(differ);
        device.release(mark).unwrap();
    }
    assert!(
        off_by_one >= 6,
        "only {off_by_one} settings tell two draws apart"
    );
}

/// Requests of every setting; the last two want to see logits.
fn sampled() -> Vec<EngineRequest> {
    let mut all: Vec<EngineRequest> = settings()
        .into_iter()
        .zip(0..)
        .map(|((p, _), id)| {
            let mut one = request(id, prompt(30 + id, 5 + 3 * id as usize));
            one.sampling = SamplingParams {
                seed: Some(id),
                max_tokens: 4,
                // The end of the sequence is forbidden at first.
                min_tokens: 2,
                ignore_eos: true,
                ..p
            };
            one
        })
        .collect();
    let last = all.len() - 2;
    all[last].sampling.logprobs = Some(2);
    all[last + 1].sampling.prompt_logprobs = Some(1);
    all
}

#[test]
fn an_engine_samples_on_the_device_and_copies_logits_only_for_those_who_look() {
    let weights = weights();
    let tap = Tap::default();
    let config = config(80, 64);
    let Some(mut tapped) = engine(&weights, config.clone(), &tap) else {
        return;
    };
    let (want, _) = run(&mut tapped, &sampled());
    let options = GpuOptions {
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        ..options(config.numerics, config.kv_dtype)
    };
    let (executor, watch) = watched(&weights, &options, |_| {}).unwrap();
    let parts = EngineParts::new(Arc::new(weights), [7; 32]);
    let mut engine = Engine::new(config, parts.spec(), executor).unwrap();
    let all = sampled();
    let (blind, seeing) = all.split_at(all.len() - 2);
    let (mut got, _) = run(&mut engine, blind);
    let tokens: usize = got.values().map(Vec::len).sum();
    let read = Watch::take(&watch.read_bytes) as usize;
    assert_eq!(
        read,
        tokens * size_of::<TokenId>(),
        "bytes of {tokens} tokens"
    );
    got.extend(run(&mut engine, seeing).0);
    assert_eq!(got, want);
    // Four rows for the one, and those of the prompt (but its first token) for the other.
    let prompt_rows = seeing[1].prompt.len() - 1;
    let rows = Watch::take(&watch.read_bytes) as usize / (4 * common::config().vocab);
    assert_eq!(rows, 4 + prompt_rows);
}
