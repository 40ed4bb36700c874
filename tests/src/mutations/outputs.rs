//! What is generated depends on the request alone: not on chunks, swapping or tiers.

use std::collections::BTreeMap;

use pb_contract::{
    EngineEvent, EngineRequest, Fault, Preemption, PrefixCacheKind, RequestId, TokenId,
    VirtualClock,
};
use pb_core::Engine;

use super::toy::{self, MAX_LEN, prompt, seeded};
use super::watch::same_as_alone;

/// Steps that no load of this file needs.
const MOST_STEPS: usize = 2_000;

/// What requests gave.
#[derive(Debug, Default)]
pub struct Given {
    /// Generated tokens.
    pub tokens: BTreeMap<RequestId, Vec<TokenId>>,
    /// Prompt tokens found.
    pub cached: BTreeMap<RequestId, usize>,
}

/// Adds all requests at once and runs them to their end.
///
/// # Errors
/// A request is refused, a step fails, or there is no end.
pub fn run(engine: &mut Engine, requests: &[EngineRequest]) -> Result<Given, String> {
    for request in requests {
        engine.add(request.clone()).map_err(|e| e.to_string())?;
    }
    let mut given = Given::default();
    for _ in 0..MOST_STEPS {
        if !engine.has_work() {
            return Ok(given);
        }
        let step = engine
            .step(&VirtualClock::new())
            .map_err(|e| e.to_string())?;
        for event in step.events {
            match event {
                EngineEvent::Token { id, token, .. } => {
                    given.tokens.entry(id).or_default().push(token);
                }
                EngineEvent::Admitted { id, cached_tokens } => {
                    given.cached.insert(id, cached_tokens);
                }
                EngineEvent::Finished { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
    }
    Err(format!("not idle after {MOST_STEPS} steps"))
}

fn compare(given: &Given, requests: &[EngineRequest]) -> Result<(), String> {
    requests.iter().try_for_each(|request| {
        let output = given.tokens.get(&request.id);
        same_as_alone(request, output.map_or(&[], Vec::as_slice))
    })
}

/// One seeded request gives the same text in chunks of any size.
///
/// # Errors
/// The chunk size and the token that differs.
pub fn seeded_draws(fault: Fault) -> Result<(), String> {
    let request = seeded(0, &prompt("chunks", 50), 20, 5);
    let text = |budget| -> Result<Vec<TokenId>, String> {
        let mut config = toy::config(4, 64, fault);
        config.max_batched_tokens = budget;
        let given = run(&mut toy::engine(config)?, std::slice::from_ref(&request))?;
        let text = given.tokens.into_values().next();
        text.ok_or_else(|| "no text at all".to_owned())
    };
    let whole = text(MAX_LEN)?;
    for budget in [1, 3, 4, 7, 16, 49] {
        let cut = text(budget)?;
        if let Some(at) = (0..whole.len()).find(|&at| cut.get(at) != whole.get(at)) {
            return Err(format!(
                "chunks of {budget}: token {at} is {:?}, in one pass {:?}",
                cut.get(at),
                whole.get(at)
            ));
        }
    }
    Ok(())
}

/// Requests that push each other out into the swap pool give what they give alone.
///
/// # Errors
/// The first token that differs.
pub fn swap(fault: Fault) -> Result<(), String> {
    for cache in [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
    ] {
        let mut config = toy::config(4, 24, fault);
        config.prefix_cache = cache;
        config.scheduling.preemption = Preemption::Swap;
        config.scheduling.swap_blocks = 64;
        let mut engine = toy::engine(config)?;
        let one = |i: u64| {
            let text = prompt(&format!("crowd {i}"), 9 + 3 * i as usize);
            seeded(i, &text, 40, 100 + i)
        };
        let requests: Vec<EngineRequest> = (0..6).map(one).collect();
        let given = run(&mut engine, &requests)?;
        if engine.counters().swapped_in_tokens == 0 {
            return Err("nothing was swapped: the pool is not tight".to_owned());
        }
        compare(&given, &requests)?;
    }
    Ok(())
}

/// Requests whose prompts come back from host memory give what they give alone.
///
/// # Errors
/// The first token that differs.
pub fn tiers(fault: Fault) -> Result<(), String> {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut config = toy::config(4, 16, fault);
        config.prefix_cache = cache;
        config.tiers.host_bytes = 1 << 20;
        let mut engine = toy::engine(config)?;
        // No two of the prompts fit the pool together.
        for (id, label) in ["x", "y", "z", "x", "y"].into_iter().enumerate() {
            let request = seeded(id as u64, &prompt(label, 41), 6, 9);
            let given = run(&mut engine, std::slice::from_ref(&request))?;
            compare(&given, std::slice::from_ref(&request))?;
        }
        if engine.counters().host_hit_tokens == 0 {
            return Err("nothing came from host memory".to_owned());
        }
    }
    Ok(())
}
