//! Who may find whose blocks: in the cache, and in the tiers.

use pb_contract::{EngineRequest, Fault, PrefixCacheKind, RequestId};
use pb_kv::{AdapterKey, CacheScope, HashedTokens, Hit, KvConfig, PrefixCache, build};

use super::outputs::run;
use super::toy;

/// Tokens in a block.
const BLOCK: usize = 4;

fn adapter(name: &str, digest: u8) -> Option<AdapterKey> {
    Some(AdapterKey {
        name: name.to_owned(),
        digest: [digest; 32],
    })
}

/// Scopes of which no two may share a block.
fn scopes() -> Vec<(&'static str, CacheScope)> {
    let plain = CacheScope {
        identity: [1; 32],
        ..CacheScope::default()
    };
    vec![
        (
            "another engine",
            CacheScope {
                identity: [2; 32],
                ..plain.clone()
            },
        ),
        (
            "an adapter",
            CacheScope {
                adapter: adapter("a", 1),
                ..plain.clone()
            },
        ),
        (
            "an adapter of that name with other weights",
            CacheScope {
                adapter: adapter("a", 2),
                ..plain.clone()
            },
        ),
        (
            "a salt",
            CacheScope {
                salt: Some("a".to_owned()),
                ..plain.clone()
            },
        ),
        ("the plain scope", plain),
    ]
}

/// Nothing that was computed in one scope is found in another, and all of it is in its own. On
/// the caches alone: an engine has one identity.
///
/// # Errors
/// Who found what.
pub fn isolation(fault: Fault) -> Result<(), String> {
    for kind in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        for (owner, own) in scopes() {
            let config = KvConfig {
                fault,
                ..KvConfig::new(BLOCK, 16, kind)
            };
            let mut cache = build(config).map_err(|e| e.to_string())?;
            let sequence = |scope: &CacheScope| {
                let mut seq = config.sequence(scope);
                seq.extend(&(0..9).collect::<Vec<_>>());
                seq
            };
            fill(cache.as_mut(), &sequence(&own))?;
            for (finder, other) in scopes() {
                let want = if finder == owner { 2 * BLOCK } else { 0 };
                let found = cache.lookup(&sequence(&other)).tokens(BLOCK);
                if found != want {
                    return Err(format!(
                        "{finder} finds {found} tokens of {owner}, not {want}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Of a cached prompt every prefix, and no more than whole blocks of all but its last token, is
/// found. On the caches alone: the scheduler asserts the same before an engine could tell.
///
/// # Errors
/// What was found of how much.
pub fn bound(fault: Fault) -> Result<(), String> {
    for kind in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let config = KvConfig {
            fault,
            ..KvConfig::new(BLOCK, 16, kind)
        };
        let mut cache = build(config).map_err(|e| e.to_string())?;
        let prompt = |n: u32| {
            let mut seq = config.sequence(&CacheScope::default());
            seq.extend(&(0..n).collect::<Vec<_>>());
            seq
        };
        fill(cache.as_mut(), &prompt(14))?;
        for n in 1..=14 {
            let found = cache.lookup(&prompt(n)).tokens(BLOCK);
            let want = (n as usize - 1).min(12) / BLOCK * BLOCK;
            if found != want {
                return Err(format!(
                    "a cached prompt of {n} tokens: {found} found, not {want}"
                ));
            }
        }
    }
    Ok(())
}

/// Computes a sequence in an empty cache and releases it.
fn fill(cache: &mut dyn PrefixCache, seq: &HashedTokens) -> Result<(), String> {
    let id = RequestId(0);
    if !cache.allocate(id, seq, 0, &Hit::default(), seq.len()) {
        return Err("an empty cache has no room".to_owned());
    }
    cache.commit(id, seq, seq.len());
    cache.finish(id, seq);
    Ok(())
}

/// Blocks that went to host memory are found by their own scope only.
///
/// # Errors
/// Who found what.
pub fn tiers(fault: Fault) -> Result<(), String> {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut config = toy::config(BLOCK, 16, fault);
        config.prefix_cache = cache;
        config.tiers.host_bytes = 1 << 20;
        let mut engine = toy::engine(config)?;
        let request = |id, label| toy::greedy(id, &toy::prompt(label, 41), 6);
        // Two prompts do not fit the pool together: the first one's blocks are all evicted.
        for (id, label) in [(0, "x"), (1, "y"), (2, "z")] {
            run(&mut engine, &[request(id, label)])?;
        }
        let others = [(3, Some("a"), None), (4, None, Some("s"))];
        for (id, adapter, salt) in others {
            let other = EngineRequest {
                adapter: adapter.map(str::to_owned),
                cache_salt: salt.map(str::to_owned),
                ..request(id, "x")
            };
            let found = run(&mut engine, &[other])?.cached[&RequestId(id)];
            if found > 0 {
                return Err(format!(
                    "adapter {adapter:?}, salt {salt:?}: {found} tokens of another scope found"
                ));
            }
        }
    }
    Ok(())
}
