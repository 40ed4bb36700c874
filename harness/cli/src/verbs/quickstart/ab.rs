//! The A/B part: both arms run the same schedules in matched blocks, order seeded.

use anyhow::{Context, Result};
use pb_contract::{Nanos, Stream};
use pb_judge::run::{CacheControl, Comparison};
use pb_workloads::{PROSE, TextSource, interference};

use super::cell::Arm;
use super::run::Run;
use super::settings::Settings;
use crate::progress::Progress;

/// Order of the two arms in `block`: A B B A A B B A ..., which arm is A drawn from the seed.
pub(crate) fn block_order(seed: u64, block: u32) -> [usize; 2] {
    let first = Stream::new(seed, "arm order").below(2) as usize;
    let swapped = block % 2 == 1;
    if swapped {
        [1 - first, first]
    } else {
        [first, 1 - first]
    }
}

/// Tokens of the prompt text under the engine's tokenizer.
pub(crate) fn prompt_text(arm: &Arm, run_nonce: u64) -> Result<TextSource> {
    let tokens = arm.tokenize(PROSE).context("tokenising the prompt text")?;
    Ok(TextSource::new(tokens, run_nonce)?)
}

/// Runs every block in both arms, each cell in a fresh engine process.
///
/// A process keeps its luck: which physical pages its weights lie in changes the time of a decode
/// step by several percent, for as long as it lives. One process an arm would turn that into a
/// difference between the arms; a fresh one for each cell makes it part of the variation between
/// blocks, where the interval accounts for it.
pub(crate) fn run(
    settings: &mut Settings,
    seed: u64,
    model: &str,
    run: &mut Run,
    progress: &Progress,
) -> Result<()> {
    let names = settings.arms();
    let mut text = prepare(settings, seed, model, run, progress)?;
    run.notes.comparison = Some(comparison(settings));
    run.save_notes()?;
    let blocks = settings.blocks;
    for block in 0..blocks {
        let plan = interference(
            &settings.interference(),
            &mut text,
            seed ^ u64::from(block) << 32,
        )?;
        for index in block_order(seed, block) {
            let name = names[index];
            progress.phase(format!("block {} of {blocks}: {name}", block + 1));
            let mut arm = Arm::start(name, &settings.serve_args(name, model), run)?;
            arm.run_cell(plan.clone(), block, run)?;
        }
    }
    Ok(())
}

/// Tokenises the prompt text and measures one long prefill, in an engine of the baseline that
/// takes no part in the comparison.
fn prepare(
    settings: &mut Settings,
    seed: u64,
    model: &str,
    run: &mut Run,
    progress: &Progress,
) -> Result<TextSource> {
    let name = settings.arms()[0];
    progress.phase(format!("starting engine {name}"));
    let mut arm = Arm::start(name, &settings.serve_args(name, model), run)?;
    let mut text = prompt_text(&arm, seed)?;
    if settings.mean_gap_ns == Nanos::ZERO {
        progress.phase("measuring one long prefill");
        let length = (settings.long_prompt_min + settings.long_prompt_max) / 2;
        let prompt = text.prompt(length, &mut Stream::new(seed, "calibration"))?;
        settings.set_gap_from(arm.time_prefill(&prompt)?);
        run.set_workload(serde_json::to_value(&*settings)?)?;
    }
    Ok(text)
}

fn comparison(settings: &Settings) -> Comparison {
    let [baseline, candidate] = settings.arms();
    let subject = if settings.same_arms {
        "monolithic prefill with itself (an A/A run: any claim is false)".to_string()
    } else {
        format!(
            "chunked prefill (budget {} tokens) with monolithic prefill",
            settings.budget
        )
    };
    Comparison {
        baseline: baseline.into(),
        candidate: candidate.into(),
        subject,
        ttft_class: Some(pb_workloads::interference::LONG_PROMPT.into()),
        itl_class: Some(pb_workloads::interference::BACKGROUND.into()),
        open_classes: vec![pb_workloads::interference::LONG_PROMPT.into()],
        background_streams: Some(settings.streams),
        cache_control: CacheControl::Off,
        metrics: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_balanced_and_mirrored() {
        for seed in 0..8 {
            let order: Vec<usize> = (0..4).flat_map(|b| block_order(seed, b)).collect();
            let a = order[0];
            let b = 1 - a;
            assert_eq!(order, [a, b, b, a, a, b, b, a]);
        }
        let firsts: std::collections::BTreeSet<usize> =
            (0..16).map(|seed| block_order(seed, 0)[0]).collect();
        assert_eq!(firsts.len(), 2, "the seed decides which arm comes first");
    }
}
