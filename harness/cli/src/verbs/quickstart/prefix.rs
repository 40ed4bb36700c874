//! The prefix-cache part: one system prompt, many questions, cold against warm, both proven.

use std::collections::BTreeMap;

use anyhow::Result;
use pb_contract::{Nanos, RequestId, Stream};
use pb_judge::run::CacheNote;
use pb_workloads::{SharedPrefixParams, sequential, shared_prefix};

use super::ab::prompt_text;
use super::cell::Arm;
use super::run::Run;
use super::settings::{BLOCK_SIZE, PREFIX, Settings};
use crate::progress::Progress;

/// Tokens of the probe that proves a reset.
const PROBE_LEN: usize = 4 * BLOCK_SIZE + 1;

/// Runs every round: prove cold, ask each question cold, prime, ask each question warm.
pub(crate) fn run(
    settings: &Settings,
    seed: u64,
    model: &str,
    run: &mut Run,
    progress: &Progress,
) -> Result<()> {
    progress.phase(format!("starting engine {PREFIX}"));
    let mut arm = Arm::start(PREFIX, &settings.serve_args(PREFIX, model), run)?;
    // Another nonce than the A/B part: its prompts must not be found here.
    let mut text = prompt_text(&arm, seed.wrapping_add(1))?;
    let probe = text.prompt(PROBE_LEN, &mut Stream::new(seed, "probe"))?;
    let params = SharedPrefixParams {
        groups: 1,
        questions_per_group: 4,
        system_len: settings.system_len,
        ..SharedPrefixParams::default()
    };
    for round in 0..settings.prefix_rounds {
        progress.phase(format!(
            "prefix cache: round {} of {}",
            round + 1,
            settings.prefix_rounds
        ));
        let proof = arm.prove_cold(round, &probe)?;
        let shared = shared_prefix(&params, &mut text, seed ^ u64::from(round) << 32)?;
        let questions = shared.warm.len();
        let planned = |i: usize| shared.planned_hit(i, BLOCK_SIZE) as u32;
        let cold_id = |i: usize| RequestId(i as u64);
        let warm_id = |i: usize| RequestId((questions + shared.prime.len() + i) as u64);
        run.notes.resets.push(proof);
        run.notes.cache.push(CacheNote {
            arm: PREFIX.into(),
            block: round,
            cold_class: "cold".into(),
            warm_class: "warm".into(),
            block_size: BLOCK_SIZE as u32,
            planned_cached_tokens: (0..questions)
                .map(|i| (warm_id(i), planned(i)))
                .collect::<BTreeMap<_, _>>(),
            pairs: (0..questions).map(|i| (cold_id(i), warm_id(i))).collect(),
        });
        run.save_notes()?;
        let bodies = [shared.cold, shared.prime, shared.warm].concat();
        let plan = sequential(
            bodies,
            RequestId(0),
            Nanos::from_secs(120),
            Nanos::from_secs(60),
        );
        arm.run_cell(plan, round, run)?;
    }
    Ok(())
}
