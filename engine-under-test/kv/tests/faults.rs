//! Every fault that can be planted in the chain and the pool is caught, and by the law meant for
//! it; without a fault the same history breaks none.

mod common;

use std::collections::BTreeMap;

use common::{miss, scope};
use pb_contract::{BlockId, Fault, PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, PrefixCache, build};

const BLOCK: usize = 4;

/// A cache together with what really stands in its blocks.
struct World {
    kv: Box<dyn PrefixCache>,
    /// Scope and all tokens up to the end of the block, for each block that was computed in full.
    data: BTreeMap<BlockId, (CacheScope, Vec<TokenId>)>,
}

impl World {
    fn new(fault: Fault) -> Self {
        let config = KvConfig {
            fault,
            ..KvConfig::new(BLOCK, 8, PrefixCacheKind::HashChain)
        };
        World {
            kv: build(config).unwrap(),
            data: BTreeMap::new(),
        }
    }

    fn seq(&self, scope: &CacheScope, tokens: impl IntoIterator<Item = TokenId>) -> HashedTokens {
        let mut seq = self.kv.config().sequence(scope);
        seq.extend(&tokens.into_iter().collect::<Vec<_>>());
        seq
    }

    /// A lookup that is held against the data: a hit leaves a token to compute, and every block
    /// holds the very prefix that was asked for.
    fn lookup(&self, scope: &CacheScope, seq: &HashedTokens) -> Result<Hit, String> {
        let hit = self.kv.lookup(seq);
        if hit.tokens(BLOCK) >= seq.len() {
            return Err("the hit leaves nothing to compute".to_owned());
        }
        for (index, block) in hit.blocks.iter().enumerate() {
            let wanted = (scope.clone(), seq.tokens()[..(index + 1) * BLOCK].to_vec());
            if self.data.get(block) != Some(&wanted) {
                return Err(format!("block {} holds another prefix", block.0));
            }
        }
        Ok(hit)
    }

    fn grant(
        &mut self,
        id: u64,
        seq: &HashedTokens,
        from: usize,
        hit: &Hit,
        end: usize,
    ) -> Result<(), String> {
        let new = end - from - hit.tokens(BLOCK);
        assert!(self.kv.allocate(RequestId(id), seq, from, hit, new));
        self.kv.check()
    }

    fn compute(
        &mut self,
        id: u64,
        scope: &CacheScope,
        seq: &HashedTokens,
        from: usize,
        end: usize,
    ) -> Result<(), String> {
        for index in from / BLOCK..end / BLOCK {
            let block = self.kv.block_table(RequestId(id))[index];
            let prefix = seq.tokens()[..(index + 1) * BLOCK].to_vec();
            self.data.insert(block, (scope.clone(), prefix));
        }
        self.kv.commit(RequestId(id), seq, end);
        self.kv.check()
    }

    /// Looks up, allocates and computes all of `tokens`.
    fn admit(
        &mut self,
        id: u64,
        scope: &CacheScope,
        tokens: impl IntoIterator<Item = TokenId>,
    ) -> Result<(), String> {
        let seq = self.seq(scope, tokens);
        let hit = self.lookup(scope, &seq)?;
        self.grant(id, &seq, 0, &hit, seq.len())?;
        self.compute(id, scope, &seq, hit.tokens(BLOCK), seq.len())
    }

    fn free(&mut self, id: u64) -> Result<(), String> {
        self.kv.free(RequestId(id));
        self.kv.check()
    }
}

