//! Planted faults are caught by random operations, and shrunk to short scripts that still fail.

use pb_contract::{Fault, PrefixCacheKind};
use pb_kv::KvConfig;
use pb_kv::script::run_script;

use crate::{Tally, broken_by, episode, smallest};

/// Faults of block names, references and copies, by the cache that carries them.
const FAULTS: &[(PrefixCacheKind, &[Fault])] = &[
    (
        PrefixCacheKind::HashChain,
        &[
            Fault::StaleHit,
            Fault::WrongParent,
            Fault::MissingAdapterKey,
            Fault::MissingSaltKey,
            Fault::MissingIdentityKey,
            Fault::DoubleFree,
            Fault::LeakedReference,
            Fault::HitOffByOne,
            Fault::PartialBlockShared,
            Fault::EvictWhileReferenced,
            Fault::CopyOnWriteSkipped,
            Fault::UncomputedNameKept,
        ],
    ),
    (
        PrefixCacheKind::Radix,
        &[
            Fault::StaleHit,
            Fault::MissingAdapterKey,
            Fault::MissingSaltKey,
            Fault::MissingIdentityKey,
            Fault::DoubleFree,
            Fault::LeakedReference,
            Fault::HitOffByOne,
            Fault::EvictWhileReferenced,
            Fault::CopyOnWriteSkipped,
            Fault::SlotTableNotRewritten,
        ],
    ),
];

/// No script that is needed to show any of the faults is longer.
const LINES: usize = 16;

/// The operations of the first episode that fails.
fn failing(config: KvConfig) -> Option<Vec<pb_kv::script::Op>> {
    (0..40).find_map(|seed| episode(config, seed, 500, &mut Tally::default()).err())
}

#[test]
fn every_planted_fault_is_caught_and_shrunk_to_a_short_script() {
    for &(kind, faults) in FAULTS {
        let clean = KvConfig {
            record_evictions: true,
            ..KvConfig::new(4, 5, kind)
        };
        assert_eq!(failing(clean), None, "without a fault nothing fails");
        for &fault in faults {
            let config = KvConfig { fault, ..clean };
            let ops = failing(config).unwrap_or_else(|| panic!("{kind:?}, {fault:?}: not caught"));
            let lines = smallest(config, &ops);
            let script = lines.join("\n");
            assert!(
                lines.len() <= LINES,
                "{fault:?}: {} lines:\n{script}",
                lines.len()
            );
            let again = smallest(config, &ops);
            assert_eq!(again, lines, "{fault:?}: shrunk in two ways");
            // The lines alone show the fault, through the interface that anybody can use.
            let answers = run_script(lines.iter().map(String::as_str)).unwrap();
            let law = answers[answers.len() - 1]["broken"].as_str();
            let law = law.unwrap_or_else(|| panic!("{fault:?}: not reproduced by\n{script}"));
            println!("{kind:?}, {fault:?}: {} lines: {law}", lines.len());
            // And the same lines are fine where the fault is not planted.
            let sound = lines[0].replace(&format!("{:?}", name(fault)), "\"none\"");
            assert_ne!(sound, lines[0]);
            let sound =
                std::iter::once(sound.as_str()).chain(lines[1..].iter().map(String::as_str));
            let answers = run_script(sound).unwrap();
            assert_eq!(answers.len(), lines.len());
            assert!(answers.iter().all(|answer| answer["broken"].is_null()));
        }
    }
}

/// The name of a fault in configuration files and scripts.
fn name(fault: Fault) -> String {
    let name = serde_json::to_value(fault).unwrap();
    name.as_str().unwrap().to_owned()
}

#[test]
fn faults_that_a_cache_does_not_carry_change_nothing() {
    let config = KvConfig {
        fault: Fault::MaskSeesFuture,
        record_evictions: true,
        ..KvConfig::new(4, 10, PrefixCacheKind::HashChain)
    };
    for seed in 0..5 {
        let ops = episode(config, seed, 500, &mut Tally::default()).err();
        assert_eq!(ops.and_then(|ops| broken_by(config, &ops)), None);
    }
}
