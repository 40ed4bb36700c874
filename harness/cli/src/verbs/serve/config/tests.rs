use clap::Parser;
use pb_contract::{Eviction, HashAlgorithm, QueueOrder, RunningOrder};
use pb_model::synth::{self, Kind, Size};

use super::*;
use crate::args::{Cli, ServeArgs, Verb};

fn typed(line: &str) -> ServeArgs {
    let words = ["prefillbench", "serve", "--model", "m"];
    let words = words.into_iter().chain(line.split_whitespace());
    match Cli::try_parse_from(words).map(|cli| cli.verb) {
        Ok(Verb::Serve(args)) => *args,
        other => panic!("{line}: {other:?}"),
    }
}

fn tiny() -> LlamaConfig {
    synth::model(Kind::Sharp, Size::Tiny, 1).unwrap().config
}

fn config(file: &str, line: &str) -> Result<EngineConfig> {
    let file = ConfigFile::parse(file)?;
    resolve(
        &typed(&format!("--kv-bytes 1MiB {line}")).engine,
        &file,
        &tiny(),
    )
}

fn error(file: &str, line: &str) -> String {
    format!("{:#}", config(file, line).expect_err(line))
}

#[test]
fn what_is_left_open_follows_from_the_model() {
    let model = tiny();
    let c = resolve(&typed("").engine, &ConfigFile::default(), &model).unwrap();
    assert_eq!((c.numerics, c.kv_dtype), (Numerics::Fast, KvDtype::F32));
    assert_eq!(
        (c.max_model_len, c.max_batched_tokens),
        (model.max_position, 512)
    );
    assert_eq!((c.block_size, c.max_num_seqs, c.chunked), (16, 64, true));
    // Keys and values of f32: 2 * 4 bytes for every layer and KV element of a token.
    let block = 16 * 8 * model.layers * model.kv_heads * model.d_head;
    assert_eq!(c.num_blocks, (1 << 30) / block);
    assert_eq!(c.scheduling, Scheduling::default());
    let off = config("", "--chunked off").unwrap();
    assert_eq!(off.max_batched_tokens, model.max_position);
    let f64 = config("", "--numerics f64 --kv-dtype bf16").unwrap();
    assert_eq!(f64.kv_dtype, KvDtype::F64);
    let whole = config("", "--policy decode_priority_monolithic").unwrap();
    assert!(!whole.chunked && whole.max_batched_tokens == model.max_position);
}

#[test]
fn options_win_over_the_file_and_the_file_over_the_preset() {
    let file = "preset = \"sglang\"\nnum_blocks = 77\nseed = 5\nmax_num_seqs = 9\n\
                [scheduling]\nqueue = \"lpm\"\n[scheduling.reserved_decode]\n\
                conservativeness = 0.5\n[cache]\neviction = \"lfu\"\n";
    let parsed = ConfigFile::parse(file).unwrap();
    let c = resolve(
        &typed("--seed 6 --queue dfs_weight").engine,
        &parsed,
        &tiny(),
    )
    .unwrap();
    assert_eq!(c.scheduling.policy, PolicyKind::PrefillFirst);
    assert_eq!(c.prefix_cache, PrefixCacheKind::Radix);
    assert_eq!((c.num_blocks, c.seed, c.max_num_seqs), (77, 6, 9));
    assert_eq!(c.scheduling.queue, QueueOrder::DfsWeight);
    assert_eq!(c.cache.eviction, Eviction::Lfu);
    let reserved = c.scheduling.reserved_decode;
    assert!(
        reserved.enabled,
        "a table given in part keeps its other keys"
    );
    assert_eq!(reserved.conservativeness, 0.5);
    let c = resolve(
        &typed("--preset vllm-v1 --num-blocks 8").engine,
        &parsed,
        &tiny(),
    )
    .unwrap();
    assert_eq!(c.scheduling.running_order, RunningOrder::ListOrder);
    assert_eq!(
        (c.cache.hash, c.cache.null_block),
        (HashAlgorithm::Sha256, true)
    );
    assert_eq!((c.num_blocks, c.scheduling.queue), (8, QueueOrder::Lpm));
}

