//! Host cost of the radix tree: matches in a tree of ten thousand nodes, by prompt length and page
//! size, and a request's whole life. Target of a match: 1 us and 2 ns a token.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pb_contract::{BlockId, Eviction, PrefixCacheKind, RequestId, Stream, TokenId};
use pb_kv::{CacheScope, HashedTokens, KvConfig, PrefixCache, RadixCache, RadixTree, Run};

const NODES: usize = 10_000;

/// A tree in which every prompt shares a first part with others: 100 families of two levels.
fn tree(page_size: usize) -> RadixTree {
    let mut tree = RadixTree::new(page_size, Eviction::Lru);
    let mut rng = Stream::new(1, "bench-radix");
    let mut random =
        |len: usize| -> Vec<TokenId> { (0..len).map(|_| rng.below(50_000) as TokenId).collect() };
    let families: Vec<_> = (0..100).map(|_| random(4 * page_size)).collect();
    let mut prompt = 0;
    while tree.state().nodes.len() < NODES {
        for _ in 0..100 {
            let mut key = families[prompt % families.len()].clone();
            key.extend(random(4 * page_size));
            tree.insert(&Run::bare(None, &key));
            prompt += 1;
        }
    }
    tree
}

/// A prompt that shares its start with one family and is stored in four parts.
fn store_prompt(tree: &mut RadixTree, page_size: usize, len: usize) -> Vec<TokenId> {
    let start = tree.state().nodes[0].first;
    let prompt: Vec<TokenId> = (start..start + len as TokenId).collect();
    let values: Vec<_> = (0..(len / page_size) as u32).map(BlockId).collect();
    tree.insert(&Run {
        values: &values,
        ..Run::bare(None, &prompt)
    });
    for quarter in 1..4 {
        tree.touch_and_split(None, &prompt[..quarter * len / 4]);
    }
    prompt
}

fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("radix_match");
    for page_size in [1, 16] {
        let mut tree = tree(page_size);
        for len in [128, 2048, 32_768] {
            let prompt = store_prompt(&mut tree, page_size, len);
            assert_eq!(tree.lookup(None, &prompt).tokens, len);
            group.throughput(Throughput::Elements(len as u64));
            let id = BenchmarkId::new(format!("lookup_page_{page_size}"), len);
            group.bench_function(id, |b| b.iter(|| tree.lookup(None, black_box(&prompt))));
            let id = BenchmarkId::new(format!("touch_page_{page_size}"), len);
            group.bench_function(id, |b| {
                b.iter(|| tree.touch_and_split(None, black_box(&prompt)));
            });
        }
    }
    group.finish();
}

/// Admission, two chunks, finish; the second prompt onwards evicts.
fn request(c: &mut Criterion) {
    let config = KvConfig::new(16, 4096, PrefixCacheKind::Radix);
    // OK because a benchmark with a broken set-up should stop.
    let mut cache = RadixCache::new(config).unwrap();
    let mut group = c.benchmark_group("radix_request");
    group.throughput(Throughput::Elements(2048));
    let mut next = 0;
    let mut sequence = || -> HashedTokens {
        let mut seq = config.sequence(&CacheScope::default());
        seq.extend(&(next..next + 2048).collect::<Vec<TokenId>>());
        next += 1;
        seq
    };
    group.bench_function("cold_2048_in_two_chunks", |b| {
        b.iter_batched(
            &mut sequence,
            |seq| {
                let hit = cache.lookup(&seq);
                assert!(cache.allocate(RequestId(0), &seq, 0, &hit, 1024));
                cache.commit(RequestId(0), &seq, 1024);
                assert!(cache.allocate(RequestId(0), &seq, 1024, &Default::default(), 1024));
                cache.commit(RequestId(0), &seq, 2048);
                cache.finish(RequestId(0), &seq);
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, matching, request);
criterion_main!(benches);
