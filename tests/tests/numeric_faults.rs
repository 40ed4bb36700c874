//! Every planted fault of the forward pass is caught, by the check that is meant to.

use std::collections::BTreeSet;

use anyhow::Result;
use pb_contract::{Fault, FaultClass, Numerics};
use pb_tests::numeric_faults::{Bench, FAULTS, Measured};

/// Chunks of whole blocks, and chunks that end within one.
const CHUNKS: [usize; 2] = [64, 50];
const PROMPTS: usize = 6;

/// Not defects: swapped blocks whose keys carry their positions, and a coarser cache.
const BENIGN: [Fault; 2] = [Fault::KAndVBlocksSwapped, Fault::KvMantissaCut];

fn print(measured: &Measured, published: f64) {
    let verdict = &measured.verdict.verdict;
    eprintln!(
        "{:?} chunk {}: {} values differ; error ratio {:.2e}, on a trained model {published:.1e}; \
         T1 {}",
        measured.fault,
        measured.chunk,
        measured.bits.differing_values,
        measured.ratio,
        if verdict.is_fail() {
            "rejects"
        } else {
            "accepts"
        },
    );
}

#[test]
fn the_list_names_every_fault_of_the_forward_pass() {
    let listed: BTreeSet<Fault> = FAULTS.iter().map(|(fault, _)| *fault).collect();
    let all = Fault::ALL.iter().copied();
    let numeric: BTreeSet<Fault> = all
        .filter(|f| f.class() == Some(FaultClass::Numerics))
        .collect();
    assert_eq!(listed, numeric);
}

#[test]
fn exact_mode_shows_every_defect_in_its_bits() -> Result<()> {
    let mut bench = Bench::new(Numerics::Exact, PROMPTS)?;
    for chunk in CHUNKS {
        let clean = bench.measure(Fault::None, chunk)?;
        assert!(clean.bits.is_equal(), "chunk {chunk}: {:?}", clean.bits);
        assert!(clean.verdict.verdict.is_pass() && clean.ratio == 1.0);
        for &(fault, published) in FAULTS.iter().filter(|(f, _)| !BENIGN.contains(f)) {
            let measured = bench.measure(fault, chunk)?;
            print(&measured, published);
            if fault == Fault::PartialBlockMissing && chunk % 16 == 0 {
                // There is no partial block to miss: this is why chunk sizes must vary.
                assert!(measured.bits.is_equal());
                continue;
            }
            let bits = &measured.bits;
            assert!(
                bits.verdict().is_fail(),
                "T0 misses {fault:?} in chunks of {chunk}"
            );
            assert!(measured.verdict.verdict.is_fail(), "T1 misses {fault:?}");
            assert!(measured.ratio > 100.0, "{fault:?}: {}", measured.ratio);
            // The first chunk is a monolithic prefill of its own: nothing may differ there.
            let first = bits.first.as_ref().map(|at| at.position as usize);
            assert!(first >= Some(chunk), "{fault:?} shows at {first:?}");
        }
    }
    Ok(())
}

#[test]
fn swapped_blocks_are_the_same_sum_in_another_order() -> Result<()> {
    let mut bench = Bench::new(Numerics::Exact, PROMPTS)?;
    for chunk in CHUNKS {
        let measured = bench.measure(Fault::KAndVBlocksSwapped, chunk)?;
        print(&measured, 1.01);
        // T0 does see the order of a sum; T1 must not take it for a defect.
        assert!(!measured.bits.is_equal());
        assert!(
            !measured.verdict.verdict.is_fail(),
            "{:?}",
            measured.verdict.verdict
        );
        assert!((0.8..1.25).contains(&measured.ratio), "{}", measured.ratio);
    }
    Ok(())
}

#[test]
fn a_coarser_cache_is_judged_by_its_own_monolithic_run() -> Result<()> {
    let mut bench = Bench::new(Numerics::Exact, PROMPTS)?;
    for chunk in CHUNKS {
        let measured = bench.measure(Fault::KvMantissaCut, chunk)?;
        print(&measured, 5.4e4);
        // As large as a defect, so limits for f32 cannot judge it; against itself it is exact.
        assert!(measured.ratio > 100.0 && measured.verdict.verdict.is_fail());
        assert!(measured.own_bits.is_equal());
    }
    Ok(())
}

#[test]
fn fast_mode_shows_every_defect_in_its_errors() -> Result<()> {
    let mut bench = Bench::new(Numerics::Fast, PROMPTS)?;
    for &(fault, published) in FAULTS {
        let measured = bench.measure(fault, 50)?;
        print(&measured, published);
        let rejected = measured.verdict.verdict.is_fail();
        assert_eq!(rejected, fault != Fault::KAndVBlocksSwapped, "{fault:?}");
        assert!(
            !rejected || measured.ratio > 100.0,
            "{fault:?}: {}",
            measured.ratio
        );
    }
    let clean = bench.measure(Fault::None, 50)?;
    assert!(
        clean.verdict.verdict.is_pass(),
        "{:?}",
        clean.verdict.verdict
    );
    Ok(())
}
