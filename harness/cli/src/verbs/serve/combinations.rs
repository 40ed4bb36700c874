//! Options that do nothing by themselves: refused, since whoever typed them expects something.

use anyhow::{Result, bail};
use pb_contract::{EngineConfig, PolicyKind, Preemption, PrefixCacheKind};

use crate::args::ServeEngineArgs;

/// An option and what it takes to have an effect.
struct Need {
    option: &'static str,
    given: bool,
    met: bool,
    needs: &'static str,
}

/// Refuses options without an effect.
///
/// The scheduler checks its own settings; here is what only the command line knows (what was
/// typed) and what lies between the scheduler and the cache.
pub(super) fn check(args: &ServeEngineArgs, config: &EngineConfig) -> Result<()> {
    let needs = policy_needs(args, config)
        .into_iter()
        .chain(cache_needs(args, config));
    for need in needs {
        if need.given && !need.met {
            bail!(
                "{}: has no effect here; it needs {}",
                need.option,
                need.needs
            );
        }
    }
    if config.scheduling.preemption == Preemption::Swap && config.scheduling.swap_blocks == 0 {
        bail!(
            "--preemption-mode swap: there is no host memory to swap to; add --swap-space, for \
             example 1GiB"
        );
    }
    if config.tiers.disk_dir.is_some() && config.tiers.disk_bytes == 0 {
        bail!("--tier-disk: add --tier-disk-bytes, what the directory may hold");
    }
    Ok(())
}

fn policy_needs(args: &ServeEngineArgs, config: &EngineConfig) -> [Need; 5] {
    let (s, scheduling) = (&args.scheduling, &config.scheduling);
    let is = |policy: PolicyKind| scheduling.policy == policy;
    let adaptive = [
        s.adaptive_max_chunk,
        s.adaptive_min_chunk,
        s.adaptive_base,
        s.adaptive_threshold,
    ];
    let shrinking = [
        s.shrinking_high,
        s.shrinking_low,
        s.shrinking_stages,
        s.shrinking_max_tokens,
    ];
    let reserved = s.schedule_conservativeness.is_some() || s.max_prefill_tokens.is_some();
    [
        Need {
            option: "--time-budget-ms, --time-budget-min-chunk",
            given: s.time_budget_ms.is_some() || s.time_budget_min_chunk.is_some(),
            met: is(PolicyKind::TimeBudget),
            needs: "--policy time_budget",
        },
        Need {
            option: "--adaptive-...",
            given: adaptive.iter().any(Option::is_some),
            met: is(PolicyKind::AdaptiveLoad),
            needs: "--policy adaptive_load",
        },
        Need {
            option: "--shrinking-...",
            given: shrinking.iter().any(Option::is_some),
            met: is(PolicyKind::Shrinking),
            needs: "--policy shrinking",
        },
        Need {
            option: "--schedule-conservativeness, --max-prefill-tokens",
            given: reserved,
            met: scheduling.reserved_decode.enabled,
            needs: "--preset sglang, or scheduling.reserved_decode.enabled = true in --config",
        },
        Need {
            option: "--swap-space",
            given: s.swap_space.is_some(),
            met: scheduling.preemption == Preemption::Swap,
            needs: "--preemption-mode swap",
        },
    ]
}

fn cache_needs(args: &ServeEngineArgs, config: &EngineConfig) -> [Need; 5] {
    let cache = &args.cache;
    let is = |kind: PrefixCacheKind| config.prefix_cache == kind;
    [
        Need {
            option: "--prefix-caching-hash-algo",
            given: cache.prefix_caching_hash_algo.is_some(),
            met: is(PrefixCacheKind::HashChain),
            needs: "--prefix-cache hash-chain",
        },
        Need {
            option: "--radix-eviction-policy",
            given: cache.radix_eviction_policy.is_some(),
            met: is(PrefixCacheKind::Radix),
            needs: "--prefix-cache radix",
        },
        Need {
            option: "--tier-disk-bytes",
            given: cache.tier_disk_bytes.is_some(),
            met: config.tiers.disk_dir.is_some(),
            needs: "--tier-disk DIR",
        },
        Need {
            option: "a tier for evicted blocks",
            given: config.tiers.any(),
            met: !is(PrefixCacheKind::None),
            needs: "a prefix cache other than none",
        },
        Need {
            option: "--queue lpm or dfs-weight",
            given: matches!(
                args.scheduling.queue,
                Some(pb_contract::QueueOrder::Lpm | pb_contract::QueueOrder::DfsWeight)
            ),
            met: !is(PrefixCacheKind::None),
            needs: "a prefix cache other than none",
        },
    ]
}
