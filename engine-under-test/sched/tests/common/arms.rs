//! Every policy with the settings that change its path, sizes aside.

use pb_contract::{
    AdaptiveLoadOptions, PolicyKind, ReservedDecodeOptions, Scheduling, ShrinkingOptions,
    TimeBudgetOptions,
};
use pb_sched::RunningOrder;

/// Name, whether prompts are cut, settings.
pub(crate) type Arm = (&'static str, bool, Scheduling);

/// All arms.
pub(crate) fn arms() -> Vec<Arm> {
    let mut arms = whole_prompts();
    arms.extend(sglang());
    arms.extend(chunk_rules());
    arms
}

fn policy(policy: PolicyKind) -> Scheduling {
    Scheduling {
        policy,
        ..Scheduling::default()
    }
}

fn mixed(scheduling: Scheduling) -> Scheduling {
    Scheduling {
        mixed_chunk: true,
        ..scheduling
    }
}

fn whole_prompts() -> Vec<Arm> {
    let prefill_first = policy(PolicyKind::PrefillFirst);
    let naive = policy(PolicyKind::DecodePriorityMonolithic);
    vec![
        ("monolithic", false, policy(PolicyKind::Monolithic)),
        ("decode_priority_monolithic", false, naive),
        ("prefill_first, whole", false, prefill_first),
        ("prefill_first, cut", true, prefill_first),
        ("prefill_first, mixed", true, mixed(prefill_first)),
        ("token_budget, whole", false, Scheduling::default()),
    ]
}

fn sglang() -> Vec<Arm> {
    let reserving = |conservativeness| Scheduling {
        reserved_decode: ReservedDecodeOptions {
            enabled: true,
            conservativeness,
            ..ReservedDecodeOptions::default()
        },
        reserve_full_prompt: false,
        ..policy(PolicyKind::PrefillFirst)
    };
    // The bold one reserves next to nothing, so that it must retract.
    let (sglang, bold) = (reserving(1.0), reserving(0.01));
    vec![
        ("sglang", true, sglang),
        ("sglang, whole", false, sglang),
        ("sglang, mixed", true, mixed(sglang)),
        ("bold sglang", true, bold),
        ("bold sglang, mixed", true, mixed(bold)),
    ]
}

fn chunk_rules() -> Vec<Arm> {
    let list_order = Scheduling {
        running_order: RunningOrder::ListOrder,
        ..Scheduling::default()
    };
    // Small enough to bind in small loads.
    let rule = |kind| Scheduling {
        adaptive_load: AdaptiveLoadOptions {
            max_chunk: 24,
            min_chunk: 3,
            base: 12,
            threshold: 6,
        },
        shrinking: ShrinkingOptions {
            high: 16,
            low: 2,
            stages: 4,
            max_tokens: 64,
        },
        time_budget: TimeBudgetOptions {
            step_budget_ns: 5_000_000,
            min_chunk: 2,
        },
        ..policy(kind)
    };
    vec![
        ("token_budget", true, Scheduling::default()),
        ("token_budget, list order", true, list_order),
        ("adaptive_load", true, rule(PolicyKind::AdaptiveLoad)),
        ("shrinking", true, rule(PolicyKind::Shrinking)),
        ("time_budget", true, rule(PolicyKind::TimeBudget)),
    ]
}
