//! Each planted fault of the radix cache is noticed, and nothing is noticed without one.

use pb_contract::Fault;

use crate::world::World;

/// What ends random histories of a faulty cache; none when all of them run to their ends.
fn noticed(fault: Fault) -> Option<String> {
    for seed in 0..10 {
        for page_size in [4, 1] {
            let mut world = World::new(page_size, 24, fault, seed);
            let failed = (0..2000).find_map(|_| world.step().err());
            if let Some(law) = failed.or_else(|| world.drain().err()) {
                return Some(law);
            }
        }
    }
    None
}

/// The sentence with its numbers taken out.
fn law(sentence: &str) -> String {
    sentence.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[test]
fn a_cache_without_fault_passes() {
    assert_eq!(noticed(Fault::None), None);
}

#[test]
fn every_fault_is_caught_by_its_law() {
    let faults = [
        (Fault::LeakedReference, "node  has  locks and  holders"),
        (
            Fault::SlotTableNotRewritten,
            "is in  tables and has  references",
        ),
        (Fault::StaleHit, "hit of  tokens where  are stored"),
        (Fault::EvictWhileReferenced, "owned block  is in the tree"),
        (Fault::HitOffByOne, "hit of  tokens where  are stored"),
        (Fault::MissingAdapterKey, "hit of  tokens where  are stored"),
        (Fault::MissingSaltKey, "hit of  tokens where  are stored"),
        (
            Fault::MissingIdentityKey,
            "hit of  tokens where  are stored",
        ),
        (Fault::DoubleFree, "places of free list, tree and tables"),
        (Fault::CopyOnWriteSkipped, "owned block  is in the tree"),
    ];
    for (fault, expected) in faults {
        let sentence = noticed(fault).unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        assert!(
            law(&sentence).contains(expected),
            "{fault:?} was caught by another law: {sentence}"
        );
    }
}
