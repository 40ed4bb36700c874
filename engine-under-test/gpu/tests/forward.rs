//! Forward passes through the emulated kernels against f64.

mod common;
#[path = "forward/split.rs"]
mod split;

use std::sync::Arc;

use common::{adapters, config, device, executor, options, prompt, weights};
use pb_contract::{BlockId, Fault, KvDtype, Numerics};
use pb_core::{DecoderExecutor, Executor};
use pb_gpu::GpuOptions;
use pb_gpu::check::{
    Cache, Cut, Prompt, Rows, WHOLE, differing_values, judge, logits, naive_rows, reference,
    worst_log_ratio,
};
use pb_kernels_cuda::ops::PrefillBy;
use pb_model::Weights;
use pb_model::config::RopeScaling;
use pb_model::forward::{ForwardOptions, KvScales, block_image_bytes};
use pb_model::lora::AdapterSet;

/// Chunks beside, at and beyond blocks and tiles.
const CHUNKS: [usize; 5] = [1, 15, 16, 17, 50];

fn prompts() -> Vec<Prompt> {
    [prompt(1, 110), prompt(2, 33), prompt(3, 5)]
        .map(Prompt::from)
        .to_vec()
}

/// Logits on the device under `options`, or `None` where it cannot be built.
fn on_device(weights: &Weights, options: &GpuOptions, cut: Cut) -> Option<Rows> {
    let mut executor = executor(weights, options)?;
    Some(logits(executor.as_mut(), options, &prompts(), cut).unwrap())
}

/// Logits of the f64 reference.
fn exact(weights: &Weights, options: &GpuOptions) -> Rows {
    let mut reference = reference(weights, options).unwrap();
    logits(reference.as_mut(), options, &prompts(), WHOLE).unwrap()
}

#[test]
fn a_batch_is_the_reference_within_the_error_of_the_precision() {
    let weights = weights();
    for (kv_dtype, cache) in [
        (KvDtype::Bf16, Cache::Bf16),
        (KvDtype::Fp8E4m3, Cache::E4m3),
    ] {
        let options = options(Numerics::Exact, kv_dtype);
        let Some(got) = on_device(&weights, &options, WHOLE) else {
            return;
        };
        let want = exact(&weights, &options);
        let naive = naive_rows((&weights, &AdapterSet::default()), &prompts(), cache).unwrap();
        let verdict = judge(&got, &naive, &want);
        println!("{kv_dtype:?}: {verdict:?}");
        assert!(verdict.passes() && verdict.decidable >= 50, "{verdict:?}");
    }
}

/// The rule must refuse what it is for: the map of heads `h mod n_kv` in place of `h / group`, and
/// keys and queries turned as if positions lay a twentieth closer.
#[test]
fn the_rule_refuses_a_wrong_map_of_heads_and_wrong_positions() {
    let weights = weights();
    let options = options(Numerics::Exact, KvDtype::Bf16);
    let want = exact(&weights, &options);
    let naive = naive_rows((&weights, &AdapterSet::default()), &prompts(), Cache::Bf16).unwrap();
    let c = config();
    let mut heads = weights.clone();
    for l in &mut heads.layers {
        // Query head h reads what head (h mod n_kv) * group + h / n_kv would.
        let place = |h: usize| (h % c.kv_heads) * c.group() + h / c.kv_heads;
        let (rows, d) = (l.q.data.clone(), c.d_head * c.hidden);
        let columns = l.o.data.clone();
        for h in 0..c.q_heads {
            l.q.data[place(h) * d..][..d].copy_from_slice(&rows[h * d..][..d]);
            for row in 0..c.hidden {
                let (from, to) = (
                    row * c.q_dim() + h * c.d_head,
                    row * c.q_dim() + place(h) * c.d_head,
                );
                l.o.data[to..to + c.d_head].copy_from_slice(&columns[from..from + c.d_head]);
            }
        }
    }
    let mut turned = weights.clone();
    turned.config.rope_scaling = RopeScaling::Linear { factor: 1.05 };
    for wrong in [heads, turned] {
        let Some(got) = on_device(&wrong, &options, WHOLE) else {
            return;
        };
        let verdict = judge(&got, &naive, &want);
        println!("{verdict:?}");
        assert!(!verdict.passes(), "{verdict:?}");
    }
}

