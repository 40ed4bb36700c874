//! Which check must catch which fault, and which check must not.

use pb_contract::Fault;

use super::Check;

/// The checks that must reject a fault.
pub const fn expected(fault: Fault) -> &'static [Check] {
    match fault {
        Fault::None => &[],
        Fault::MaskSeesFuture
        | Fault::MaskExcludesSelf
        | Fault::MaskTopLeft
        | Fault::ContextIgnored
        | Fault::LastOfPreviousChunkMissing
        | Fault::FirstTokenMissing
        | Fault::PartialBlockMissing
        | Fault::RopeRestartsEachChunk
        | Fault::RopePlusOneAfterFirstChunk
        | Fault::RopeMinusOneAfterFirstChunk
        | Fault::StaleBlockOneLayer
        | Fault::StaleBlock
        | Fault::StaleSlotOneLayer
        | Fault::ZeroSlotOneLayer
        | Fault::ZeroSlot
        | Fault::KvHeadModulo
        | Fault::MergeBase2
        | Fault::KBlocksSwapped
        | Fault::LogitsRowOffByOne => &[Check::T0Bits, Check::OwnReference, Check::T1MaxRho],
        // The order of a sum, which only bits show.
        Fault::KAndVBlocksSwapped => &[Check::T0Bits],
        // An approximation: beyond the limits of f32, as it should be.
        Fault::KvMantissaCut => &[Check::T0Bits, Check::T1MaxRho],
        Fault::StaleHit => &[Check::Conservation, Check::SoloOutputs],
        Fault::WrongParent => &[Check::HitBound, Check::SoloOutputs],
        Fault::MissingAdapterKey => &[Check::HitBound, Check::SoloOutputs, Check::Isolation],
        // The same tokens give the same values: no output shows it.
        Fault::MissingSaltKey => &[Check::HitBound, Check::Isolation],
        Fault::MissingIdentityKey => &[Check::Isolation],
        Fault::DoubleFree | Fault::LeakedReference => &[Check::Conservation],
        Fault::HitOffByOne => &[Check::HitBound],
        Fault::PartialBlockShared => &[Check::HitBound, Check::SoloOutputs],
        Fault::EvictWhileReferenced => &[Check::Conservation, Check::SoloOutputs],
        Fault::CopyOnWriteSkipped => &[Check::SoloOutputs],
        Fault::SlotTableNotRewritten => &[Check::Conservation],
        Fault::UncomputedNameKept => &[Check::HitBound, Check::SoloOutputs],
        Fault::TierKeyWithoutScope => &[Check::TierIsolation],
        Fault::TierCorruption => &[Check::TierOutputs],
        Fault::SwapLosesBlock => &[Check::SwapOutputs],
        Fault::RngDrawnOnPartialChunk => &[Check::SeededDraws],
        Fault::ChunkBeyondBudget | Fault::DecodeSkipped => &[Check::PlanLaws],
        Fault::Starvation => &[Check::PlanLaws, Check::Liveness],
        Fault::CounterDrift | Fault::PreemptedHitCounted => &[Check::Counters],
        Fault::LostOnPreemption => &[Check::Conservation, Check::Liveness],
    }
}

/// The checks that must accept a fault, because it is no defect for them.
pub fn accepted_by(fault: Fault) -> Vec<Check> {
    match fault {
        Fault::None => Check::ALL.to_vec(),
        Fault::KAndVBlocksSwapped => Check::T1.to_vec(),
        Fault::KvMantissaCut => vec![Check::OwnReference],
        // Salt and identity change no value, so nothing that looks at values may object.
        Fault::MissingSaltKey | Fault::MissingIdentityKey => vec![Check::SoloOutputs],
        _ => Vec::new(),
    }
}
