//! Public fault reports of radix caches, each as the sequence that provoked it.

use pb_contract::{Buckets, RequestId};
use pb_kv::{Hit, PrefixCache};

use crate::short::{admit, cache, commit, extend, finish, free, run, seq, table};

/// SGLang #6888, #11970, #140: the idle check found memory missing.
#[test]
fn report_26_available_plus_evictable_is_the_pool_when_idle() {
    let mut kv = cache(4, 12);
    for round in 0..20 {
        let prompt = seq(&kv, (0..9).chain([round, round + 1, round + 2]));
        run(&mut kv, 0, &prompt);
        match round % 3 {
            0 => free(&mut kv, 0),
            _ => finish(&mut kv, 0, &prompt),
        }
        let Buckets {
            active,
            reclaimable,
            free,
        } = kv.buckets();
        assert_eq!((active, reclaimable + free), (0, 12), "round {round}");
    }
}

/// SGLang #16067: a request's slot leaked when its scheduling failed.
#[test]
fn report_27_a_refused_allocation_leaves_nothing_behind() {
    let mut kv = cache(2, 6);
    let holder = seq(&kv, [1, 1, 2, 2, 3, 3, 4]);
    run(&mut kv, 0, &holder);
    // At each size beyond what is left, with and without a hit.
    for len in 5..20 {
        for shared in [0, 2, 4] {
            let prompt = seq(
                &kv,
                holder.tokens()[..shared]
                    .iter()
                    .copied()
                    .chain(50..50 + len),
            );
            let (before, queue) = (kv.buckets(), kv.free_queue());
            let hit = kv.lookup(&prompt).tokens(2);
            assert_eq!(admit(&mut kv, 9, &prompt, prompt.len() - hit), None);
            assert_eq!((kv.buckets(), kv.free_queue()), (before, queue));
            assert_eq!(kv.live_requests(), 1);
            free(&mut kv, 9); // never admitted: nothing to free, and no complaint
        }
    }
    finish(&mut kv, 0, &holder);
    assert_eq!(kv.buckets().active, 0);
}

/// sglang-jax #982: slots were freed twice, and two requests got the same one.
#[test]
fn report_28_the_free_list_never_holds_a_block_twice() {
    let mut kv = cache(1, 16);
    let prompt = seq(&kv, 0..6);
    for id in 0..2 {
        assert_eq!(admit(&mut kv, id, &prompt, 6), Some(0));
    }
    commit(&mut kv, 0, &prompt, 6);
    // The duplicates go back once: at the commit, and not again at the end.
    commit(&mut kv, 1, &prompt, 6);
    finish(&mut kv, 1, &prompt);
    free(&mut kv, 1);
    finish(&mut kv, 0, &prompt);
    let mut queue = kv.free_queue();
    queue.sort();
    queue.dedup();
    assert_eq!(queue.len(), 16);
}

/// SGLang #2555: the hit rate counted what the request's own earlier chunks had cached.
#[test]
fn report_30_a_cold_prompt_in_chunks_has_no_hits() {
    for chunk in [1, 3, 4, 7] {
        let mut kv = cache(4, 16);
        let prompt = seq(&kv, 0..30);
        assert_eq!(admit(&mut kv, 0, &prompt, chunk), Some(0));
        commit(&mut kv, 0, &prompt, chunk);
        for computed in (chunk..30).step_by(chunk) {
            let tokens = chunk.min(30 - computed);
            assert!(extend(&mut kv, 0, &prompt, computed, tokens));
            commit(&mut kv, 0, &prompt, computed + tokens);
        }
        assert_eq!(kv.stats().hit_blocks, 0);
        finish(&mut kv, 0, &prompt);
    }
}

/// SGLang #11898, #11900: after a retraction more tokens were cached than the prompt has.
#[test]
fn report_31_a_resumed_request_hits_at_most_all_but_one() {
    let mut kv = cache(1, 64);
    let prompt = seq(&kv, 0..20);
    for computed in 1..20 {
        let hit = admit(&mut kv, 0, &prompt, 1);
        assert_eq!(hit, Some(computed - 1));
        commit(&mut kv, 0, &prompt, computed);
        free(&mut kv, 0);
    }
    assert_eq!(run(&mut kv, 1, &prompt), 19);
    free(&mut kv, 1);
    assert_eq!(
        kv.lookup(&prompt).tokens(1),
        19,
        "20 are stored, 19 may be reused"
    );
}

