//! From a `config` line to an engine's configuration.
//!
//! Keys are those of the engine's configuration, without their nesting. A preset is applied
//! first, so that every other key of the line wins over it.

use pb_contract::{
    CacheOptions, EngineConfig, Fault, FaultClass, KvDtype, Numerics, PrefixCacheKind, Preset,
    Scheduling, TierOptions,
};
use serde_json::{Map, Value};

use crate::error::ReplayError;
use crate::fields::{Fields, wrong};

/// Keys whose values are names with hyphens; scripts may write underscores.
pub(crate) const HYPHENATED: &[&str] = &[
    "prefix_cache",
    "queue",
    "running_order",
    "preemption",
    "hash",
    "placement",
    "eviction",
    "fault",
];

/// Reads the keys of a `config` line.
pub(crate) fn parse(mut fields: Fields) -> Result<EngineConfig, ReplayError> {
    let preset = match fields.optional_text("preset")? {
        None => None,
        Some(name) => Some(
            Preset::from_name(&name)
                .ok_or_else(|| ReplayError::field("preset", &name, "must be vllm-v1 or sglang"))?,
        ),
    };
    let default_block = if preset == Some(Preset::Sglang) {
        1
    } else {
        16
    };
    let page = fields.optional_number("page_size")?;
    let block_size = fields.optional_number("block_size")?.or(page);
    let num_blocks = fields.number("num_blocks")? as usize;
    let block_size = block_size.unwrap_or(default_block) as usize;
    let mut config = EngineConfig {
        numerics: Numerics::Exact,
        kv_dtype: KvDtype::F32,
        threads: 1,
        chunked: true,
        max_batched_tokens: 2048,
        max_num_seqs: 128,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size,
        num_blocks,
        max_model_len: 0,
        seed: 0,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    };
    if let Some(preset) = preset {
        preset.apply(&mut config);
    }
    let mut config = patched(config, fields.take_all())?;
    if config.fault.class() == Some(FaultClass::Numerics) {
        let problem = "acts in the forward pass, and a replay has none";
        return Err(ReplayError::field("fault", config.fault, problem));
    }
    let usable = config
        .num_blocks
        .saturating_sub(usize::from(config.cache.null_block));
    if usable == 0 {
        let problem = "leaves no usable block; raise it";
        return Err(ReplayError::field("num_blocks", config.num_blocks, problem));
    }
    if config.max_model_len == 0 {
        config.max_model_len = usable.saturating_mul(config.block_size);
    }
    Ok(config)
}

/// Puts the keys of the line in their places of the configuration.
fn patched(config: EngineConfig, keys: Map<String, Value>) -> Result<EngineConfig, ReplayError> {
    let bad = |e: serde_json::Error| ReplayError::Config(e.to_string());
    let mut whole = serde_json::to_value(&config).map_err(bad)?;
    for (key, value) in keys {
        let key = if key == "cache" { "prefix_cache" } else { &key };
        let value = hyphens(key, value);
        let place = ["", "scheduling", "cache"].into_iter().find(|&part| {
            let target = if part.is_empty() {
                &whole
            } else {
                &whole[part]
            };
            target.get(key).is_some() && !matches!(key, "scheduling" | "tiers")
        });
        let Some(part) = place else {
            return Err(wrong(key, &value, "is not a key of the config line"));
        };
        let target = if part.is_empty() {
            &mut whole
        } else {
            &mut whole[part]
        };
        let before = target[key].clone();
        target[key] = merged(before, value.clone());
        // Each key is tried alone, so that the error names it.
        serde_json::from_value::<EngineConfig>(whole.clone())
            .map_err(|e| wrong(key, &value, &e.to_string()))?;
    }
    serde_json::from_value(whole).map_err(bad)
}

/// An object given in part keeps its other keys.
fn merged(before: Value, value: Value) -> Value {
    match (before, value) {
        (Value::Object(mut old), Value::Object(new)) => {
            old.extend(new);
            Value::Object(old)
        }
        (_, value) => value,
    }
}

fn hyphens(key: &str, value: Value) -> Value {
    match value {
        Value::String(text) if HYPHENATED.contains(&key) => Value::String(text.replace('_', "-")),
        other => other,
    }
}
