//! What a lookup may find, and when.

use pb_contract::{PrefixCacheKind, RequestId};
use pb_kv::{AdapterKey, CacheScope, Hit};

use crate::{Subject, every_cache};

const SIZES: [usize; 3] = [1, 4, 16];

#[test]
fn a_hit_is_whole_blocks_and_leaves_a_token_to_compute() {
    // vllm #11186, #17999, nano-vllm #144 (all cached), vllm #54607 (shorter than a block).
    every_cache(&SIZES, 40, |s| {
        let (b, k) = (s.block_size(), 5);
        let tokens = |n: usize| 0..n as u32;
        let whole = s.seq(tokens(k * b));
        s.cache_all(0, &whole);
        assert_eq!(s.hit_tokens(&whole), s.shared((k - 1) * b));
        assert_eq!(s.hit_tokens(&s.seq(tokens(k * b + 1))), s.shared(k * b));
        assert_eq!(s.hit_tokens(&s.seq(tokens(k * b + 7 * b))), s.shared(k * b));
        assert_eq!(s.hit_tokens(&s.seq(tokens(b))), 0);
        for n in 1..=b {
            assert_eq!(s.hit_tokens(&s.seq(tokens(n))), 0, "{n} tokens");
        }
        for n in 1..=k * b {
            let expected = s.shared((n - 1) / b * b);
            assert_eq!(s.hit_tokens(&s.seq(tokens(n))), expected, "{n} tokens");
        }
    });
}

#[test]
fn the_worked_cases_come_out() {
    let case = |block_size: usize, known: Vec<u32>, asked: Vec<u32>, hit: usize| {
        every_cache(&[block_size], 300, |s| {
            s.cache_all(0, &s.seq(known.clone()));
            let asked = s.seq(asked.clone());
            assert_eq!(s.admit(1, &asked), s.shared(hit));
            assert_eq!(s.table(1).len(), asked.len().div_ceil(block_size));
        });
    };
    // 156 blocks of 16 are hit, 504 tokens are fresh.
    case(
        16,
        (1..=2500).collect(),
        (1..=2500).chain(5000..5500).collect(),
        2496,
    );
    // Token 5 is another: nothing is hit, all 64 tokens are fresh.
    let altered = |at: u32| if at == 104 { 9999 } else { at };
    case(
        16,
        (100..164).collect(),
        (100..164).map(altered).collect(),
        0,
    );
    // 96 blocks of 32 are hit, 928 tokens are fresh.
    let shared: Vec<u32> = (1..=3100).collect();
    let known = shared.iter().copied().chain(10_000..10_900).collect();
    case(
        32,
        known,
        shared.into_iter().chain(20_000..20_900).collect(),
        3072,
    );
}

#[test]
fn a_lookup_changes_nothing() {
    every_cache(&SIZES, 12, |s| {
        let b = s.block_size() as u32;
        let mut undisturbed = Subject::new(*s.cache.config());
        for s in [&mut *s, &mut undisturbed] {
            s.cache_all(0, &s.seq(0..4 * b));
            s.cache_all(1, &s.seq((0..2 * b).chain(90..90 + b)));
            s.admit(2, &s.seq(500..500 + 2 * b));
        }
        let seen = |s: &Subject| {
            let cache = &s.cache;
            let state = (cache.free_queue(), cache.buckets(), cache.evicted_total());
            (state, s.table(2), cache.live_requests())
        };
        let before = seen(s);
        let asked = s.seq((0..3 * b).chain(70..70 + b));
        let first = s.cache.lookup(&asked);
        for _ in 0..5 {
            assert_eq!(s.cache.lookup(&asked), first);
            assert_eq!(seen(s), before);
        }
        assert_eq!(first.blocks.len(), s.shared(3));
        // Nor does it make anything more recently used: the same victims go.
        let [mut victims, mut expected] = [vec![], vec![]];
        for (s, victims) in [(s, &mut victims), (&mut undisturbed, &mut expected)] {
            for round in 0..3 {
                let tokens = 800 + 100 * round..800 + 100 * round + 2 * b;
                s.admit(3 + u64::from(round), &s.seq(tokens));
                victims.push(s.cache.take_moves().evicted);
            }
        }
        assert_eq!(victims, expected);
    });
}