/// Chunked, mixed with single tokens, alone or in company, the
/// bits of a row are the same.
#[test]
fn exact_gives_the_same_bits_for_every_cut_and_company() {
    let weights = weights();
    let options = options(Numerics::Exact, KvDtype::Bf16);
    let Some(whole) = on_device(&weights, &options, WHOLE) else {
        return;
    };
    for chunk in CHUNKS {
        let cut = Cut { chunk, singles: 2 };
        let got = on_device(&weights, &options, cut).unwrap();
        assert_eq!(differing_values(&got, &whole), 0, "{cut:?}");
    }
    for (seq, prompt) in prompts().into_iter().enumerate() {
        let mut alone = executor(&weights, &options).unwrap();
        let got = logits(alone.as_mut(), &options, &[prompt], WHOLE).unwrap();
        let same = |((_, p), row): (&(usize, usize), &Vec<f64>)| whole[&(seq, *p)] == *row;
        assert!(got.iter().all(same), "prompt {seq} alone");
    }
}

/// The same where prefill is by `wgmma`, as on compute capability 9.0: the promise holds, and the
/// bits are those of another order of sums.
#[test]
fn exact_holds_by_the_kernel_of_sm_90a() {
    let weights = weights();
    let options = options(Numerics::Exact, KvDtype::Bf16);
    let by_wgmma = |cut| {
        let device = device()?;
        device.take_prefill(PrefillBy::Wgmma);
        let mut executor = pb_gpu::build(device, &weights, &options).unwrap();
        Some(logits(executor.as_mut(), &options, &prompts(), cut).unwrap())
    };
    let Some(whole) = by_wgmma(WHOLE) else {
        return;
    };
    for chunk in [1, 17, 50] {
        let cut = Cut { chunk, singles: 2 };
        let got = by_wgmma(cut).unwrap();
        assert_eq!(differing_values(&got, &whole), 0, "{cut:?}");
    }
    let want = exact(&weights, &options);
    let naive = naive_rows((&weights, &AdapterSet::default()), &prompts(), Cache::Bf16).unwrap();
    let verdict = judge(&whole, &naive, &want);
    println!("{verdict:?}");
    assert!(verdict.passes() && verdict.decidable >= 50, "{verdict:?}");
    let by_mma = on_device(&weights, &options, WHOLE).unwrap();
    assert!(differing_values(&whole, &by_mma) > 0);
}

/// The statistical tier: single tokens by the kernel that splits keys. Its error is that of the
/// precision, and for each prompt within a factor of e^0.4 of the whole prompt's.
#[test]
fn fast_stays_within_the_error_of_the_precision_for_every_cut() {
    let weights = weights();
    let options = options(Numerics::Fast, KvDtype::Bf16);
    let Some(whole) = on_device(&weights, &options, WHOLE) else {
        return;
    };
    let want = exact(&weights, &options);
    let naive = naive_rows((&weights, &AdapterSet::default()), &prompts(), Cache::Bf16).unwrap();
    let mut differs = false;
    for (chunk, singles) in [(16, 4), (17, 3), (50, 2)] {
        let cut = Cut { chunk, singles };
        let got = on_device(&weights, &options, cut).unwrap();
        differs |= differing_values(&got, &whole) > 0;
        let (verdict, ratio) = (
            judge(&got, &naive, &want),
            worst_log_ratio(&got, &whole, &want),
        );
        println!("{cut:?}: log error ratio {ratio:.3}; {verdict}");
        assert!(
            verdict.passes() && ratio < 0.4,
            "{cut:?}: {ratio} {verdict:?}"
        );
    }
    assert!(differs, "the split kernel has another order of sums");
}

