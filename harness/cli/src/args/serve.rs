//! The command line of `serve`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use pb_contract::{
    Eviction, HashAlgorithm, KvDtype, Numerics, PolicyKind, Preemption, PrefixCacheKind, Preset,
    QueueOrder,
};

use super::kv::KvArgs;
use super::names::{
    CACHES, EVICTIONS, HASHES, KV_DTYPES, NUMERICS, POLICIES, PREEMPTIONS, PRESETS, QUEUES, named,
};
use super::{KernelDevice, positive, threads};
use crate::size::ByteSize;

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench serve --model smollm2-135m
  prefillbench serve --model synthetic --numerics exact --port 0
  prefillbench serve --model ./model.gguf --max-batched-tokens 256 --prefix-cache none
  prefillbench serve --model smollm2-135m --preset sglang --page-size 1
  prefillbench serve --model smollm2-135m --lora-modules sql=./sql-lora poems=./poems-lora
  prefillbench serve --model smollm2-135m --device cuda --kv-dtype bf16
  prefillbench serve --model smollm2-135m --tier-host-bytes 2GiB --kv-bytes 256MiB
  prefillbench serve --model smollm2-135m --role prefill --kv-listen 127.0.0.1:9100

What an option does not say, --config does; what that does not say, --preset does.
One line with the address is printed when the server is ready; port 0 chooses a free one.")]
pub(crate) struct ServeArgs {
    /// Model: `smollm2-135m`, `synthetic`, a GGUF file or a Hugging Face directory.
    #[arg(long)]
    pub(crate) model: String,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: std::net::IpAddr,
    /// Port to listen on; 0 chooses one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Name that requests use for the model; default: the model's own.
    #[arg(long)]
    pub(crate) served_model_name: Option<String>,
    /// LoRA adapters (PEFT folders) that requests may name as their model.
    #[arg(long, value_name = "NAME=DIR", num_args = 1..)]
    pub(crate) lora_modules: Vec<LoraModule>,
    /// Environment variable that holds the API key that clients must send.
    #[arg(long, value_name = "VAR")]
    pub(crate) api_key_env: Option<String>,
    /// Stop when standard input closes, so that no server outlives its harness.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// Where the forward pass runs; the cache of `cuda` and `emulated` is bf16, f16 or fp8-e4m3.
    #[arg(long, value_enum, default_value_t = KernelDevice::Cpu)]
    pub(crate) device: KernelDevice,
    /// Rows of the largest decode step that a device records as a graph; 0 records none
    /// [default: 64].
    #[arg(long, value_name = "ROWS")]
    pub(crate) device_graph_rows: Option<usize>,
    /// Times every N-th step of a device kernel by kernel, for `steps.csv` and `/kernel_times`; 0,
    /// the default, none.
    #[arg(long, value_name = "N")]
    pub(crate) device_times: Option<u64>,
    /// TOML file with keys of the engine's configuration, as `/server_info` shows it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The engine.
    #[command(flatten)]
    pub(crate) engine: ServeEngineArgs,
    /// Other workers.
    #[command(flatten)]
    pub(crate) kv: KvArgs,
}

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// A LoRA adapter, typed as `NAME=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoraModule {
    /// Name in requests.
    pub(crate) name: String,
    /// PEFT folder.
    pub(crate) dir: PathBuf,
}

impl FromStr for LoraModule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, dir)) if !name.is_empty() && !dir.is_empty() => Ok(LoraModule {
                name: name.to_owned(),
                dir: PathBuf::from(dir),
            }),
            _ => Err("write it as NAME=DIR, for example sql=./sql-lora".to_owned()),
        }
    }
}

