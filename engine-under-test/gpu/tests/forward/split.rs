//! Chunks whose keys are split, in whole forward passes.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::common::watched;

/// A prompt long enough for a range of 256 keys and half of another, and a short one.
fn long_and_short() -> Vec<Prompt> {
    [prompt(1, 420), prompt(2, 33)].map(Prompt::from).to_vec()
}

fn room(numerics: Numerics) -> GpuOptions {
    GpuOptions {
        num_blocks: 56,
        ..options(numerics, KvDtype::Bf16)
    }
}

/// Logits under `options`, and launches of `prefill_split` and of `prefill`.
fn counted(weights: &Weights, options: &GpuOptions, cut: Cut) -> Option<(Rows, [u64; 2])> {
    let (mut executor, watch) = watched(weights, options, |_| {})?;
    let rows = logits(executor.as_mut(), options, &long_and_short(), cut).unwrap();
    let split = watch.launched("prefill_split_");
    Some((rows, [split, watch.launched("prefill_") - split]))
}

/// Rows that see one range have the bits of `prefill`; others have another order of sums.
#[test]
fn fast_splits_a_long_chunk_and_exact_does_not() {
    let weights = weights();
    let Some((fast, launches)) = counted(&weights, &room(Numerics::Fast), WHOLE) else {
        return;
    };
    // The two prompts in one batch, each its own way in each of two layers.
    assert_eq!(launches, [2, 2]);
    let (whole, launches) = counted(&weights, &room(Numerics::Exact), WHOLE).unwrap();
    assert_eq!(launches, [0, 2]);
    assert!(fast.keys().eq(whole.keys()));
    let same = |(key, row): &(&(usize, usize), &Vec<f64>)| whole[*key] == **row;
    let one_range =
        |((seq, position), _): &(&(usize, usize), &Vec<f64>)| *seq == 1 || *position < 256;
    let mut differing = fast.iter().filter(one_range).filter(|row| !same(row));
    let found: Vec<_> = differing.by_ref().map(|(key, _)| *key).collect();
    assert!(found.is_empty(), "{found:?}");
    let other = fast.iter().filter(|row| !one_range(row));
    assert!(other.filter(|row| !same(row)).count() > 100);
}

/// A few tokens after a long prefix, beside single tokens of another prompt: the error is that of
/// the precision, and within a factor of e^0.4 of that of whole prompts by one kernel.
#[test]
fn a_lone_chunk_after_a_long_prefix_is_split_beside_single_tokens() {
    let weights = weights();
    let cut = Cut {
        chunk: 400,
        singles: 4,
    };
    let Some((got, launches)) = counted(&weights, &room(Numerics::Fast), cut) else {
        return;
    };
    // 400 tokens and 29; then 16 beside a single one; then single ones.
    assert_eq!(launches, [4, 2]);
    let options = room(Numerics::Exact);
    let (whole, _) = counted(&weights, &options, WHOLE).unwrap();
    let mut judge_by = reference(&weights, &options).unwrap();
    let want = logits(judge_by.as_mut(), &options, &long_and_short(), WHOLE).unwrap();
    let all = (&weights, &AdapterSet::default());
    let naive = naive_rows(all, &long_and_short(), Cache::Bf16).unwrap();
    let ratio = worst_log_ratio(&got, &whole, &want);
    let verdict = judge(&got, &naive, &want);
    println!("log error ratio {ratio:.3}; {verdict}");
    assert!(verdict.passes() && ratio < 0.4, "{ratio} {verdict:?}");
    assert!(verdict.decidable >= 50, "{verdict:?}");
}

/// Planted: the last range of a launch is left out, and the merge finds nothing there.
#[test]
fn a_range_that_nobody_computes_is_found() {
    let weights = weights();
    let options = room(Numerics::Fast);
    let Some((mut executor, watch)) = watched(&weights, &options, |_| {}) else {
        return;
    };
    watch.short_splits.store(true, Relaxed);
    let failed = logits(executor.as_mut(), &options, &long_and_short(), WHOLE).unwrap_err();
    assert!(
        failed.contains("Uninitialised") && failed.contains("decode_merge"),
        "{failed}"
    );
}
