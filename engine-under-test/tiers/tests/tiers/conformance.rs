//! One body for every tier: random operations against a model that a reader can check by eye.

use pb_contract::Stream;
use pb_tiers::{DiskTier, HostTier, RedisTier, Tier, Victims};

use crate::server::Server;
use crate::setup::{HEADER_BYTES, image, key, key_of};

/// What a bounded tier must hold: keys from the least to the most recently used.
struct Model {
    capacity_bytes: u64,
    header_bytes: u64,
    held: Vec<(u32, Vec<u8>)>,
}

impl Model {
    fn bytes(&self) -> u64 {
        let of = |(_, image): &(u32, Vec<u8>)| image.len() as u64 + self.header_bytes;
        self.held.iter().map(of).sum()
    }

    fn take(&mut self, n: u32) -> Option<Vec<u8>> {
        let at = self.held.iter().position(|(held, _)| *held == n)?;
        Some(self.held.remove(at).1)
    }

    fn get(&mut self, n: u32) -> Option<Vec<u8>> {
        let image = self.take(n)?;
        self.held.push((n, image.clone()));
        Some(image)
    }

    /// Whether it was stored, whether it was there, and what had to go.
    fn put(&mut self, n: u32, image: Vec<u8>) -> (bool, bool, Vec<(u32, Vec<u8>)>) {
        if self.get(n).is_some() {
            return (true, true, Vec::new());
        }
        let bytes = image.len() as u64 + self.header_bytes;
        if bytes > self.capacity_bytes {
            return (false, false, Vec::new());
        }
        let mut victims = Vec::new();
        while self.bytes() + bytes > self.capacity_bytes {
            victims.push(self.held.remove(0));
        }
        self.held.push((n, image));
        (true, false, victims)
    }
}

/// Runs `operations` random operations over 24 keys with images of 0 to 200 bytes.
fn conforms(tier: &mut dyn Tier, capacity_bytes: u64, header_bytes: u64, operations: u32) {
    let mut model = Model {
        capacity_bytes,
        header_bytes,
        held: Vec::new(),
    };
    let mut stream = Stream::new(11, "tier operations");
    let mut out = b"left over".to_vec();
    for step in 0..operations {
        let n = stream.below(24) as u32;
        let bytes = (n as usize * 37) % 200;
        match stream.below(8) {
            0..4 => {
                let put = tier.put(&key(n), &image(n, bytes)).unwrap();
                let (stored, present, victims) = model.put(n, image(n, bytes));
                assert_eq!((put.stored, put.present), (stored, present), "step {step}");
                assert_eq!(put.evicted, victims.len() as u64, "step {step}");
                let victims: Vec<_> = victims.into_iter().map(|(n, i)| (key(n), i)).collect();
                assert_eq!(put.victims, victims, "step {step}");
            }
            4..7 => {
                let found = tier.get(&key(n), &mut out).unwrap();
                let expected = model.get(n);
                assert_eq!(found, expected.is_some(), "step {step}: key {n}");
                assert_eq!(out, expected.unwrap_or_default(), "step {step}: key {n}");
            }
            _ => {
                let keys: Vec<_> = (n..24).map(key).collect();
                let held = |n: &u32| model.held.iter().any(|(held, _)| held == n);
                assert_eq!(tier.leading(&keys), (n..24).take_while(held).count());
                assert_eq!(tier.contains(&key(n)), held(&n));
                assert!(!tier.contains(&key_of(2, n)), "another engine's key");
                assert!(!tier.get(&key_of(2, n), &mut out).unwrap() && out.is_empty());
            }
        }
        assert_eq!(tier.blocks(), model.held.len() as u64, "step {step}");
        assert_eq!(tier.bytes(), model.bytes(), "step {step}");
        tier.check().unwrap();
    }
    assert!(!model.held.is_empty());
    tier.clear().unwrap();
    assert_eq!((tier.blocks(), tier.bytes()), (0, 0));
    assert!((0..24).all(|n| !tier.contains(&key(n))));
    tier.check().unwrap();
}

#[test]
fn host_memory_conforms() {
    conforms(&mut HostTier::new(500), 500, 0, 4_000);
    conforms(&mut HostTier::new(120), 120, 0, 4_000);
    conforms(&mut HostTier::new(0), 0, 0, 200);
}

#[test]
fn disk_conforms() {
    for capacity in [1_000, 250] {
        let dir = tempfile::tempdir().unwrap();
        let mut tier = DiskTier::open(dir.path(), capacity, Victims::Keep).unwrap();
        conforms(&mut tier, capacity, HEADER_BYTES, 600);
    }
}

#[test]
fn redis_conforms() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut tier = RedisTier::new(&server.options(), [1; 32]).unwrap();
    conforms(&mut tier, u64::MAX, HEADER_BYTES, 2_000);
}
