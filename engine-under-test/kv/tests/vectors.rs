//! Published vectors: vLLM's own test and documentation, and the requirements' table of hits.

mod common;

use common::{admit, extend, free, ids, manager, manager_with, miss, scope, scoped, seq};
use pb_contract::{Buckets, RequestId};
use pb_kv::FreePlacement;

/// vLLM's tests/v1/core/test_prefix_caching.py: block size 16, 11 blocks with the null block.
#[test]
fn vllm_test_vector_of_prefix_caching() {
    let mut kv = manager_with(16, 11, true, FreePlacement::UnhashedToHead);
    let common = 0..48;
    let first = seq(16, common.clone().chain(std::iter::repeat_n(3, 7)));
    assert_eq!(first.len(), 55);
    assert_eq!(admit(&mut kv, 0, &first), 0);
    assert_eq!(kv.block_table(RequestId(0)), ids(&[1, 2, 3, 4]));

    let second = seq(16, common.chain(std::iter::repeat_n(4, 5)));
    assert_eq!(kv.lookup(&second).blocks, ids(&[1, 2, 3]));
    assert_eq!(admit(&mut kv, 1, &second), 48);
    assert_eq!(kv.block_table(RequestId(1)), ids(&[1, 2, 3, 5]));
    for block in ids(&[1, 2, 3]) {
        assert_eq!(kv.ref_count(block), 2);
    }
    assert_eq!(kv.free_blocks(), 5);
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 5,
            reclaimable: 0,
            free: 5
        }
    );

    free(&mut kv, 0);
    free(&mut kv, 1);
    assert_eq!(kv.free_queue(), ids(&[5, 4, 6, 7, 8, 9, 10, 3, 2, 1]));
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 0,
            reclaimable: 3,
            free: 7
        }
    );

    let all_miss = seq(16, 1000..1160);
    assert_eq!(admit(&mut kv, 2, &all_miss), 0);
    assert_eq!(
        kv.block_table(RequestId(2)),
        ids(&[5, 4, 6, 7, 8, 9, 10, 3, 2, 1])
    );
    assert_eq!((kv.free_blocks(), kv.evicted_total()), (0, 3));
    assert_eq!(kv.lookup(&first), miss());
}

/// The same vector under the older placement: everything freed goes to the tail.
#[test]
fn vllm_test_vector_with_the_older_placement() {
    let mut kv = manager_with(16, 11, true, FreePlacement::Append);
    admit(
        &mut kv,
        0,
        &seq(16, (0..48).chain(std::iter::repeat_n(3, 7))),
    );
    admit(
        &mut kv,
        1,
        &seq(16, (0..48).chain(std::iter::repeat_n(4, 5))),
    );
    free(&mut kv, 0);
    free(&mut kv, 1);
    assert_eq!(kv.free_queue(), ids(&[6, 7, 8, 9, 10, 4, 5, 3, 2, 1]));
}

/// vLLM's docs/design/prefix_caching.md, "Time 1" to "Time 7": block size 4, 10 blocks.
#[test]
fn vllm_documented_example() {
    let mut kv = manager_with(4, 10, false, FreePlacement::Append);
    // Time 1: 15 prompt tokens take four blocks, three of them full.
    let mut first = seq(4, 0..15);
    admit(&mut kv, 0, &first);
    assert_eq!(kv.block_table(RequestId(0)), ids(&[0, 1, 2, 3]));
    // Time 3: decoding fills block 3 and asks for block 4.
    first.push(15);
    extend(&mut kv, 0, &first, 15, 16);
    first.push(16);
    extend(&mut kv, 0, &first, 16, 17);
    assert_eq!(kv.block_table(RequestId(0)), ids(&[0, 1, 2, 3, 4]));
    // Time 4: 14 tokens of which ten are shared: two full blocks hit.
    let second = seq(4, (0..10).chain(100..104));
    assert_eq!(admit(&mut kv, 1, &second), 8);
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 1, 5, 6]));
    // Time 5 and 6: both finish.
    free(&mut kv, 0);
    assert_eq!(kv.free_queue(), ids(&[7, 8, 9, 4, 3, 2]));
    free(&mut kv, 1);
    assert_eq!(kv.free_queue(), ids(&[7, 8, 9, 4, 3, 2, 6, 5, 1, 0]));
    // Time 7: 29 tokens, the first twelve shared.
    let third = seq(4, (0..12).chain(200..217));
    assert_eq!(kv.lookup(&third).blocks, ids(&[0, 1, 2]));
    assert_eq!(admit(&mut kv, 2, &third), 12);
    assert_eq!(kv.block_table(RequestId(2)), ids(&[0, 1, 2, 7, 8, 9, 4, 3]));
    assert_eq!(kv.free_queue(), ids(&[6, 5]));
}

#[test]
fn requirements_table_of_hits() {
    let mut kv = manager(16, 1024);
    admit(&mut kv, 0, &seq(16, 1..2501));
    let question = seq(16, (1..2501).chain(5000..5500));
    let hit = kv.lookup(&question);
    assert_eq!((hit.blocks.len(), hit.tokens(16)), (156, 2496));
    assert_eq!(question.len() - hit.tokens(16), 504);

    let mut kv = manager(16, 1024);
    admit(&mut kv, 0, &seq(16, 100..164));
    let mut altered: Vec<u32> = (100..164).collect();
    altered[5] = 9999;
    assert_eq!(kv.lookup(&seq(16, altered)), miss());

    let other_namespace = scoped(16, &scope(None, Some("other")), 100..164);
    assert_eq!(kv.lookup(&other_namespace), miss());
    assert_eq!(kv.lookup(&seq(16, 100..164)).tokens(16), 48);

    let mut kv = manager(32, 1024);
    admit(&mut kv, 0, &seq(32, 0..3100));
    let sharing = seq(32, (0..3100).chain(10_000..10_900));
    let hit = kv.lookup(&sharing);
    assert_eq!(
        (sharing.len(), hit.blocks.len(), hit.tokens(32)),
        (4000, 96, 3072)
    );
    assert_eq!(sharing.len() - hit.tokens(32), 928);
}

#[test]
fn a_full_hit_still_leaves_a_block_to_compute() {
    for (tokens, expected) in [
        (64, 48),
        (65, 64),
        (16, 0),
        (17, 16),
        (15, 0),
        (1, 0),
        (0, 0),
    ] {
        let mut kv = manager(16, 64);
        admit(&mut kv, 0, &seq(16, 0..80));
        let again = seq(16, 0..tokens);
        assert_eq!(kv.lookup(&again).tokens(16), expected, "{tokens} tokens");
    }
}
