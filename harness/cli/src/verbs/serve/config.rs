//! From options, a configuration file and a preset to the engine's configuration.
//!
//! Later wins: built-in values, the preset, the file, the options. What all of them leave open
//! follows from the model and the machine.

use anyhow::{Result, anyhow, bail};
use pb_contract::{
    CacheOptions, EngineConfig, Fault, KvDtype, Numerics, PolicyKind, Preemption, PrefixCacheKind,
    Preset, Scheduling, TierOptions,
};
use pb_model::config::LlamaConfig;
use pb_model::forward::{block_image_bytes, kv_bytes_per_token};
use serde_json::{Map, Value};

use super::combinations;
use crate::args::{ServeEngineArgs, Switch};
use crate::machine;

/// Token budget of a step when chunking is on and none is given.
const DEFAULT_BUDGET: usize = 512;
/// Size of the KV pool when none is given.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

/// The keys of a configuration file.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    preset: Option<Preset>,
    keys: Map<String, Value>,
}

impl ConfigFile {
    /// Reads TOML. Beside the keys of the configuration there may be `preset`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut keys: Map<String, Value> = toml::from_str(text)?;
        let preset = match keys.remove("preset") {
            None => None,
            Some(name) => {
                let known = name.as_str().and_then(Preset::from_name);
                let wrong = || anyhow!("preset = {name}: must be vllm-v1 or sglang");
                Some(known.ok_or_else(wrong)?)
            }
        };
        Ok(ConfigFile { preset, keys })
    }

    fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Puts the file's keys over those of `config`.
    fn apply(&self, config: &EngineConfig) -> Result<EngineConfig> {
        let mut whole = serde_json::to_value(config)?;
        merge(&mut whole, &self.keys);
        serde_path_to_error::deserialize(whole)
            .map_err(|error| anyhow!("{}: {}", error.path(), error.inner()))
    }
}

/// Replaces values by those of the same place; a table given in part keeps its other keys.
fn merge(into: &mut Value, keys: &Map<String, Value>) {
    for (key, value) in keys {
        match (into.get_mut(key), value) {
            (Some(old @ Value::Object(_)), Value::Object(new)) => merge(old, new),
            _ => into[key] = value.clone(),
        }
    }
}

/// The configuration that options and file ask for.
pub(super) fn resolve(
    args: &ServeEngineArgs,
    file: &ConfigFile,
    model: &LlamaConfig,
) -> Result<EngineConfig> {
    let mut config = built_in();
    let preset = args.preset.or(file.preset);
    if let Some(preset) = preset {
        preset.apply(&mut config);
    }
    let mut config = file.apply(&config)?;
    set_engine(args, &mut config);
    set_scheduling(args, &mut config);
    set_cache(args, &mut config)?;
    let whole_prompts = matches!(
        config.scheduling.policy,
        PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic
    );
    if args.chunked.is_none() && !file.has("chunked") {
        config.chunked = !whole_prompts;
    }
    if config.numerics == Numerics::F64 && !file.has("kv_dtype") {
        config.kv_dtype = KvDtype::F64;
    }
    if args.max_model_len.is_none() && !file.has("max_model_len") {
        config.max_model_len = model.max_position;
    }
    if args.max_batched_tokens.is_none() && !file.has("max_batched_tokens") {
        config.max_batched_tokens = match config.chunked {
            true => DEFAULT_BUDGET,
            false => config.max_model_len,
        };
    }
    if config.block_size > 0 {
        size_pools(args, file, model, &mut config)?;
    }
    combinations::check(args, &config)?;
    config.validate().map_err(|sentence| anyhow!(sentence))?;
    Ok(config)
}

/// What holds where nothing is said. Sizes that depend on the model are left at 0.
fn built_in() -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Fast,
        kv_dtype: KvDtype::F32,
        threads: machine::cores(),
        chunked: true,
        max_batched_tokens: 0,
        max_num_seqs: 64,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size: 16,
        num_blocks: 0,
        max_model_len: 0,
        seed: 0,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

/// Puts an option over a setting, if it is given.
fn set<T: Clone>(setting: &mut T, option: &Option<T>) {
    if let Some(value) = option {
        *setting = value.clone();
    }
}

fn set_engine(args: &ServeEngineArgs, config: &mut EngineConfig) {
    set(&mut config.numerics, &args.numerics);
    set(&mut config.kv_dtype, &args.kv_dtype);
    set(&mut config.threads, &args.threads);
    set(&mut config.max_batched_tokens, &args.max_batched_tokens);
    set(&mut config.max_num_seqs, &args.max_num_seqs);
    set(&mut config.block_size, &args.block_size);
    set(&mut config.max_model_len, &args.max_model_len);
    set(&mut config.seed, &args.seed);
    set(&mut config.prefix_cache, &args.cache.prefix_cache);
    let chunked = args.chunked.map(|switch| switch == Switch::On);
    set(&mut config.chunked, &chunked);
}

