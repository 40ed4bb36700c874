//! Planted faults of the forward pass: who carries them, and that planting costs nothing else.

mod common;

use std::sync::Arc;

use common::{Rows, logits, prompt};
use pb_contract::{Fault, KvDtype, Numerics};
use pb_model::forward::{Decoder, ForwardError, ForwardOptions, build};
use pb_model::synth::{Kind, Size, generate};

const DTYPES: [KvDtype; 6] = [
    KvDtype::F32,
    KvDtype::F16,
    KvDtype::Bf16,
    KvDtype::Fp8E4m3,
    KvDtype::Fp8E5m2,
    KvDtype::Int8,
];

fn decoder(
    numerics: Numerics,
    kv_dtype: KvDtype,
    fault: Fault,
) -> Result<Box<dyn Decoder>, ForwardError> {
    let (_, weights, _) = generate(Kind::Sharp, Size::Tiny, 3);
    let options = ForwardOptions {
        numerics,
        kv_dtype,
        fault,
        ..ForwardOptions::default()
    };
    build(&Arc::new(weights), &Arc::default(), options)
}

fn rows(decoder: &mut dyn Decoder, chunk: usize) -> Rows {
    logits(decoder, &[(prompt(1, 72), None)], &[chunk])
}

/// Attention of a faulty run reads the cache back and computes on a copy. Where there is nothing
/// to get wrong, that must not change a bit, whatever the elements are.
#[test]
fn a_fault_without_an_occasion_changes_no_bit() {
    for dtype in DTYPES {
        let mut subject = decoder(Numerics::Exact, dtype, Fault::None).unwrap();
        let clean = rows(subject.as_mut(), 72);
        subject.set_fault(Fault::PartialBlockMissing).unwrap();
        assert!(
            rows(subject.as_mut(), 32) == clean,
            "{dtype:?}: whole blocks"
        );
        assert!(
            rows(subject.as_mut(), 24) != clean,
            "{dtype:?}: partial blocks"
        );
        assert!(rows(subject.as_mut(), 72) == clean, "{dtype:?}: one chunk");
        subject.set_fault(Fault::None).unwrap();
        assert!(
            rows(subject.as_mut(), 24) == clean,
            "{dtype:?}: taken out again"
        );
    }
}

#[test]
fn a_fault_may_be_planted_at_the_start_or_later() {
    let fault = Fault::RopePlusOneAfterFirstChunk;
    let mut built = decoder(Numerics::Exact, KvDtype::F32, fault).unwrap();
    let mut set = decoder(Numerics::Exact, KvDtype::F32, Fault::None).unwrap();
    let clean = rows(set.as_mut(), 24);
    set.set_fault(fault).unwrap();
    let faulty = rows(set.as_mut(), 24);
    assert!(faulty != clean && rows(built.as_mut(), 24) == faulty);
}

#[test]
fn faults_of_other_parts_do_nothing_here() {
    let mut subject = decoder(Numerics::Exact, KvDtype::F32, Fault::None).unwrap();
    let clean = rows(subject.as_mut(), 24);
    for fault in [Fault::StaleHit, Fault::Starvation, Fault::SwapLosesBlock] {
        subject.set_fault(fault).unwrap();
        assert!(rows(subject.as_mut(), 24) == clean, "{fault:?}");
    }
}

#[test]
fn the_reference_takes_no_fault_of_the_forward_pass() {
    let refused = decoder(Numerics::F64, KvDtype::F64, Fault::ZeroSlot).map(|_| ());
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("ZeroSlot") && text.contains("F64"), "{text}");
    let mut reference = decoder(Numerics::F64, KvDtype::F64, Fault::StaleHit).unwrap();
    assert!(reference.set_fault(Fault::MaskTopLeft).is_err());
    assert!(reference.set_fault(Fault::StaleHit).is_ok());
}