#[test]
fn names_of_other_servers_are_understood() {
    let line = "--kv-cache-dtype fp8 --max-num-batched-tokens 99 --scheduling-policy priority \
                --prefix-caching-hash-algo xxhash --page-size 4 --max-running-requests 3 \
                --context-length 64 --long-prefill-token-threshold 33 --watermark-blocks 2";
    let c = config("", line).unwrap();
    assert_eq!((c.kv_dtype, c.max_batched_tokens), (KvDtype::Fp8E4m3, 99));
    assert_eq!(
        (c.scheduling.queue, c.block_size),
        (QueueOrder::Priority, 4)
    );
    assert_eq!((c.cache.hash, c.max_num_seqs), (HashAlgorithm::Xxh3, 3));
    assert_eq!((c.max_model_len, c.scheduling.watermark_blocks), (64, 2));
    assert_eq!(c.scheduling.long_prefill_token_threshold, 33);
}

#[test]
fn sizes_become_blocks() {
    let model = tiny();
    let c = config("", "--preemption-mode swap --swap-space 2MiB").unwrap();
    let image = block_image_bytes(&model, KvDtype::F32, 16);
    assert_eq!(c.scheduling.swap_blocks, (2 << 20) / image);
    let line = "--tier-host-bytes 3MiB --tier-disk /somewhere --tier-disk-bytes 4MB";
    let tiers = config("", line).unwrap().tiers;
    assert_eq!((tiers.host_bytes, tiers.disk_bytes), (3 << 20, 4_000_000));
    assert_eq!(tiers.disk_dir.as_deref(), Some("/somewhere"));
    let line = "--policy time_budget --time-budget-ms 20 --time-budget-min-chunk 8";
    let time = config("", line).unwrap().scheduling.time_budget;
    assert_eq!((time.step_budget_ns, time.min_chunk), (20_000_000, 8));
    let line = "--policy adaptive_load --adaptive-max-chunk 5 --adaptive-min-chunk 2 \
                --adaptive-base 4 --adaptive-threshold 7";
    let a = config("", line).unwrap().scheduling.adaptive_load;
    assert_eq!(
        (a.max_chunk, a.min_chunk, a.base, a.threshold),
        (5, 2, 4, 7)
    );
    let line = "--policy shrinking --shrinking-high 9 --shrinking-low 3 --shrinking-stages 2 \
                --shrinking-max-tokens 99";
    let s = config("", line).unwrap().scheduling.shrinking;
    assert_eq!((s.high, s.low, s.stages, s.max_tokens), (9, 3, 2, 99));
}

#[test]
fn options_without_an_effect_are_refused() {
    let table = [
        ("--time-budget-ms 20", "--policy time_budget"),
        ("--adaptive-base 20", "--policy adaptive_load"),
        ("--shrinking-low 20", "--policy shrinking"),
        ("--max-prefill-tokens 20", "--preset sglang"),
        ("--swap-space 1MiB", "--preemption-mode swap"),
        ("--preemption-mode swap", "--swap-space"),
        ("--preemption-mode swap --swap-space 1", "--swap-space 1"),
        (
            "--prefix-cache radix --prefix-caching-hash-algo sha256",
            "hash-chain",
        ),
        ("--radix-eviction-policy lfu", "--prefix-cache radix"),
        ("--tier-disk-bytes 1MiB", "--tier-disk DIR"),
        ("--tier-disk /x", "--tier-disk-bytes"),
        (
            "--prefix-cache none --tier-host-bytes 1MiB",
            "a prefix cache",
        ),
        ("--prefix-cache none --queue lpm", "a prefix cache"),
        (
            "--chunked off --max-batched-tokens 8",
            "max_batched_tokens = 8",
        ),
    ];
    for (line, needle) in table {
        let message = error("", line);
        assert!(message.contains(needle), "{line}: {message}");
    }
}

#[test]
fn a_wrong_key_of_the_file_is_named() {
    let table = [
        ("max_nun_seqs = 3", "max_nun_seqs"),
        ("max_num_seqs = \"many\"", "max_num_seqs"),
        ("max_num_seqs = 0", "max_num_seqs = 0"),
        ("[scheduling]\npolicy = \"fifo\"", "scheduling.policy"),
        ("[cache]\nblok = 3", "blok"),
        ("preset = \"trt\"", "vllm-v1 or sglang"),
        ("kv_dtype = \"f64\"", "kv_dtype"),
        ("a = ", "line 1"),
    ];
    for (file, needle) in table {
        let message = error(file, "");
        assert!(message.contains(needle), "{file}: {message}");
    }
}