fn set_scheduling(args: &ServeEngineArgs, config: &mut EngineConfig) {
    let (args, scheduling) = (&args.scheduling, &mut config.scheduling);
    set(&mut scheduling.policy, &args.policy);
    set(&mut scheduling.queue, &args.queue);
    set(
        &mut scheduling.long_prefill_token_threshold,
        &args.long_prefill_token_threshold,
    );
    set(&mut scheduling.watermark_blocks, &args.watermark_blocks);
    set(&mut scheduling.preemption, &args.preemption_mode);
    scheduling.mixed_chunk |= args.mixed_chunk;
    let reserved = &mut scheduling.reserved_decode;
    set(
        &mut reserved.conservativeness,
        &args.schedule_conservativeness,
    );
    set(&mut reserved.max_prefill_tokens, &args.max_prefill_tokens);
    let time = &mut scheduling.time_budget;
    let budget_ns = args.time_budget_ms.map(|ms| ms * 1_000_000);
    set(&mut time.step_budget_ns, &budget_ns);
    set(&mut time.min_chunk, &args.time_budget_min_chunk);
    let adaptive = &mut scheduling.adaptive_load;
    set(&mut adaptive.max_chunk, &args.adaptive_max_chunk);
    set(&mut adaptive.min_chunk, &args.adaptive_min_chunk);
    set(&mut adaptive.base, &args.adaptive_base);
    set(&mut adaptive.threshold, &args.adaptive_threshold);
    let shrinking = &mut scheduling.shrinking;
    set(&mut shrinking.high, &args.shrinking_high);
    set(&mut shrinking.low, &args.shrinking_low);
    set(&mut shrinking.stages, &args.shrinking_stages);
    set(&mut shrinking.max_tokens, &args.shrinking_max_tokens);
}

fn set_cache(args: &ServeEngineArgs, config: &mut EngineConfig) -> Result<()> {
    let args = &args.cache;
    set(&mut config.cache.hash, &args.prefix_caching_hash_algo);
    set(&mut config.cache.eviction, &args.radix_eviction_policy);
    let tiers = &mut config.tiers;
    set(
        &mut tiers.host_bytes,
        &args.tier_host_bytes.map(|size| size.0),
    );
    set(
        &mut tiers.disk_bytes,
        &args.tier_disk_bytes.map(|size| size.0),
    );
    if let Some(dir) = &args.tier_disk {
        let Some(text) = dir.to_str() else {
            bail!("--tier-disk {}: must be valid UTF-8", dir.display());
        };
        tiers.disk_dir = Some(text.to_owned());
    }
    if args.tier_redis.is_some() {
        tiers.redis_url.clone_from(&args.tier_redis);
    }
    Ok(())
}

/// Blocks of the KV pool and of the swap pool, from bytes where no number is given.
fn size_pools(
    args: &ServeEngineArgs,
    file: &ConfigFile,
    model: &LlamaConfig,
    config: &mut EngineConfig,
) -> Result<()> {
    let per_token = kv_bytes_per_token(model, config.kv_dtype);
    let block_bytes = per_token.saturating_mul(config.block_size) as u64;
    if let Some(blocks) = args.num_blocks {
        config.num_blocks = blocks;
    } else if args.kv_bytes.is_some() || !file.has("num_blocks") {
        let bytes = args.kv_bytes.map_or(DEFAULT_KV_BYTES, |size| size.0);
        config.num_blocks = (bytes / block_bytes) as usize;
        if config.num_blocks == 0 {
            bail!(
                "--kv-bytes {bytes}: one block of {} tokens takes {block_bytes} bytes; raise \
                 --kv-bytes or lower --block-size",
                config.block_size
            );
        }
    }
    let mut bytes = (config.num_blocks as u64).saturating_mul(block_bytes);
    if let Some(space) = args.scheduling.swap_space {
        let image = block_image_bytes(model, config.kv_dtype, config.block_size) as u64;
        config.scheduling.swap_blocks = (space.0 / image) as usize;
        if config.scheduling.swap_blocks == 0 {
            bail!(
                "--swap-space {}: one block takes {image} bytes of it; raise it",
                space.0
            );
        }
    }
    if config.scheduling.preemption == Preemption::Swap {
        let swap = config.scheduling.swap_blocks as u64;
        bytes = bytes.saturating_add(swap.saturating_mul(block_bytes));
    }
    check_memory(bytes.saturating_add(config.tiers.host_bytes))
}

/// Refuses pools that this machine cannot hold: allocating them would end the process.
fn check_memory(bytes: u64) -> Result<()> {
    match machine::available_bytes() {
        Some(available) if bytes > available => bail!(
            "the KV pool, with swap space and host tier, would need {bytes} bytes and {available} \
             are available; lower --kv-bytes or --num-blocks, --swap-space or --tier-host-bytes"
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