/// SGLang #36855, #33996: the insertion between two chunks was skipped; the request had lost its
/// pages and started over for ever.
#[test]
fn report_40_a_chunked_request_always_makes_progress() {
    // The pool is exactly as large as the prompt, and another prompt wants all of it.
    let mut kv = cache(4, 5);
    let (mine, other) = (seq(&kv, 0..20), seq(&kv, 100..120));
    for round in 0..5 {
        assert_eq!(admit(&mut kv, 0, &mine, 4), Some(4 * round));
        commit(&mut kv, 0, &mine, 4 * round + 4);
        assert_eq!(admit(&mut kv, 1, &other, 20), None);
        free(&mut kv, 0); // preempted after each chunk
    }
    assert_eq!(run(&mut kv, 0, &mine), 16);
    // Chunks that end within a page: nothing of a running request is ever lost to its commit.
    free(&mut kv, 0);
    assert!(kv.reset());
    assert_eq!(admit(&mut kv, 0, &mine, 3), Some(0));
    for computed in (3..18).step_by(3) {
        commit(&mut kv, 0, &mine, computed);
        assert!(extend(&mut kv, 0, &mine, computed, 3));
    }
    commit(&mut kv, 0, &mine, 18);
    assert_eq!(kv.lookup(&mine).tokens(4), 16);
}

/// SGLang #38319, #38355: pages were matchable before their data was written.
#[test]
fn report_41_nothing_is_matchable_before_it_is_computed() {
    let mut kv = cache(4, 16);
    let (prompt, reader) = (seq(&kv, 0..16), seq(&kv, 0..17));
    assert_eq!(admit(&mut kv, 0, &prompt, 8), Some(0));
    assert_eq!(kv.lookup(&reader).tokens(4), 0, "scheduled is not computed");
    commit(&mut kv, 0, &prompt, 8);
    assert_eq!(kv.lookup(&reader).tokens(4), 8);
    assert!(extend(&mut kv, 0, &prompt, 8, 8));
    assert_eq!(kv.lookup(&reader).tokens(4), 8);
    // The step fails: nothing of it was ever stored, so nothing has to be taken back.
    assert!(kv.forget_uncomputed(RequestId(0), 8).is_empty());
    free(&mut kv, 0);
    assert_eq!(kv.lookup(&reader).tokens(4), 8);
}

/// SGLang #984: after the caching of a chunk the request went on reading its old slots.
#[test]
fn report_42_after_each_chunk_the_table_is_the_trees_path() {
    let mut kv = cache(2, 32);
    let prompt = seq(&kv, 0..20);
    // Another request is ahead of this one by one chunk, so every page is a duplicate.
    assert_eq!(admit(&mut kv, 1, &prompt, 4), Some(0));
    assert_eq!(admit(&mut kv, 0, &prompt, 4), Some(0));
    commit(&mut kv, 0, &prompt, 4);
    let mut replaced = 0;
    for computed in (4..20).step_by(4) {
        assert!(extend(&mut kv, 0, &prompt, computed, 4));
        commit(&mut kv, 0, &prompt, computed + 4);
        let before = table(&kv, 1);
        commit(&mut kv, 1, &prompt, computed);
        let after = table(&kv, 1);
        replaced += before.iter().zip(&after).filter(|(a, b)| a != b).count();
        let hit: Hit = kv.lookup(&prompt);
        let pages = (computed / 2).min(hit.blocks.len());
        assert_eq!(after[..pages], hit.blocks[..pages]);
        assert!(extend(&mut kv, 1, &prompt, computed, 4));
    }
    assert_eq!(replaced, 8, "all pages but those of the last chunk");
    finish(&mut kv, 0, &prompt);
    free(&mut kv, 1);
}