/// A block image is the CPU engine's, and what it stands for survives a trip to another block.
#[test]
fn block_images_are_the_cpus_and_blocks_move() {
    let weights = weights();
    for kv_dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8E4m3] {
        let mut options = options(Numerics::Exact, kv_dtype);
        if kv_dtype == KvDtype::Fp8E4m3 {
            let layers = config().layers;
            let mut scales = KvScales::ones(layers);
            scales.k[1] = 0.5;
            options.kv_scales = Some(Arc::new(scales));
        }
        let Some(mut gpu) = executor(&weights, &options) else {
            return;
        };
        logits(gpu.as_mut(), &options, &[prompt(4, 40).into()], WHOLE).unwrap();
        let image_of = |executor: &dyn Executor, block| {
            let mut image = Vec::new();
            executor.read_block(BlockId(block), &mut image);
            image
        };
        let image = image_of(gpu.as_ref(), 23);
        assert_eq!(image.len(), block_image_bytes(&config(), kv_dtype, 16));
        let cpu = ForwardOptions {
            kv_dtype,
            num_blocks: 2,
            kv_scales: options.kv_scales.clone(),
            ..ForwardOptions::default()
        };
        let cpu = pb_model::forward::build(&Arc::new(weights.clone()), &Arc::default(), cpu);
        let mut cpu = DecoderExecutor::new(cpu.unwrap());
        cpu.write_block(BlockId(1), &image).unwrap();
        assert!(image_of(&cpu, 1) == image, "{kv_dtype:?}");
        gpu.copy_block(BlockId(23), BlockId(3));
        assert!(image_of(gpu.as_ref(), 3) == image);
        gpu.write_block(BlockId(5), &image).unwrap();
        assert!(image_of(gpu.as_ref(), 5) == image);
        let refused = gpu.write_block(BlockId(5), &image[1..]).unwrap_err();
        assert!(refused.contains("block image"), "{refused}");
    }
}

#[test]
fn what_the_kernels_do_not_take_is_refused_by_name() {
    let weights = weights();
    let Some(_) = common::device() else { return };
    let refused = |weights: &Weights, options: &GpuOptions| {
        let device = common::device().unwrap();
        pb_gpu::build(device, weights, options)
            .err()
            .unwrap()
            .to_string()
    };
    let good = options(Numerics::Exact, KvDtype::Bf16);
    let with = |kv_dtype, numerics, block_size| GpuOptions {
        kv_dtype,
        numerics,
        block_size,
        ..good.clone()
    };
    let text = refused(&weights, &with(KvDtype::Int8, Numerics::Exact, 16));
    assert!(text.contains("kv_dtype = Int8"), "{text}");
    let text = refused(&weights, &with(KvDtype::Bf16, Numerics::F64, 16));
    assert!(text.contains("numerics = F64"), "{text}");
    let text = refused(&weights, &with(KvDtype::Bf16, Numerics::Exact, 12));
    assert!(text.contains("block_size = 12"), "{text}");
    let mut odd = good.clone();
    odd.steps.graph_rows = 3;
    let text = refused(&weights, &odd);
    assert!(text.contains("graph_rows = 3"), "{text}");
    let mut scaled = good.clone();
    scaled.kv_scales = Some(Arc::new(KvScales::ones(2)));
    let text = refused(&weights, &scaled);
    assert!(text.contains("kv_scales with KV dtype Bf16"), "{text}");
    let tiny =
        pb_model::synth::generate(pb_model::synth::Kind::Sharp, pb_model::synth::Size::Tiny, 1);
    let text = refused(&tiny.1, &good);
    assert!(text.contains("d_head = 16"), "{text}");

    let mut gpu = executor(&weights, &good).unwrap();
    assert!(gpu.set_fault(Fault::StaleHit).is_ok());
    let text = gpu.set_fault(Fault::ZeroSlot).unwrap_err();
    assert!(text.contains("ZeroSlot"), "{text}");
}

