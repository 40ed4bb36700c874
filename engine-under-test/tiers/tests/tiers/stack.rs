//! The tiers together: what falls, what rises, what is counted, and the planted faults.

use pb_contract::{Fault, TierOptions};
use pb_kv::{AdapterKey, BlockHash, CacheScope, HashedTokens};
use pb_tiers::{HostTier, PutOutcome, Tier, TierError, TierKey, TierKind, TierStack, TierStats};

use crate::server::Server;
use crate::setup::image;

const IDENTITY: [u8; 32] = [1; 32];

fn hash(n: u8) -> BlockHash {
    BlockHash([n; 32])
}

fn host_and_disk(dir: &tempfile::TempDir, fault: Fault) -> TierStack {
    let options = TierOptions {
        host_bytes: 200,
        disk_dir: Some(dir.path().to_string_lossy().into_owned()),
        disk_bytes: 1_000,
        redis_url: None,
    };
    TierStack::open(&options, IDENTITY, fault).unwrap()
}

fn stats(stack: &TierStack, kind: TierKind) -> TierStats {
    let of_kind = stack.stats().into_iter().find(|(of, _)| *of == kind);
    of_kind.map(|(_, stats)| stats).unwrap()
}

#[test]
fn blocks_fall_and_rise_and_every_tier_counts_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut stack = host_and_disk(&dir, Fault::None);
    // Two images of 100 bytes fit into host memory.
    for n in 0..4 {
        stack.store(&hash(n), &image(u32::from(n), 100));
    }
    assert_eq!(
        (stack.blocks(TierKind::Host), stack.blocks(TierKind::Disk)),
        (2, 2)
    );
    assert_eq!(stack.blocks(TierKind::Redis), 0);
    assert_eq!(stack.leading((0..6).map(hash)), 4);
    let mut out = Vec::new();
    assert_eq!(stack.fetch(&hash(3), &mut out), Some(TierKind::Host));
    // From disk it rises into host memory, where 2 is the oldest now and falls.
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Disk));
    assert_eq!(out, image(0, 100));
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Host));
    assert_eq!(stack.fetch(&hash(2), &mut out), Some(TierKind::Disk));
    assert_eq!(stack.fetch(&hash(9), &mut out), None);
    assert!(out.is_empty());
    let host = TierStats {
        hits: 2,
        misses: 3,
        stored: 6,
        evicted: 4,
        bytes: 200,
        blocks: 2,
        ..TierStats::default()
    };
    assert_eq!(stats(&stack, TierKind::Host), host);
    let disk = TierStats {
        hits: 2,
        misses: 1,
        stored: 4,
        bytes: 4 * 222,
        blocks: 4,
        ..TierStats::default()
    };
    assert_eq!(stats(&stack, TierKind::Disk), disk);
    stack.check().unwrap();
    stack.clear();
    assert_eq!(stack.leading((0..4).map(hash)), 0);
}

#[test]
fn an_image_too_large_for_host_memory_goes_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut stack = host_and_disk(&dir, Fault::None);
    stack.store(&hash(0), &image(0, 300));
    stack.store(&hash(1), &image(1, 3_000));
    assert_eq!(
        (
            stats(&stack, TierKind::Host).refused,
            stack.blocks(TierKind::Disk)
        ),
        (2, 1)
    );
    let mut out = Vec::new();
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Disk));
    assert_eq!(stack.fetch(&hash(1), &mut out), None);
}

#[test]
fn a_block_comes_back_after_a_restart_but_not_for_another_engine() {
    let dir = tempfile::tempdir().unwrap();
    let mut stack = host_and_disk(&dir, Fault::None);
    (0..4).for_each(|n| stack.store(&hash(n), &image(u32::from(n), 100)));
    drop(stack);
    let mut stack = host_and_disk(&dir, Fault::None);
    let mut out = Vec::new();
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Disk));
    assert_eq!(out, image(0, 100));
    drop(stack);
    let options = TierOptions {
        disk_dir: Some(dir.path().to_string_lossy().into_owned()),
        disk_bytes: 1_000,
        ..TierOptions::default()
    };
    let mut other = TierStack::open(&options, [2; 32], Fault::None).unwrap();
    assert_eq!(
        other.blocks(TierKind::Disk),
        2,
        "they count until they are evicted"
    );
    assert_eq!(other.leading([hash(0)]), 0);
    assert_eq!(other.fetch(&hash(0), &mut out), None);
}

#[test]
fn three_tiers_end_to_end() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = TierOptions {
        host_bytes: 200,
        disk_dir: Some(dir.path().to_string_lossy().into_owned()),
        disk_bytes: 3 * 222,
        redis_url: Some(server.url()),
    };
    let mut stack = TierStack::open(&options, IDENTITY, Fault::None).unwrap();
    (0..12).for_each(|n| stack.store(&hash(n), &image(u32::from(n), 100)));
    let blocks = TierKind::ALL.map(|kind| stack.blocks(kind));
    assert_eq!(blocks, [2, 3, 7]);
    assert_eq!(stack.leading((0..13).map(hash)), 12);
    let mut out = Vec::new();
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Redis));
    assert_eq!(out, image(0, 100));
    assert_eq!(stack.fetch(&hash(0), &mut out), Some(TierKind::Host));
    stack.check().unwrap();
    drop(stack);
    // A machine that lost its disk and memory still finds what had fallen that far.
    let options = TierOptions {
        redis_url: Some(server.url()),
        ..TierOptions::default()
    };
    let mut fresh = TierStack::open(&options, IDENTITY, Fault::None).unwrap();
    assert_eq!(fresh.leading((0..7).map(hash)), 7);
    assert_eq!(fresh.fetch(&hash(6), &mut out), Some(TierKind::Redis));
}