#[test]
fn scopes_do_not_share() {
    // vllm #3264, #30931 (same name, other weights), #44701 (name and salt alike).
    let adapter = |name: &str, digest: u8| {
        Some(AdapterKey {
            name: name.to_owned(),
            digest: [digest; 32],
        })
    };
    let salt = |salt: &str| Some(salt.to_owned());
    let scope = |identity: u8, adapter: Option<AdapterKey>, salt: Option<String>| CacheScope {
        identity: [identity; 32],
        adapter,
        salt,
    };
    let scopes = [
        scope(0, None, None),
        scope(1, None, None),
        scope(0, adapter("x", 0), None),
        scope(0, adapter("x", 1), None),
        scope(0, adapter("y", 0), None),
        scope(0, None, salt("x")),
        scope(0, None, salt("y")),
        scope(0, None, salt("")),
        scope(0, adapter("x", 0), salt("x")),
        scope(1, adapter("x", 0), salt("x")),
    ];
    every_cache(&SIZES, 60, |s| {
        let n = 3 * s.block_size() as u32 + 1;
        for (i, scope) in scopes.iter().enumerate() {
            let seq = s.scoped(scope, 0..n);
            assert_eq!(s.hit_tokens(&seq), 0, "{scope:?} finds what another left");
            s.cache_all(i as u64, &seq);
            for known in &scopes[..=i] {
                let seq = s.scoped(known, 0..n);
                assert_eq!(s.hit_tokens(&seq), s.shared(n as usize - 1), "{known:?}");
            }
        }
    });
}

#[test]
fn what_was_never_computed_is_never_found() {
    // vllm #7822: aborted after scheduling, before execution.
    every_cache(&SIZES, 20, |s| {
        let b = s.block_size();
        let seq = s.seq(0..3 * b as u32);
        let longer = s.seq(0..6 * b as u32);
        s.admit(0, &seq);
        s.free(0);
        assert_eq!(s.hit_tokens(&longer), 0);
        // Also when only the later part of a request was not computed.
        s.admit(1, &seq);
        s.commit(1, &seq);
        assert!(s.grow(1, &longer, seq.len()));
        s.free(1);
        let longest = s.seq(0..8 * b as u32);
        assert_eq!(s.hit_tokens(&longest), s.shared(3 * b));
        // And when the step failed.
        let other = s.seq(1000..1000 + 4 * b as u32);
        s.admit(2, &other);
        s.cache.forget_uncomputed(RequestId(2), 0);
        s.free(2);
        assert_eq!(s.hit_tokens(&other), 0);
        assert_eq!(s.cache.free_blocks(), s.cache.usable_blocks());
    });
}

