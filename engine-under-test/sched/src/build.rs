//! From a configuration to a policy.

use pb_contract::{EngineConfig, Fault, PolicyKind, QueueOrder, Scheduling};

use crate::adaptive_load::AdaptiveLoad;
use crate::chunked::Frame;
use crate::decode_priority::DecodePriorityMonolithic;
use crate::error::PlanError;
use crate::faulty::Faulty;
use crate::monolithic::Monolithic;
use crate::policy::Policy;
use crate::prefill_first::PrefillFirst;
use crate::reserve::Reserve;
use crate::shrinking::Shrinking;
use crate::step::{Limits, Victim};
use crate::time_budget::TimeBudget;
use crate::token_budget::TokenBudget;

/// Makes the policy that `config.scheduling` asks for.
///
/// # Errors
/// When a size is zero or settings contradict each other; the message names the key, its value
/// and the fix.
pub fn build(config: &EngineConfig) -> Result<Box<dyn Policy>, PlanError> {
    let scheduling = &config.scheduling;
    let policy = scheduling.policy;
    check_chunking(config)?;
    check_options(config)?;
    let frame = frame(config);
    frame.limits.validate(config.chunked)?;
    let limits = frame.limits;
    let policy: Box<dyn Policy> = match policy {
        PolicyKind::Monolithic => Box::new(Monolithic { limits }),
        PolicyKind::DecodePriorityMonolithic => Box::new(DecodePriorityMonolithic { limits }),
        PolicyKind::PrefillFirst => Box::new(prefill_first(frame, scheduling)?),
        PolicyKind::TokenBudget => Box::new(TokenBudget::from(frame)),
        PolicyKind::AdaptiveLoad => Box::new(AdaptiveLoad::new(frame, scheduling.adaptive_load)?),
        PolicyKind::Shrinking => Box::new(Shrinking::new(frame, scheduling.shrinking)?),
        PolicyKind::TimeBudget => Box::new(TimeBudget::from_config(config)?),
    };
    Ok(match config.fault {
        Fault::Starvation | Fault::DecodeSkipped => Box::new(Faulty {
            inner: policy,
            fault: config.fault,
        }),
        _ => policy,
    })
}

pub(crate) fn frame(config: &EngineConfig) -> Frame {
    let scheduling = &config.scheduling;
    // The planted fault: a chunk takes one token more than the budget leaves.
    let beyond = usize::from(config.fault == Fault::ChunkBeyondBudget);
    let victim = match scheduling.queue {
        _ if scheduling.reserved_decode.enabled => Victim::FewestOutputs,
        QueueOrder::Priority => Victim::LowestPriority,
        QueueOrder::Fcfs | QueueOrder::Lpm | QueueOrder::DfsWeight => Victim::Last,
    };
    Frame {
        limits: Limits {
            reserve_full_prompt: scheduling.reserve_full_prompt,
            watermark_blocks: scheduling.watermark_blocks,
            victim,
            ..Limits::new(
                config.max_batched_tokens + beyond,
                config.max_num_seqs,
                config.max_model_len,
            )
        },
        order: scheduling.running_order,
        threshold: scheduling.long_prefill_token_threshold,
        spares_lone_request: scheduling.threshold_spares_lone_request,
        chunked: config.chunked,
    }
}

fn prefill_first(frame: Frame, scheduling: &Scheduling) -> Result<PrefillFirst, PlanError> {
    let options = scheduling.reserved_decode;
    let reserve = match options.enabled {
        true => Some(Reserve::new(options)?),
        false => None,
    };
    Ok(PrefillFirst {
        frame: Frame {
            order: pb_contract::RunningOrder::DecodeFirst,
            ..frame
        },
        mixed_chunk: scheduling.mixed_chunk,
        reserve,
    })
}

/// Name of a policy as it is configured.
const fn name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Monolithic => "monolithic",
        PolicyKind::PrefillFirst => "prefill_first",
        PolicyKind::DecodePriorityMonolithic => "decode_priority_monolithic",
        PolicyKind::TokenBudget => "token_budget",
        PolicyKind::AdaptiveLoad => "adaptive_load",
        PolicyKind::Shrinking => "shrinking",
        PolicyKind::TimeBudget => "time_budget",
    }
}

/// Policies of whole prompts go with chunking off, policies of chunk sizes with chunking on.
fn check_chunking(config: &EngineConfig) -> Result<(), PlanError> {
    let policy = config.scheduling.policy;
    let setting = |problem, fix| {
        Err(PlanError::Setting {
            key: "scheduling.policy",
            value: name(policy).to_owned(),
            problem,
            fix,
        })
    };
    match policy {
        PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic if config.chunked => setting(
            "it never cuts a prompt, and chunked = true",
            "set chunked = false or take token_budget",
        ),
        PolicyKind::AdaptiveLoad | PolicyKind::Shrinking | PolicyKind::TimeBudget
            if !config.chunked =>
        {
            setting(
                "it chooses chunk sizes, and chunked = false",
                "set chunked = true or take monolithic",
            )
        }
        _ => Ok(()),
    }
}

/// Options that only some policies heed are refused under the others.
fn check_options(config: &EngineConfig) -> Result<(), PlanError> {
    let scheduling = &config.scheduling;
    let prefill_first = scheduling.policy == PolicyKind::PrefillFirst;
    let setting = |key, value: String, problem, fix| {
        Err(PlanError::Setting {
            key,
            value,
            problem,
            fix,
        })
    };
    if scheduling.mixed_chunk && !prefill_first {
        return setting(
            "scheduling.mixed_chunk",
            "true".to_owned(),
            "only prefill_first keeps decodes and prompts apart, so only there they can be mixed",
            "set it to false or scheduling.policy to prefill_first",
        );
    }
    if scheduling.mixed_chunk && !config.chunked {
        return setting(
            "scheduling.mixed_chunk",
            "true".to_owned(),
            "it mixes chunks into decode steps, and chunked = false",
            "set chunked = true",
        );
    }
    let reserved = scheduling.reserved_decode.enabled;
    if reserved && !prefill_first {
        return setting(
            "scheduling.reserved_decode.enabled",
            "true".to_owned(),
            "only prefill_first admits by reserved tokens",
            "set it to false or scheduling.policy to prefill_first",
        );
    }
    if reserved && config.chunked && config.max_batched_tokens < config.block_size {
        return setting(
            "max_batched_tokens",
            config.max_batched_tokens.to_string(),
            "prompts are cut at whole blocks under reserved_decode, and it is below block_size",
            "raise it to block_size at least",
        );
    }
    let threshold = scheduling.long_prefill_token_threshold;
    if threshold > 0 && !config.chunked {
        return setting(
            "scheduling.long_prefill_token_threshold",
            threshold.to_string(),
            "it cuts prompts, and chunked = false",
            "set it to 0 or chunked = true",
        );
    }
    Ok(())
}