/// What the engine is asked to be. All of it may be left open.
#[derive(Debug, Default, Args)]
pub(crate) struct ServeEngineArgs {
    /// Named set of rules; other options win over it.
    #[arg(long, value_parser = named::<Preset>(PRESETS))]
    pub(crate) preset: Option<Preset>,
    /// Arithmetic [default: fast].
    #[arg(long, value_parser = named::<Numerics>(NUMERICS))]
    pub(crate) numerics: Option<Numerics>,
    /// KV element type (f64 numerics keep an f64 cache) [default: f32].
    #[arg(long, visible_alias = "kv-cache-dtype", value_parser = named::<KvDtype>(KV_DTYPES))]
    pub(crate) kv_dtype: Option<KvDtype>,
    /// Compute threads; default: all cores.
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Token budget of a step; default: 512, or the whole context with chunking off.
    #[arg(long, visible_aliases = ["max-num-batched-tokens", "chunked-prefill-size"])]
    pub(crate) max_batched_tokens: Option<usize>,
    /// Sequences that may run at once [default: 64].
    #[arg(long, visible_alias = "max-running-requests")]
    pub(crate) max_num_seqs: Option<usize>,
    /// Cut prompts into chunks; default: on, off under the monolithic policies.
    #[arg(long, value_enum)]
    pub(crate) chunked: Option<Switch>,
    /// Tokens in a KV block [default: 16].
    #[arg(long, visible_alias = "page-size", value_parser = positive)]
    pub(crate) block_size: Option<usize>,
    /// Blocks in the KV pool; default: from --kv-bytes.
    #[arg(
        long,
        visible_alias = "num-gpu-blocks-override",
        conflicts_with = "kv_bytes",
        value_parser = positive
    )]
    pub(crate) num_blocks: Option<usize>,
    /// Size of the KV pool, for example 512MiB or 2GiB [default: 1GiB].
    #[arg(long, value_name = "SIZE")]
    pub(crate) kv_bytes: Option<ByteSize>,
    /// Longest prompt plus output; default: the model's context.
    #[arg(long, visible_alias = "context-length")]
    pub(crate) max_model_len: Option<usize>,
    /// Seed for requests that name none [default: 0].
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// What runs next.
    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,
    /// What is kept of finished requests.
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// Options of the scheduler.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Scheduling")]
pub(crate) struct SchedulingArgs {
    /// Policy [default: token_budget].
    #[arg(long, value_parser = named::<PolicyKind>(POLICIES))]
    pub(crate) policy: Option<PolicyKind>,
    /// Order of the waiting queue [default: fcfs].
    #[arg(
        long,
        visible_aliases = ["scheduling-policy", "schedule-policy"],
        value_parser = named::<QueueOrder>(QUEUES)
    )]
    pub(crate) queue: Option<QueueOrder>,
    /// Tokens of one prompt in a step at most; 0 is no limit.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) long_prefill_token_threshold: Option<usize>,
    /// Blocks to leave free when a request is admitted beside others.
    #[arg(long, value_name = "BLOCKS")]
    pub(crate) watermark_blocks: Option<usize>,
    /// What happens to the KV of a preempted request [default: recompute].
    #[arg(long, value_parser = named::<Preemption>(PREEMPTIONS))]
    pub(crate) preemption_mode: Option<Preemption>,
    /// Host memory for swapped requests.
    #[arg(long, value_name = "SIZE")]
    pub(crate) swap_space: Option<ByteSize>,
    /// Mix prompt chunks into decode steps (prefill_first).
    #[arg(long, visible_alias = "enable-mixed-chunk")]
    pub(crate) mixed_chunk: bool,
    /// Scales the tokens reserved for running decodes (SGLang's rules).
    #[arg(long, value_name = "FACTOR")]
    pub(crate) schedule_conservativeness: Option<f64>,
    /// Prompt tokens admitted in one step at most (SGLang's rules).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) max_prefill_tokens: Option<usize>,
    /// Predicted time of a step at most (time_budget).
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) time_budget_ms: Option<u64>,
    /// Smallest chunk, whatever its predicted time (time_budget).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) time_budget_min_chunk: Option<usize>,
    /// Chunk without an active decode (adaptive_load).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) adaptive_max_chunk: Option<usize>,
    /// Chunk at the threshold and above (adaptive_load).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) adaptive_min_chunk: Option<usize>,
    /// Chunk that the interpolation starts from (adaptive_load).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) adaptive_base: Option<usize>,
    /// Active decodes from which the chunk is smallest (adaptive_load).
    #[arg(long, value_name = "DECODES", value_parser = positive)]
    pub(crate) adaptive_threshold: Option<usize>,
    /// Chunk of the first stage (shrinking).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) shrinking_high: Option<usize>,
    /// Chunk of the last stage (shrinking).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) shrinking_low: Option<usize>,
    /// Number of stages (shrinking).
    #[arg(long, value_name = "COUNT", value_parser = positive)]
    pub(crate) shrinking_stages: Option<usize>,
    /// Prompt tokens over which the stages are spread (shrinking).
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) shrinking_max_tokens: Option<usize>,
}

/// Options of the prefix cache and the tiers below it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Prefix cache and tiers")]
pub(crate) struct CacheArgs {
    /// Prefix cache [default: hash-chain].
    #[arg(long, value_parser = named::<PrefixCacheKind>(CACHES))]
    pub(crate) prefix_cache: Option<PrefixCacheKind>,
    /// Digest of the block-hash chain [default: blake3].
    #[arg(long, value_parser = named::<HashAlgorithm>(HASHES))]
    pub(crate) prefix_caching_hash_algo: Option<HashAlgorithm>,
    /// Which leaf of the radix tree goes first [default: lru].
    #[arg(long, value_parser = named::<Eviction>(EVICTIONS))]
    pub(crate) radix_eviction_policy: Option<Eviction>,
    /// Host memory for evicted blocks.
    #[arg(long, visible_alias = "cpu-offload", value_name = "SIZE")]
    pub(crate) tier_host_bytes: Option<ByteSize>,
    /// Directory for evicted blocks, kept for the next server.
    #[arg(long, value_name = "DIR")]
    pub(crate) tier_disk: Option<PathBuf>,
    /// What that directory may hold.
    #[arg(long, value_name = "SIZE")]
    pub(crate) tier_disk_bytes: Option<ByteSize>,
    /// Redis-compatible server for evicted blocks, as redis://HOST:PORT/DB; a password is taken
    /// from PREFILLBENCH_REDIS_PASSWORD.
    #[arg(long, value_name = "URL")]
    pub(crate) tier_redis: Option<String>,
}
