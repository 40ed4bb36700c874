//! Host memory: the bound.

use pb_tiers::{HostTier, Tier};

use crate::setup::{image, key};

#[test]
fn an_image_beyond_the_bound_is_refused_and_costs_nobody_his_place() {
    let mut tier = HostTier::new(100);
    assert!(tier.put(&key(0), &image(0, 100)).unwrap().stored);
    let outcome = tier.put(&key(1), &image(1, 101)).unwrap();
    assert!(!outcome.stored && outcome.victims.is_empty());
    assert!(tier.contains(&key(0)) && !tier.contains(&key(1)));
}

#[test]
fn a_dump_shows_no_image() {
    let mut tier = HostTier::new(100);
    tier.put(&key(0), &[0xab; 64]).unwrap();
    let dump = format!("{tier:?}");
    assert!(
        dump.contains("64 bytes") && !dump.contains("171, 171"),
        "{dump}"
    );
}
