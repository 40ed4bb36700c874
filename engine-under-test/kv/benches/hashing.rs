//! Host cost of the bookkeeping: digests of blocks, lookups, allocation and release.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pb_contract::{PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, KvManager};

const BLOCK_SIZE: usize = 16;
const TOKENS: usize = 50_000;

fn sequence(first: TokenId, len: usize) -> HashedTokens {
    let mut seq = HashedTokens::new(BLOCK_SIZE, &CacheScope::default());
    seq.extend(&(first..first + len as TokenId).collect::<Vec<_>>());
    seq
}

fn manager(prefix_cache: PrefixCacheKind) -> KvManager {
    KvManager::new(KvConfig::new(
        BLOCK_SIZE,
        2 * TOKENS / BLOCK_SIZE,
        prefix_cache,
    ))
    // OK because a benchmark with a broken set-up should stop.
    .unwrap()
}

fn hashing(c: &mut Criterion) {
    let tokens: Vec<TokenId> = (0..TOKENS as TokenId).collect();
    let mut group = c.benchmark_group("block_hash");
    group.throughput(Throughput::Elements(TOKENS as u64));
    group.bench_function("blake3_tokens", |b| {
        b.iter(|| {
            let mut seq = HashedTokens::new(BLOCK_SIZE, &CacheScope::default());
            seq.extend(black_box(&tokens));
            seq
        });
    });
    group.finish();
}

fn lookup(c: &mut Criterion) {
    let mut kv = manager(PrefixCacheKind::HashChain);
    let seq = sequence(0, TOKENS);
    assert!(kv.allocate(RequestId(0), &seq, 0, &Hit::default(), TOKENS));
    let mut group = c.benchmark_group("prefix_lookup");
    group.throughput(Throughput::Elements((TOKENS / BLOCK_SIZE) as u64));
    group.bench_function("full_hit_blocks", |b| b.iter(|| kv.lookup(black_box(&seq))));
    group.finish();
}

fn allocate_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate_free");
    group.throughput(Throughput::Elements((TOKENS / BLOCK_SIZE) as u64));
    for kind in [PrefixCacheKind::None, PrefixCacheKind::HashChain] {
        let mut kv = manager(kind);
        let mut first = 0;
        group.bench_function(format!("{kind:?}_blocks"), |b| {
            let next = || {
                first += TOKENS as TokenId;
                sequence(first % 1_000_000_000, TOKENS)
            };
            let cycle = |seq: HashedTokens| {
                assert!(kv.allocate(RequestId(0), &seq, 0, &Hit::default(), TOKENS));
                kv.free(RequestId(0));
            };
            b.iter_batched(next, cycle, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, hashing, lookup, allocate_and_free);
criterion_main!(benches);