#[test]
fn computed_prefixes_are_found_while_their_request_runs_and_after() {
    every_cache(&SIZES, 20, |s| {
        let b = s.block_size();
        let seq = s.seq(0..3 * b as u32 + 1);
        s.admit(0, &seq);
        s.commit(0, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
        let table = s.table(0);
        assert_eq!(s.admit(1, &seq), s.shared(3 * b));
        let shared = s.shared(3);
        assert_eq!(s.table(1)[..shared], table[..shared]);
        for &block in &table[..shared] {
            assert_eq!(s.cache.ref_count(block), 2);
        }
        s.free(1);
        s.finish(0, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
        // Preempted, it finds its own blocks again.
        let again = s.seq(700..700 + 2 * b as u32 + 1);
        s.admit(2, &again);
        s.commit(2, &again);
        s.free(2);
        assert_eq!(s.admit(2, &again), s.shared(2 * b));
        // nano-vllm #211, #233: length and table agree after preemption and hit.
        assert_eq!(s.table(2).len(), again.len().div_ceil(b));
    });
}

#[test]
fn an_evicted_prefix_is_not_found_and_an_old_hit_is_looked_up_anew() {
    // vllm #4764, #4761, #5364, #18957.
    every_cache(&SIZES, 6, |s| {
        let b = s.block_size();
        let old = s.seq(0..4 * b as u32);
        s.cache_all(0, &old);
        assert_eq!(s.hit_tokens(&old), s.shared(3 * b));
        let hungry = s.seq(800..800 + 6 * b as u32);
        s.admit(1, &hungry);
        assert_eq!(s.hit_tokens(&old), 0);
        assert_eq!(s.cache.evicted_total() as usize, s.shared(4));
        let moves = s.cache.take_moves();
        assert_eq!(moves.evicted.len(), s.shared(4));
        for evicted in &moves.evicted {
            assert!(old.hashes().contains(&evicted.hash), "{evicted:?}");
        }
        s.commit(1, &hungry);
        s.finish(1, &hungry);
        assert_eq!(s.admit(2, &old), 0);
    });
}

#[test]
fn the_tail_of_a_prefix_goes_before_its_head() {
    every_cache(&SIZES, 6, |s| {
        let b = s.block_size();
        let seq = s.seq(0..4 * b as u32 + 1);
        let known = s.seq(0..4 * b as u32);
        s.cache_all(0, &known);
        assert_eq!(s.hit_tokens(&seq), s.shared(4 * b));
        // Two blocks hold no data, so three more take one that does.
        s.admit(1, &s.seq(900..900 + 3 * b as u32));
        let left = s.hit_tokens(&seq);
        let whole_leaf = s.cache.config().prefix_cache == PrefixCacheKind::Radix;
        assert_eq!(left, if whole_leaf { 0 } else { s.shared(3 * b) });
    });
}

#[test]
fn one_of_two_equal_blocks_can_go() {
    // Two requests compute the same without looking; whatever becomes of the second copy, the
    // prefix stays one that can be hit.
    every_cache(&SIZES, 12, |s| {
        let b = s.block_size();
        let seq = s.seq(0..3 * b as u32 + 1);
        s.admit_cold(0, &seq);
        s.admit_cold(1, &seq);
        s.commit(0, &seq);
        s.commit(1, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
        s.finish(0, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
        s.finish(1, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
        // A holder of one keeps it through the eviction of the other.
        assert_eq!(s.admit(2, &seq), s.shared(3 * b));
        let free = s.cache.free_blocks() * b;
        s.admit_cold(3, &s.seq(2000..2000 + free as u32));
        assert_eq!(s.cache.free_blocks(), 0);
        assert_eq!(s.hit_tokens(&seq), s.shared(3 * b));
    });
}

#[test]
fn two_equal_prompts_advance_chunk_by_chunk() {
    // sglang #38319, #984: interleaved, so that each finds the other's pages in its way.
    every_cache(&SIZES, 40, |s| {
        let b = s.block_size();
        let all: Vec<u32> = (0..6 * b as u32 + 1).collect();
        let mut seqs = [s.seq([]), s.seq([])];
        for chunk in all.chunks(b + 1) {
            for (id, seq) in seqs.iter_mut().enumerate() {
                let computed = seq.len();
                seq.extend(chunk);
                assert!(s.grow(id as u64, seq, computed));
            }
            for (id, seq) in seqs.iter().enumerate() {
                s.commit(id as u64, seq);
                assert_eq!(s.table(id as u64).len(), seq.len().div_ceil(b));
            }
            // A tree holds each page once, and both requests point at it.
            let whole = seqs[0].len() / b;
            if s.cache.config().prefix_cache == PrefixCacheKind::Radix {
                assert_eq!(s.table(0)[..whole], s.table(1)[..whole]);
            }
            assert_eq!(
                s.hit_tokens(&seqs[0]),
                s.shared((seqs[0].len() - 1) / b * b)
            );
        }
        let [one, other] = seqs;
        s.finish(0, &one);
        s.free(1);
        assert_eq!(s.hit_tokens(&other), s.shared(6 * b));
        assert_eq!(s.cache.free_blocks(), 40);
    });
}

#[test]
fn a_shortened_hit_is_a_hit() {
    every_cache(&SIZES, 20, |s| {
        let b = s.block_size();
        let seq = s.seq(0..4 * b as u32 + 1);
        s.cache_all(0, &seq);
        let mut hit = s.cache.lookup(&seq);
        hit.truncate(2);
        let new = seq.len() - hit.tokens(b);
        assert!(s.cache.allocate(RequestId(1), &seq, 0, &hit, new));
        s.check();
        s.commit(1, &seq);
        let table = s.table(1);
        assert_eq!(table.len(), 5);
        assert_eq!(
            Hit {
                blocks: table[..s.shared(2)].to_vec()
            },
            hit
        );
        s.finish(1, &seq);
        assert_eq!(s.hit_tokens(&seq), s.shared(4 * b));
    });
}