/// One history that gives every fault its occasion; the first broken law ends it.
fn history(fault: Fault) -> Result<(), String> {
    let mut world = World::new(fault);
    let plain = CacheScope::default();
    // A chunk that ends in the middle of a block, then a fork of whom both go on.
    let prompt = world.seq(&plain, 0..12);
    world.grant(0, &prompt, 0, &miss(), 10)?;
    world.compute(0, &plain, &prompt, 0, 10)?;
    world.kv.fork(RequestId(0), RequestId(1), 10);
    world.kv.check()?;
    for id in [1, 0] {
        let own = world.seq(&plain, (0..10).chain([50 + id as TokenId]));
        world.grant(id, &own, 10, &miss(), 11)?;
        world.compute(id, &plain, &own, 10, 11)?;
    }
    world.free(0)?;
    world.free(1)?;
    // A fully cached prompt, then a hit on blocks that nobody references.
    world.lookup(&plain, &world.seq(&plain, 0..8))?;
    world.admit(2, &plain, 0..9)?;
    // The same tokens for another adapter, another tenant and another engine.
    let other_engine = CacheScope {
        identity: [1; 32],
        ..CacheScope::default()
    };
    for other in [scope(Some("x"), None), scope(None, Some("x")), other_engine] {
        world.lookup(&other, &world.seq(&other, 0..9))?;
    }
    // The second block's own tokens stand in the cache, after another first block.
    world.admit(3, &plain, 20..25)?;
    world.lookup(&plain, &world.seq(&plain, (20..24).chain(4..9)))?;
    world.free(3)?;
    world.free(2)?;
    // Scheduled, named, and aborted before the step ran.
    let aborted = world.seq(&plain, 60..69);
    world.grant(4, &aborted, 0, &miss(), 9)?;
    world.free(4)?;
    world.lookup(&plain, &aborted)?;
    // Everything cached is pushed out, then asked for again.
    world.admit(5, &plain, 100..132)?;
    world.lookup(&plain, &world.seq(&plain, 0..9))?;
    world.free(5)
}

/// Each fault with the words of the law that catches it.
const CAUGHT_BY: [(Fault, &str); 12] = [
    (Fault::StaleHit, "pool and cache disagree"),
    (Fault::WrongParent, "holds another prefix"),
    (Fault::MissingAdapterKey, "holds another prefix"),
    (Fault::MissingSaltKey, "holds another prefix"),
    (Fault::MissingIdentityKey, "holds another prefix"),
    (Fault::DoubleFree, "the free queue holds"),
    (Fault::LeakedReference, "references, 1 in tables"),
    (Fault::HitOffByOne, "leaves nothing to compute"),
    (
        Fault::PartialBlockShared,
        "named a block before it was full",
    ),
    (
        Fault::EvictWhileReferenced,
        "is referenced and in the free queue",
    ),
    (Fault::CopyOnWriteSkipped, "is written by"),
    (Fault::UncomputedNameKept, "was never computed"),
];

#[test]
fn without_a_fault_no_law_is_broken() {
    assert_eq!(history(Fault::None), Ok(()));
    // A fault of another part changes nothing here.
    assert_eq!(history(Fault::MaskSeesFuture), Ok(()));
}

#[test]
fn every_fault_is_caught_by_its_law() {
    for (fault, law) in CAUGHT_BY {
        let error = history(fault).expect_err(fault.description());
        assert!(error.contains(law), "{fault:?}: {error}");
    }
}

#[test]
fn a_double_free_of_a_shared_block_takes_the_others_reference() {
    let mut world = World::new(Fault::DoubleFree);
    let plain = CacheScope::default();
    world.admit(0, &plain, 0..8).unwrap();
    world.kv.fork(RequestId(0), RequestId(1), 8);
    world.kv.fork(RequestId(0), RequestId(2), 8);
    let error = world.free(1).unwrap_err();
    assert!(error.contains("1 references, 2 in tables"), "{error}");
}

#[test]
fn compared_tokens_mask_a_wrong_name() {
    // Why a cache may compare tokens whatever the digest: the planted chain without parents gives
    // no wrong hit then.
    let config = KvConfig {
        fault: Fault::WrongParent,
        verify_tokens: true,
        ..KvConfig::new(BLOCK, 8, PrefixCacheKind::HashChain)
    };
    let mut world = World::new(Fault::None);
    world.kv = build(config).unwrap();
    assert_eq!(history_of_parents(&mut world), Ok(()));
    world.kv = build(KvConfig {
        verify_tokens: false,
        ..config
    })
    .unwrap();
    assert!(history_of_parents(&mut world).is_err());
}

fn history_of_parents(world: &mut World) -> Result<(), String> {
    let plain = CacheScope::default();
    world.data.clear();
    world.admit(0, &plain, 0..9)?;
    world.admit(1, &plain, 20..25)?;
    let crossed = world.seq(&plain, (20..24).chain(4..9));
    world.lookup(&plain, &crossed).map(|_| ())
}
