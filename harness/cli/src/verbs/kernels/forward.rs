//! Forward passes of a model on the device: in chunks against whole, and against f64.

use std::sync::Arc;

use anyhow::{Result, ensure};
use half::bf16;
use pb_contract::{KvDtype, Numerics, Stream, TokenId};
use pb_gpu::check::{Cut, ForwardCheck, Prompt, chunked_against_whole};
use pb_gpu::{GpuOptions, StepOptions, rounded, rounded_adapters};
use pb_kernels_cuda::{Device, KernelError};
use pb_model::Weights;
use pb_model::config::LlamaConfig;
use pb_model::lora::{self, AdapterSet};
use pb_model::synth::{self, Kind, Size};
use pb_model::tokenizer::Tokenizer;
use pb_workloads::PROSE;

use crate::args::KernelsArgs;
use crate::model_source;
use crate::progress::Progress;

/// Tokens of a block.
const BLOCK_SIZE: usize = 16;

/// Chunks at and beside a block, with single tokens behind.
const CUTS: [Cut; 3] = [
    Cut {
        chunk: 16,
        singles: 2,
    },
    Cut {
        chunk: 17,
        singles: 4,
    },
    Cut {
        chunk: 5,
        singles: 1,
    },
];

/// The generated model that the kernels take: theirs are heads of 64.
fn synthetic() -> Weights {
    let config = LlamaConfig {
        hidden: 256,
        layers: 3,
        q_heads: 6,
        kv_heads: 2,
        d_head: 64,
        ffn: 512,
        ..synth::config(Size::Tiny)
    };
    synth::weights(Kind::Sharp, &config, 1)
}

/// Lengths of the prompts: the longest, half of it, a few tokens.
fn lens(longest: usize, count: usize) -> Vec<usize> {
    let lens = [longest, longest.div_ceil(2), longest.min(5)];
    lens.into_iter().take(count).collect()
}

/// Prompts of random tokens, for a model that was never taught a text.
fn random_prompts(vocab: usize, lens: &[usize]) -> Vec<Vec<TokenId>> {
    let one = |(seed, len): (u64, &usize)| {
        let mut stream = Stream::new(seed, "kernels.prompt");
        (0..*len)
            .map(|_| stream.below(vocab as u64) as TokenId)
            .collect()
    };
    (1..).zip(lens).map(one).collect()
}

/// Prompts cut from English prose, at even distances. A model that can guess how a text goes on
/// puts its first choice clearly before the second; after random tokens it hardly ever does.
fn text_prompts(tokenizer: &Tokenizer, lens: &[usize]) -> Result<Vec<Vec<TokenId>>> {
    let tokens = tokenizer.encode(PROSE, false)?;
    let distance = tokens.len() / lens.len();
    let longest = lens.iter().copied().max().unwrap_or_default();
    ensure!(
        longest <= distance,
        "--prompt-len {longest}: the text has {distance} tokens for each prompt"
    );
    let one = |(i, len): (usize, &usize)| tokens[i * distance..][..*len].to_vec();
    Ok(lens.iter().enumerate().map(one).collect())
}

/// Generated adapters for a model, as a device has them.
fn adapters(config: &LlamaConfig) -> Result<AdapterSet> {
    let one = |(seed, rank): (u64, usize)| {
        lora::synth::adapter(
            &format!("rank {rank}"),
            config,
            rank,
            rank as f64 / 2.0,
            seed,
        )
    };
    let set = AdapterSet::new([(1, 16), (2, 5)].map(one).to_vec())?;
    Ok(rounded_adapters::<bf16>(&set))
}

/// Checks the model that `args` name on devices that `open` opens.
pub(super) fn run<D: Device + Send + 'static>(
    args: &KernelsArgs,
    progress: &Progress,
    open: &mut dyn FnMut() -> Result<D, KernelError>,
    each: &mut dyn FnMut(ForwardCheck),
) -> Result<()> {
    let (name, longest) = (args.model.as_str(), args.prompt_len);
    let (tokenizer, weights) = match name {
        "synthetic" => (None, synthetic()),
        _ => {
            let model = model_source::obtain(name, progress)?.model;
            (Some(model.tokenizer), model.weights)
        }
    };
    let context = weights.config.max_position;
    ensure!(
        longest <= context,
        "--prompt-len {longest}: the model's context is {context}"
    );
    let weights = rounded::<bf16>(&weights);
    let lens = lens(longest, args.prompts);
    let token_rows = match &tokenizer {
        None => random_prompts(weights.config.vocab, &lens),
        Some(tokenizer) => text_prompts(tokenizer, &lens)?,
    };
    let mut prompts: Vec<Prompt> = token_rows.into_iter().map(Prompt::from).collect();
    let options = GpuOptions {
        numerics: Numerics::Exact,
        kv_dtype: KvDtype::Bf16,
        block_size: BLOCK_SIZE,
        num_blocks: prompts.len() * longest.div_ceil(BLOCK_SIZE),
        kv_scales: None,
        adapters: Arc::default(),
        steps: StepOptions::default(),
    };
    progress.phase(format!("forward passes of {name}: the f64 reference"));
    let mut make = |options: &GpuOptions| pb_gpu::build(open()?, &weights, options);
    let cuts = if args.whole_only { &[] } else { &CUTS[..] };
    chunked_against_whole(&weights, &options, &prompts, cuts, &mut make, each)?;
    if args.whole_only {
        return Ok(());
    }
    // The last prompt keeps to the base model, so that a batch is mixed.
    let adapters = adapters(&weights.config)?;
    for (i, prompt) in prompts.iter_mut().enumerate() {
        prompt.adapter = Some(i).filter(|i| *i < adapters.len());
    }
    let options = GpuOptions {
        adapters: Arc::new(adapters),
        ..options
    };
    progress.phase(format!("forward passes of {name} with adapters"));
    let mut named = |check: ForwardCheck| {
        each(ForwardCheck {
            name: format!("adapters, {}", check.name),
            ..check
        });
    };
    let cuts = &CUTS[..1];
    chunked_against_whole(&weights, &options, &prompts, cuts, &mut make, &mut named)?;
    Ok(())
}