/// An operation that cannot report its failure spoils every later step, instead of being forgotten.
#[test]
fn a_failed_copy_is_reported_by_the_next_step() {
    let weights = weights();
    let Some(mut gpu) = executor(&weights, &options(Numerics::Exact, KvDtype::Bf16)) else {
        return;
    };
    gpu.copy_block(BlockId(0), BlockId(999));
    struct Nothing;
    impl pb_model::forward::LogitSink for Nothing {
        fn row(&mut self, _: usize, _: usize, _: pb_model::forward::LogitRow<'_>) {}
        fn token(&mut self, _: usize, _: u32) {}
    }
    let clock = pb_contract::VirtualClock::new();
    let failed = gpu.execute(&[], &clock, &mut Nothing).unwrap_err();
    assert!(failed.contains("block is 999"), "{failed}");
}

/// Prompts of two adapters and of none, of one text at first.
fn adapted() -> Vec<Prompt> {
    let with = |seed, n, adapter| Prompt {
        tokens: prompt(seed, n),
        adapter,
    };
    vec![
        with(1, 37, Some(0)),
        with(1, 37, Some(1)),
        with(1, 37, None),
        with(3, 9, Some(0)),
    ]
}

/// Options with two adapters.
fn with_adapters(numerics: Numerics) -> GpuOptions {
    GpuOptions {
        adapters: adapters(),
        ..options(numerics, KvDtype::Bf16)
    }
}

/// Rows of a batch have the adapters that they ask for; those of another adapter, or of none,
/// would be refused.
#[test]
fn adapters_are_those_of_the_reference_and_not_anothers() {
    let weights = weights();
    let options = with_adapters(Numerics::Exact);
    let Some(mut gpu) = executor(&weights, &options) else {
        return;
    };
    let got = logits(gpu.as_mut(), &options, &adapted(), WHOLE).unwrap();
    let mut judge_by = reference(&weights, &options).unwrap();
    let want = logits(judge_by.as_mut(), &options, &adapted(), WHOLE).unwrap();
    let all = (&weights, options.adapters.as_ref());
    let naive = naive_rows(all, &adapted(), Cache::Bf16).unwrap();
    let verdict = judge(&got, &naive, &want);
    println!("{verdict}");
    assert!(verdict.passes() && verdict.decidable > 40, "{verdict}");
    let mut exchanged = adapted();
    (exchanged[0].adapter, exchanged[1].adapter) = (Some(1), None);
    gpu.resize_kv(options.block_size, options.num_blocks);
    let other = logits(gpu.as_mut(), &options, &exchanged, WHOLE).unwrap();
    assert!(!judge(&other, &naive, &want).passes());
}

/// Chunked, alone, or beside rows of other adapters: the bits of a row are the same.
#[test]
fn exact_gives_the_same_bits_with_adapters_for_every_cut_and_company() {
    let weights = weights();
    let options = with_adapters(Numerics::Exact);
    let Some(mut gpu) = executor(&weights, &options) else {
        return;
    };
    let whole = logits(gpu.as_mut(), &options, &adapted(), WHOLE).unwrap();
    for chunk in [15, 16, 17] {
        let cut = Cut { chunk, singles: 2 };
        gpu.resize_kv(options.block_size, options.num_blocks);
        let got = logits(gpu.as_mut(), &options, &adapted(), cut).unwrap();
        assert_eq!(differing_values(&got, &whole), 0, "{cut:?}");
    }
    for (seq, prompt) in adapted().into_iter().enumerate() {
        gpu.resize_kv(options.block_size, options.num_blocks);
        let got = logits(gpu.as_mut(), &options, &[prompt], WHOLE).unwrap();
        let same = |((_, p), row): (&(usize, usize), &Vec<f64>)| whole[&(seq, *p)] == *row;
        assert!(got.iter().all(same), "prompt {seq} alone");
    }
    let rows = |seq: usize| {
        whole
            .iter()
            .filter(move |((s, _), _)| *s == seq)
            .map(|(_, r)| r)
    };
    assert!(rows(0).zip(rows(1)).all(|(a, b)| a != b));
    assert!(rows(0).zip(rows(2)).all(|(a, b)| a != b));
}

#[test]
fn adapters_that_do_not_exist_or_fit_are_refused() {
    let weights = weights();
    let mut options = with_adapters(Numerics::Exact);
    let Some(mut gpu) = executor(&weights, &options) else {
        return;
    };
    let mut prompt = Prompt::from(prompt(1, 3));
    prompt.adapter = Some(2);
    let text = logits(gpu.as_mut(), &options, &[prompt], WHOLE).unwrap_err();
    assert!(text.contains("adapter 2 of 2"), "{text}");
    let mut wide = config();
    wide.ffn += 8;
    let set = vec![pb_model::lora::synth::adapter("wide", &wide, 4, 4.0, 1)];
    options.adapters = Arc::new(AdapterSet::new(set).unwrap());
    let device = common::device().unwrap();
    let text = pb_gpu::build(device, &weights, &options)
        .err()
        .unwrap()
        .to_string();
    assert!(text.contains("wide layers.0.mlp.gate_proj"), "{text}");
}
