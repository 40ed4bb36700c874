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

/// Runs every block in both arms.
pub(crate) fn run(
    settings: &mut Settings,
    seed: u64,
    model: &str,
    run: &mut Run,
    progress: &Progress,
) -> Result<()> {
    let names = settings.arms();
    let mut arms = Vec::new();
    for name in names {
        progress.phase(format!("starting engine {name}"));
        arms.push(Arm::start(name, &settings.serve_args(name, model), run)?);
    }
    run.notes.comparison = Some(comparison(settings));
    run.save_notes()?;
    let mut text = prompt_text(&arms[0], seed)?;
    if settings.mean_gap_ns == Nanos::ZERO {
        progress.phase("measuring one long prefill");
        let length = (settings.long_prompt_min + settings.long_prompt_max) / 2;
        let prompt = text.prompt(length, &mut Stream::new(seed, "calibration"))?;
        settings.set_gap_from(arms[0].time_prefill(&prompt)?);
        run.set_workload(serde_json::to_value(&*settings)?)?;
    }
    for block in 0..settings.blocks {
        let plan = interference(
            &settings.interference(),
            &mut text,
            seed ^ u64::from(block) << 32,
        )?;
        for index in block_order(seed, block) {
            let arm = &mut arms[index];
            progress.phase(format!(
                "block {} of {}: {}",
                block + 1,
                settings.blocks,
                arm.name
            ));
            arm.run_cell(plan.clone(), block, run)?;
        }
    }
    Ok(())
}

fn comparison(settings: &Settings) -> Comparison {
    let [baseline, candidate] = settings.arms();
    let subject = if settings.same_arms {
        "monolithic prefill with itself (an A/A run: any difference claimed is false)".to_string()
    } else {
        format!(
            "chunked prefill under a budget of {} tokens with monolithic",
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
