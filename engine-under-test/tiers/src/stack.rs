//! The tiers of one engine, fastest first.

use std::collections::BTreeMap;
use std::path::Path;

use pb_contract::{Fault, TierOptions};
use pb_kv::{BlockHash, CacheScope, HashedTokens};

use crate::disk::{DiskTier, Victims};
use crate::error::TierError;
use crate::host::HostTier;
use crate::key::TierKey;
use crate::redis_tier::{PASSWORD_VARIABLE, RedisOptions, RedisTier, Secret};
use crate::tier::{Tier, TierKind, TierStats};

#[derive(Debug)]
struct Level {
    tier: Box<dyn Tier>,
    counts: TierStats,
}

/// Tiers below the device pool: what one evicts falls into the next, what is found is lifted into
/// the first. Failures cost hits and are counted; they never reach the engine.
#[derive(Debug)]
pub struct TierStack {
    levels: Vec<Level>,
    identity: [u8; 32],
    fault: Fault,
    /// Names without adapter, salt and identity; used only by the planted fault.
    unscoped: BTreeMap<BlockHash, BlockHash>,
}

impl TierStack {
    /// The tiers of `options` for the engine `identity` (the digest that also seeds its block
    /// chain). The password of the Redis server is taken from [`PASSWORD_VARIABLE`].
    ///
    /// # Errors
    /// An option that cannot be met, or a directory that cannot be used. A Redis server that
    /// cannot be reached is no error: its tier stays empty until it can.
    pub fn open(
        options: &TierOptions,
        identity: [u8; 32],
        fault: Fault,
    ) -> Result<Self, TierError> {
        let mut tiers: Vec<Box<dyn Tier>> = Vec::new();
        if options.host_bytes > 0 {
            tiers.push(Box::new(HostTier::new(options.host_bytes)));
        }
        if let Some(dir) = &options.disk_dir {
            if options.disk_bytes == 0 {
                return Err(TierError::Option {
                    key: "disk_bytes",
                    value: "0".to_owned(),
                    fix: "give the bytes that disk_dir may hold, or no disk_dir",
                });
            }
            let victims = match options.redis_url {
                Some(_) => Victims::Keep,
                None => Victims::Drop,
            };
            let disk = DiskTier::open(Path::new(dir), options.disk_bytes, victims)?;
            tiers.push(Box::new(disk));
        }
        if let Some(url) = &options.redis_url {
            let mut redis = RedisOptions::parse(url)?;
            redis.password = std::env::var(PASSWORD_VARIABLE).ok().map(Secret::new);
            tiers.push(Box::new(RedisTier::new(&redis, identity)?));
        }
        Ok(Self::of(tiers, identity, fault))
    }

    /// A stack of given tiers, fastest first.
    pub fn of(tiers: Vec<Box<dyn Tier>>, identity: [u8; 32], fault: Fault) -> Self {
        let level = |tier| Level {
            tier,
            counts: TierStats::default(),
        };
        TierStack {
            levels: tiers.into_iter().map(level).collect(),
            identity,
            fault,
            unscoped: BTreeMap::new(),
        }
    }

    /// Whether there is no tier at all.
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Must see a sequence before its blocks are stored or looked up. Does nothing, except under
    /// [`Fault::TierKeyWithoutScope`], which needs the names that blocks would have without scope.
    pub fn observe(&mut self, seq: &HashedTokens) {
        if self.fault == Fault::TierKeyWithoutScope {
            let mut plain = HashedTokens::new(seq.block_size(), &CacheScope::default());
            plain.extend(seq.tokens());
            let names = seq.hashes().iter().zip(plain.hashes());
            self.unscoped
                .extend(names.map(|(scoped, plain)| (*scoped, *plain)));
        }
    }

