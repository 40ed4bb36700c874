//! Blocks whose data another engine sends: nobody finds them before it is here.

use pb_contract::{PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheEvent, CacheScope, HashedTokens, Hit, KvConfig, PrefixCache, build};

const KINDS: [PrefixCacheKind; 3] = [
    PrefixCacheKind::HashChain,
    PrefixCacheKind::Radix,
    PrefixCacheKind::Oracle,
];

fn cache(kind: PrefixCacheKind) -> Box<dyn PrefixCache> {
    let mut kv = build(KvConfig::new(4, 8, kind)).unwrap();
    kv.record_events();
    kv
}

fn sequence(kv: &dyn PrefixCache, tokens: std::ops::Range<TokenId>) -> HashedTokens {
    let mut seq = kv.config().sequence(&CacheScope::default());
    seq.extend(&tokens.collect::<Vec<_>>());
    seq
}

#[test]
fn data_is_found_from_its_arrival_on() {
    for kind in KINDS {
        let mut kv = cache(kind);
        let seq = sequence(kv.as_ref(), 0..10);
        let nothing = sequence(kv.as_ref(), 0..0);
        assert!(kv.allocate(RequestId(1), &nothing, 0, &Hit::default(), 10));
        assert!(kv.lookup(&seq).blocks.is_empty(), "{kind:?}");
        assert_eq!(kv.take_events(), []);
        kv.check().unwrap();
        kv.receive(RequestId(1), &seq, 10);
        kv.check().unwrap();
        // Ten tokens are two full blocks.
        assert_eq!(
            kv.lookup(&seq).blocks,
            kv.block_table(RequestId(1))[..2],
            "{kind:?}"
        );
        let stored = CacheEvent::Stored {
            hashes: seq.hashes().to_vec(),
            parent: None,
        };
        assert_eq!(kv.take_events(), [stored], "{kind:?}");
        // A second request has the first two blocks as a hit and receives the rest.
        let longer = sequence(kv.as_ref(), 0..13);
        let hit = kv.lookup(&longer);
        let prefix = sequence(kv.as_ref(), 0..8);
        assert!(kv.allocate(RequestId(2), &prefix, 0, &hit, 5));
        assert_eq!(kv.lookup(&longer).blocks.len(), 2);
        kv.receive(RequestId(2), &longer, 13);
        let stored = CacheEvent::Stored {
            hashes: vec![longer.hashes()[2]],
            parent: Some(longer.hashes()[1]),
        };
        assert_eq!(kv.take_events(), [stored], "{kind:?}");
        kv.finish(RequestId(1), &seq);
        kv.finish(RequestId(2), &longer);
        kv.check().unwrap();
        assert_eq!(
            (kv.buckets().active, kv.buckets().reclaimable),
            (0, 3),
            "{kind:?}"
        );
        // Eight other tokens take the free blocks, then the named ones, which are gone then.
        let other = sequence(kv.as_ref(), 100..132);
        assert!(kv.allocate(RequestId(3), &other, 0, &Hit::default(), 32));
        let removed: Vec<_> = kv
            .take_events()
            .into_iter()
            .filter_map(|event| match event {
                CacheEvent::Removed { hashes } => Some(hashes),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(removed.len(), 3, "{kind:?}");
        kv.free(RequestId(3));
        // What was pushed out and is sent again is not computed again.
        assert!(kv.stats().evicted_blocks >= 3, "{kind:?}");
        assert!(kv.allocate(RequestId(4), &nothing, 0, &Hit::default(), 10));
        kv.receive(RequestId(4), &seq, 10);
        assert_eq!(kv.stats().recomputed_blocks, 0, "{kind:?}");
        kv.free(RequestId(4));
        assert!(kv.reset());
        assert_eq!(
            kv.take_events().last(),
            Some(&CacheEvent::Cleared),
            "{kind:?}"
        );
    }
}

#[test]
fn data_that_never_arrives_is_never_found() {
    for kind in KINDS {
        let mut kv = cache(kind);
        let seq = sequence(kv.as_ref(), 0..12);
        let nothing = sequence(kv.as_ref(), 0..0);
        assert!(kv.allocate(RequestId(1), &nothing, 0, &Hit::default(), 12));
        kv.free(RequestId(1));
        kv.check().unwrap();
        assert!(kv.lookup(&seq).blocks.is_empty(), "{kind:?}");
        assert_eq!(
            (kv.buckets().free, kv.take_events()),
            (8, vec![]),
            "{kind:?}"
        );
    }
}
