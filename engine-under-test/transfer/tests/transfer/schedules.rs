//! Random schedules of cuts, kills, cancellations, corruption and slowness, and the proof that
//! they would notice.

use pb_transfer::Defect;

use crate::world::{Marks, run};

const SCHEDULES: u64 = 12_000;

#[test]
fn no_block_leaks_or_is_freed_twice_and_no_request_is_lost() {
    let mut marks = Marks::new();
    for seed in 0..SCHEDULES {
        if let Err(law) = run(seed, Defect::None, &mut marks) {
            panic!("seed {seed}: {law}");
        }
    }
    // Each way to end, and each way to be late, must have been met often.
    for (name, at_least) in [
        ("Acknowledged", 10_000),
        ("Expired", 500),
        ("Aborted", 500),
        ("PeerDead", 500),
        ("late ack", 20),
        ("late cells", 500),
        ("corrupt cells", 1_000),
        ("stale start", 10),
        ("source killed", 1_000),
        ("sink killed", 1_000),
        ("cancelled", 500),
        ("cancel before offer", 10),
        ("fail cancelled", 100),
        ("fail corrupt", 50),
        ("fail expired", 50),
        ("fail link_down", 100),
        ("fail no_room", 20),
        ("fail stalled", 20),
    ] {
        let seen = marks.get(name).copied().unwrap_or(0);
        assert!(seen >= at_least, "{name}: {seen} times in {marks:#?}");
    }
}

#[test]
fn every_planted_defect_is_caught() {
    let caught = |defect| {
        let mut marks = Marks::new();
        (0..2_000).find_map(|seed| run(seed, defect, &mut marks).err())
    };
    // Kept blocks run out sooner or later, and then nothing ends.
    let leak = &["left over", "no end"][..];
    for (defect, laws) in [
        (Defect::FreeTwice, &["which is not its"][..]),
        (Defect::FreeInFlight, &["freed and still read"]),
        (Defect::LeakOnAbort, leak),
        (Defect::SendUnsealed, &["not computed"]),
        (Defect::SkipChecksum, &["wrong bytes"]),
        (Defect::StartIncomplete, &["wrong bytes"]),
        (Defect::KeepOnFailure, leak),
        (Defect::LoseRequest, &["left over", "no end", "lost"]),
    ] {
        let found = caught(defect);
        let text = found.unwrap_or_else(|| panic!("{defect:?} goes unnoticed"));
        let named = laws.iter().any(|law| text.contains(law));
        assert!(named, "{defect:?}: {text}");
    }
}

#[test]
fn a_schedule_is_the_same_every_time() {
    let marks = |seed| {
        let mut marks = Marks::new();
        run(seed, Defect::None, &mut marks).unwrap();
        marks
    };
    for seed in 0..50 {
        assert_eq!(marks(seed), marks(seed));
    }
}