    /// How many of the first hashes some tier has, each. May be stale: [`TierStack::fetch`]
    /// decides.
    pub fn leading(&self, hashes: impl IntoIterator<Item = BlockHash>) -> usize {
        if self.levels.is_empty() {
            return 0;
        }
        let keys: Vec<TierKey> = hashes.into_iter().map(|hash| self.key(&hash)).collect();
        let mut count = 0;
        loop {
            let before = count;
            for level in &self.levels {
                count += level.tier.leading(&keys[count..]);
            }
            if count == before || count == keys.len() {
                return count;
            }
        }
    }

    /// Replaces `out` with the image of a block and lifts it into the first tier. Gives the tier
    /// that had it, or `None` (and an empty `out`) when none has a sound image.
    pub fn fetch(&mut self, hash: &BlockHash, out: &mut Vec<u8>) -> Option<TierKind> {
        let key = self.key(hash);
        let found = (0..self.levels.len()).find(|&at| self.fetch_at(at, &key, out));
        let Some(at) = found else {
            out.clear();
            return None;
        };
        if at > 0 {
            self.put_at(0, &key, out);
        }
        if self.fault == Fault::TierCorruption
            && let Some(byte) = out.first_mut()
        {
            *byte ^= 1;
        }
        Some(self.levels[at].tier.kind())
    }

    fn fetch_at(&mut self, at: usize, key: &TierKey, out: &mut Vec<u8>) -> bool {
        let Level { tier, counts } = &mut self.levels[at];
        let found = tier.get(key, out);
        counts.errors += u64::from(found.is_err());
        let found = found.unwrap_or(false);
        counts.hits += u64::from(found);
        counts.misses += u64::from(!found);
        found
    }

    /// Stores the image of a block that the device pool evicts.
    pub fn store(&mut self, hash: &BlockHash, image: &[u8]) {
        let key = self.key(hash);
        self.put_at(0, &key, image);
    }

    /// Puts an image into level `at`; what it cannot take, and what it drops, falls one level.
    fn put_at(&mut self, at: usize, key: &TierKey, image: &[u8]) {
        let Some(Level { tier, counts }) = self.levels.get_mut(at) else {
            return;
        };
        let outcome = match tier.put(key, image) {
            Ok(outcome) => outcome,
            Err(_) => {
                counts.errors += 1;
                return self.put_at(at + 1, key, image);
            }
        };
        counts.stored += u64::from(outcome.stored && !outcome.present);
        counts.refused += u64::from(!outcome.stored);
        counts.evicted += outcome.evicted;
        if !outcome.stored {
            self.put_at(at + 1, key, image);
        }
        for (victim, image) in &outcome.victims {
            self.put_at(at + 1, victim, image);
        }
    }

    /// Counts of each tier that is on, fastest first.
    pub fn stats(&self) -> Vec<(TierKind, TierStats)> {
        let of = |level: &Level| {
            let stats = TierStats {
                errors: level.counts.errors + level.tier.lookup_errors(),
                bytes: level.tier.bytes(),
                blocks: level.tier.blocks(),
                ..level.counts
            };
            (level.tier.kind(), stats)
        };
        self.levels.iter().map(of).collect()
    }

    /// Blocks that a tier holds; 0 when it is off.
    pub fn blocks(&self, kind: TierKind) -> u64 {
        let held = self.levels.iter().filter(|level| level.tier.kind() == kind);
        held.map(|level| level.tier.blocks()).sum()
    }

    /// Forgets all blocks of all tiers; on a shared server those of this engine's identity. What
    /// cannot be removed is counted as an error.
    pub fn clear(&mut self) {
        for Level { tier, counts } in &mut self.levels {
            counts.errors += u64::from(tier.clear().is_err());
        }
    }

    /// Checks the bookkeeping of every tier.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check(&self) -> Result<(), String> {
        self.levels.iter().try_for_each(|level| level.tier.check())
    }

    fn key(&self, hash: &BlockHash) -> TierKey {
        if self.fault == Fault::TierKeyWithoutScope {
            return TierKey {
                identity: [0; 32],
                hash: *self.unscoped.get(hash).unwrap_or(hash),
            };
        }
        TierKey {
            identity: self.identity,
            hash: *hash,
        }
    }
}
