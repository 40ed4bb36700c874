//! Host cost of the bookkeeping: digests of blocks, lookups, allocation and release.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pb_contract::{HashAlgorithm, PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, KvManager};

const BLOCK_SIZE: usize = 16;
const TOKENS: usize = 50_000;
const DIGESTS: [HashAlgorithm; 3] = [
    HashAlgorithm::Blake3,
    HashAlgorithm::Sha256,
    HashAlgorithm::Xxh3,
];

fn config(prefix_cache: PrefixCacheKind, hash: HashAlgorithm) -> KvConfig {
    KvConfig {
        hash,
        ..KvConfig::new(BLOCK_SIZE, 2 * TOKENS / BLOCK_SIZE, prefix_cache)
    }
}

fn sequence(config: &KvConfig, first: TokenId) -> HashedTokens {
    let mut seq = config.sequence(&CacheScope::default());
    seq.extend(&(first..first + TOKENS as TokenId).collect::<Vec<_>>());
    seq
}

fn hashing(c: &mut Criterion) {
    let tokens: Vec<TokenId> = (0..TOKENS as TokenId).collect();
    let mut group = c.benchmark_group("block_hash_tokens");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for hash in DIGESTS {
        let config = config(PrefixCacheKind::HashChain, hash);
        group.bench_function(format!("{hash:?}"), |b| {
            b.iter_with_large_drop(|| {
                let mut seq = config.sequence(&CacheScope::default());
                seq.extend(black_box(&tokens));
                seq
            });
        });
    }
    group.finish();
}

/// XXH3 compares tokens on every hit, the others trust the digest.
fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("full_hit_blocks");
    group.throughput(Throughput::Elements((TOKENS / BLOCK_SIZE) as u64));
    for hash in DIGESTS {
        let config = config(PrefixCacheKind::HashChain, hash);
        // OK because a benchmark with a broken set-up should stop.
        let mut kv = KvManager::new(config).unwrap();
        let seq = sequence(&config, 0);
        assert!(kv.allocate(RequestId(0), &seq, 0, &Hit::default(), TOKENS));
        group.bench_function(format!("{hash:?}"), |b| {
            b.iter(|| kv.lookup(black_box(&seq)));
        });
    }
    group.finish();
}

/// One prompt that nobody has seen comes, is computed and goes: in the chain every block is named
/// and evicts another.
fn allocate_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate_free_blocks");
    group.throughput(Throughput::Elements((TOKENS / BLOCK_SIZE) as u64));
    for (name, kind, hash) in [
        ("None", PrefixCacheKind::None, HashAlgorithm::Blake3),
        (
            "HashChain",
            PrefixCacheKind::HashChain,
            HashAlgorithm::Blake3,
        ),
        (
            "HashChain_Xxh3",
            PrefixCacheKind::HashChain,
            HashAlgorithm::Xxh3,
        ),
    ] {
        let config = config(kind, hash);
        // OK because a benchmark with a broken set-up should stop.
        let mut kv = KvManager::new(config).unwrap();
        let mut first = 0;
        group.bench_function(name, |b| {
            let next = || {
                first += TOKENS as TokenId;
                sequence(&config, first % 1_000_000_000)
            };
            let cycle = |seq: &mut HashedTokens| {
                assert!(kv.allocate(RequestId(0), seq, 0, &Hit::default(), TOKENS));
                kv.commit(RequestId(0), TOKENS);
                kv.free(RequestId(0));
            };
            b.iter_batched_ref(next, cycle, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, hashing, lookup, allocate_and_free);
criterion_main!(benches);
