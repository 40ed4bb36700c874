//! What a suite must not ask: found before anything is started.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::verbs::bench::Settings;
use crate::verbs::suite::{Arm, Resolved, Way};

/// What the suite asks of its arms before any of them is started.
pub(super) fn check(suite: &Resolved) -> Result<()> {
    let mut servers: BTreeMap<&str, &str> = BTreeMap::new();
    for arm in &suite.arms {
        for condition in &suite.conditions {
            let options = suite.options(arm, condition);
            let own = [
                ("out", options.out.is_some()),
                ("shard", options.shard.is_some()),
                (
                    "host or port",
                    options.host.is_some() || options.port.is_some(),
                ),
                ("save_result", options.save_result == Some(true)),
            ];
            if let Some((key, _)) = own.iter().find(|(_, given)| *given) {
                bail!("bench.{key}: a suite's cells have their own; take it out");
            }
            match &arm.way {
                Way::Unknown => bail!(
                    "arms.{}: how is its server reached? Give engine, start or base_url",
                    arm.name
                ),
                // A server that several cells share keeps the prompts of the ones before.
                Way::Running(url) if options.cache.is_none() => {
                    let other = servers.insert(url, &arm.name);
                    if let Some(other) = other.filter(|other| *other != arm.name) {
                        bail!(
                            "arms {other} and {} are one server, {url}: the second finds the first \
                             one's prompts in its cache; say bench.cache = \"cold\" or \"warm\" \
                             (or \"asis\", if that is meant)",
                            arm.name
                        );
                    }
                }
                Way::Running(_) | Way::Engine(_) | Way::Command(..) => {}
            }
        }
    }
    Ok(())
}

/// The generated models have few tokens, and would refuse every request with others.
pub(super) fn known_ids(arm: &Arm, settings: &Settings) -> Result<()> {
    let command = arm.command();
    let ours = command
        .first()
        .is_some_and(|word| word == "prefillbench" || word == "{program}");
    let model = command
        .iter()
        .find_map(|flag| flag.strip_prefix("--model="));
    let model = model.filter(|_| ours);
    let Some(model) = model.filter(|model| model.starts_with("synthetic")) else {
        return Ok(());
    };
    let (lo, hi) = settings.id_range(None);
    let own_ids = settings.form == pb_workloads::Form::Ids && settings.options.tokenizer.is_none();
    if own_ids && hi as usize > pb_model::synth::VOCAB {
        bail!(
            "bench.random_range_ids: prompts would be of the token ids {lo} to {}, and the model \
             {model} has ids 0 to {}: write random_range_ids = \"10..250\"",
            hi - 1,
            pb_model::synth::VOCAB - 1
        );
    }
    Ok(())
}