#[test]
fn options_that_cannot_be_met_are_named() {
    let open = |options| TierStack::open(&options, IDENTITY, Fault::None);
    assert!(open(TierOptions::default()).unwrap().is_empty());
    let no_bytes = TierOptions {
        disk_dir: Some("somewhere".to_owned()),
        ..TierOptions::default()
    };
    let error = open(no_bytes).unwrap_err().to_string();
    assert!(error.starts_with("tiers.disk_bytes = 0: "), "{error}");
    let bad_url = TierOptions {
        redis_url: Some("http://x".to_owned()),
        ..TierOptions::default()
    };
    let error = open(bad_url).unwrap_err().to_string();
    assert!(error.starts_with("tiers.redis_url = http://x: "), "{error}");
}

/// A tier whose every operation fails.
#[derive(Debug)]
struct Broken;

impl Broken {
    fn error<T>() -> Result<T, TierError> {
        Err(TierError::Server("broken".to_owned()))
    }
}

impl Tier for Broken {
    fn kind(&self) -> TierKind {
        TierKind::Host
    }

    fn contains(&self, _key: &TierKey) -> bool {
        true
    }

    fn get(&mut self, _key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError> {
        out.clear();
        Broken::error()
    }

    fn put(&mut self, _key: &TierKey, _image: &[u8]) -> Result<PutOutcome, TierError> {
        Broken::error()
    }

    fn blocks(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn clear(&mut self) -> Result<(), TierError> {
        Broken::error()
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_broken_tier_costs_errors_and_nothing_else() {
    let tiers: Vec<Box<dyn Tier>> = vec![Box::new(Broken), Box::new(HostTier::new(1_000))];
    let mut stack = TierStack::of(tiers, IDENTITY, Fault::None);
    stack.store(&hash(0), &image(0, 100));
    let mut out = Vec::new();
    assert!(stack.fetch(&hash(0), &mut out).is_some());
    assert_eq!(out, image(0, 100));
    // One put, one get, and one put of what was found below.
    assert_eq!(stack.stats()[0].1.errors, 3);
    assert_eq!((stack.stats()[1].1.hits, stack.stats()[1].1.stored), (1, 1));
}

fn sequence(adapter: Option<&str>, salt: Option<&str>) -> HashedTokens {
    let scope = CacheScope {
        identity: IDENTITY,
        adapter: adapter.map(|name| AdapterKey {
            name: name.to_owned(),
            digest: [0; 32],
        }),
        salt: salt.map(str::to_owned),
    };
    let mut seq = HashedTokens::new(4, &scope);
    seq.extend(&[1, 2, 3, 4, 5, 6, 7, 8]);
    seq
}

/// Whether one of the scopes finds what another has stored, though the tokens alone are equal.
fn scopes_mix(fault: Fault) -> bool {
    let scopes = [
        sequence(None, None),
        sequence(Some("a"), None),
        sequence(Some("b"), None),
        sequence(None, Some("a")),
    ];
    scopes.iter().any(|stored| {
        let tiers: Vec<Box<dyn Tier>> = vec![Box::new(HostTier::new(1_000))];
        let mut stack = TierStack::of(tiers, IDENTITY, fault);
        scopes.iter().for_each(|seq| stack.observe(seq));
        stored
            .hashes()
            .iter()
            .for_each(|hash| stack.store(hash, b"image"));
        assert_eq!(stack.leading(stored.hashes().iter().copied()), 2);
        let others = scopes.iter().filter(|seq| seq.hashes() != stored.hashes());
        others
            .into_iter()
            .any(|seq| stack.leading(seq.hashes().iter().copied()) > 0)
    })
}

#[test]
fn adapter_and_salt_keep_blocks_apart_and_the_fault_tier_key_without_scope_is_seen() {
    assert!(!scopes_mix(Fault::None));
    assert!(scopes_mix(Fault::TierKeyWithoutScope));
}

/// Whether another engine finds an image in the directory that the first has left.
fn engines_mix(fault: Fault) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let options = TierOptions {
        disk_dir: Some(dir.path().to_string_lossy().into_owned()),
        disk_bytes: 1_000,
        ..TierOptions::default()
    };
    let mut stack = TierStack::open(&options, [1; 32], fault).unwrap();
    stack.store(&hash(0), b"image");
    drop(stack);
    let stack = TierStack::open(&options, [2; 32], fault).unwrap();
    stack.leading([hash(0)]) > 0
}

#[test]
fn identity_keeps_engines_apart_and_the_fault_tier_key_without_scope_is_seen() {
    assert!(!engines_mix(Fault::None));
    assert!(engines_mix(Fault::TierKeyWithoutScope));
}

/// Whether every image comes back as it was stored, from each tier.
fn images_survive(fault: Fault) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut stack = host_and_disk(&dir, fault);
    (0..4).for_each(|n| stack.store(&hash(n), &image(u32::from(n), 100)));
    let mut out = Vec::new();
    (0..4).all(|n| {
        assert!(stack.fetch(&hash(n), &mut out).is_some());
        out == image(u32::from(n), 100)
    })
}

#[test]
fn images_come_back_bit_by_bit_and_the_fault_tier_corruption_is_seen() {
    assert!(images_survive(Fault::None));
    assert!(!images_survive(Fault::TierCorruption));
}
