//! Faults planted on purpose, so that a check can prove that it would notice.
//!
//! The numerical ones are the classic defects of chunked prefill and prefix reuse; the others
//! stand for kinds of public fault reports of prefix caches and schedulers. Off by default; an
//! engine refuses to start with one unless it is told that it runs under test.

use serde::{Deserialize, Serialize};

/// A planted fault.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Attention within a chunk sees one key of the future.
    MaskSeesFuture,
    /// Attention excludes a token's own key.
    MaskExcludesSelf,
    /// The causal mask is aligned to the top left: it ignores the cached prefix's length.
    MaskTopLeft,
    /// A chunk attends to itself alone.
    ContextIgnored,
    /// The last token of the previous chunk is not attended to.
    LastOfPreviousChunkMissing,
    /// Later chunks do not attend to the first token.
    FirstTokenMissing,
    /// The partly filled last block of the context is not attended to.
    PartialBlockMissing,
    /// Rotary positions start at zero in every chunk.
    RopeRestartsEachChunk,
    /// Rotary positions are one too high from the second chunk of a prompt on.
    RopePlusOneAfterFirstChunk,
    /// Rotary positions are one too low from the second chunk of a prompt on.
    RopeMinusOneAfterFirstChunk,
    /// One block of context holds other data in one layer.
    StaleBlockOneLayer,
    /// One block of context holds other data in all layers.
    StaleBlock,
    /// The last slot before a chunk holds other data in one layer.
    StaleSlotOneLayer,
    /// The last slot before a chunk is zero in one layer.
    ZeroSlotOneLayer,
    /// The last slot before a chunk is zero in all layers.
    ZeroSlot,
    /// Query head `h` reads KV head `h mod kv_heads` instead of `h / group`.
    KvHeadModulo,
    /// Partial softmax sums are merged with base 2 instead of e.
    MergeBase2,
    /// Two blocks of context have their keys swapped, not their values.
    KBlocksSwapped,
    /// Two blocks of context are swapped whole: benign, keys carry their positions.
    KAndVBlocksSwapped,
    /// Logits are taken one row too early.
    LogitsRowOffByOne,
    /// KV values keep three bits of mantissa: an approximation, not a defect.
    KvMantissaCut,
    /// An evicted block is still found.
    StaleHit,
    /// A block's name ignores the blocks before it.
    WrongParent,
    /// The adapter does not enter a block's name.
    MissingAdapterKey,
    /// The tenant's salt does not enter a block's name.
    MissingSaltKey,
    /// The engine's identity does not enter a block's name.
    MissingIdentityKey,
    /// A released table drops its last block's reference twice.
    DoubleFree,
    /// Releasing a table leaves one block referenced; in a radix tree, one path locked.
    LeakedReference,
    /// A fully cached prompt hits its last token too.
    HitOffByOne,
    /// A block is named before it is full.
    PartialBlockShared,
    /// A referenced block is handed out again.
    EvictWhileReferenced,
    /// A shared partial block is written in place.
    CopyOnWriteSkipped,
    /// After caching between chunks the request keeps the slots that were freed as duplicates.
    SlotTableNotRewritten,
    /// A block named in a step that never ran stays reusable.
    UncomputedNameKept,
    /// A tier's key leaves out adapter, salt and identity.
    TierKeyWithoutScope,
    /// A tier returns a block with a flipped bit and no error.
    TierCorruption,
    /// The last block of a swapped request does not come back.
    SwapLosesBlock,
    /// A chunk that ends no prompt draws from the request's random stream.
    RngDrawnOnPartialChunk,
    /// A chunk takes one token more than the budget leaves.
    ChunkBeyondBudget,
    /// The oldest waiting request is passed over.
    Starvation,
    /// The last running decode gets no token while prompts get theirs.
    DecodeSkipped,
    /// A hit is counted again for each chunk.
    CounterDrift,
    /// Hits after a preemption are counted as first hits.
    PreemptedHitCounted,
    /// A preempted request is not put back into the queue.
    LostOnPreemption,
}

/// Which part of the engine carries a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// The forward pass.
    Numerics,
    /// Block pool, prefix cache, swap or tiers.
    Cache,
    /// Policy, queues or counters.
    Scheduler,
}

impl Fault {
    /// Every fault, in the order of their definition.
    pub const ALL: &[Fault] = &[
        Fault::MaskSeesFuture,
        Fault::MaskExcludesSelf,
        Fault::MaskTopLeft,
        Fault::ContextIgnored,
        Fault::LastOfPreviousChunkMissing,
        Fault::FirstTokenMissing,
        Fault::PartialBlockMissing,
        Fault::RopeRestartsEachChunk,
        Fault::RopePlusOneAfterFirstChunk,
        Fault::RopeMinusOneAfterFirstChunk,
        Fault::StaleBlockOneLayer,
        Fault::StaleBlock,
        Fault::StaleSlotOneLayer,
        Fault::ZeroSlotOneLayer,
        Fault::ZeroSlot,
        Fault::KvHeadModulo,
        Fault::MergeBase2,
        Fault::KBlocksSwapped,
        Fault::KAndVBlocksSwapped,
        Fault::LogitsRowOffByOne,
        Fault::KvMantissaCut,
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
        Fault::SlotTableNotRewritten,
        Fault::UncomputedNameKept,
        Fault::TierKeyWithoutScope,
        Fault::TierCorruption,
        Fault::SwapLosesBlock,
        Fault::RngDrawnOnPartialChunk,
        Fault::ChunkBeyondBudget,
        Fault::Starvation,
        Fault::DecodeSkipped,
        Fault::CounterDrift,
        Fault::PreemptedHitCounted,
        Fault::LostOnPreemption,
    ];

    /// The part that carries it; none for [`Fault::None`].
    pub const fn class(self) -> Option<FaultClass> {
        match self {
            Fault::None => None,
            Fault::StaleHit
            | Fault::WrongParent
            | Fault::MissingAdapterKey
            | Fault::MissingSaltKey
            | Fault::MissingIdentityKey
            | Fault::DoubleFree
            | Fault::LeakedReference
            | Fault::HitOffByOne
            | Fault::PartialBlockShared
            | Fault::EvictWhileReferenced
            | Fault::CopyOnWriteSkipped
            | Fault::SlotTableNotRewritten
            | Fault::UncomputedNameKept
            | Fault::TierKeyWithoutScope
            | Fault::TierCorruption
            | Fault::SwapLosesBlock => Some(FaultClass::Cache),
            Fault::RngDrawnOnPartialChunk
            | Fault::ChunkBeyondBudget
            | Fault::Starvation
            | Fault::DecodeSkipped
            | Fault::CounterDrift
            | Fault::PreemptedHitCounted
            | Fault::LostOnPreemption => Some(FaultClass::Scheduler),
            _ => Some(FaultClass::Numerics),
        }
    }

    /// What it does, as a phrase.
    pub fn description(self) -> &'static str {
        let row = DESCRIPTIONS.iter().find(|(fault, _)| *fault == self);
        row.map_or("", |(_, text)| text)
    }
}

/// What each fault does.
const DESCRIPTIONS: &[(Fault, &str)] = &[
    (Fault::None, "no fault"),
    (
        Fault::MaskSeesFuture,
        "Attention within a chunk sees one key of the future",
    ),
    (
        Fault::MaskExcludesSelf,
        "Attention excludes a token's own key",
    ),
    (
        Fault::MaskTopLeft,
        "The causal mask is aligned to the top left: it ignores the cached prefix's length",
    ),
    (Fault::ContextIgnored, "A chunk attends to itself alone"),
    (
        Fault::LastOfPreviousChunkMissing,
        "The last token of the previous chunk is not attended to",
    ),
    (
        Fault::FirstTokenMissing,
        "Later chunks do not attend to the first token",
    ),
    (
        Fault::PartialBlockMissing,
        "The partly filled last block of the context is not attended to",
    ),
    (
        Fault::RopeRestartsEachChunk,
        "Rotary positions start at zero in every chunk",
    ),
    (
        Fault::RopePlusOneAfterFirstChunk,
        "Rotary positions are one too high from the second chunk of a prompt on",
    ),
    (
        Fault::RopeMinusOneAfterFirstChunk,
        "Rotary positions are one too low from the second chunk of a prompt on",
    ),
    (
        Fault::StaleBlockOneLayer,
        "One block of context holds other data in one layer",
    ),
    (
        Fault::StaleBlock,
        "One block of context holds other data in all layers",
    ),
    (
        Fault::StaleSlotOneLayer,
        "The last slot before a chunk holds other data in one layer",
    ),
    (
        Fault::ZeroSlotOneLayer,
        "The last slot before a chunk is zero in one layer",
    ),
    (
        Fault::ZeroSlot,
        "The last slot before a chunk is zero in all layers",
    ),
    (
        Fault::KvHeadModulo,
        "Query head `h` reads KV head `h mod kv_heads` instead of `h / group`",
    ),
    (
        Fault::MergeBase2,
        "Partial softmax sums are merged with base 2 instead of e",
    ),
    (
        Fault::KBlocksSwapped,
        "Two blocks of context have their keys swapped, not their values",
    ),
    (
        Fault::KAndVBlocksSwapped,
        "Two blocks of context are swapped whole: benign, keys carry their positions",
    ),
    (
        Fault::LogitsRowOffByOne,
        "Logits are taken one row too early",
    ),
    (
        Fault::KvMantissaCut,
        "KV values keep three bits of mantissa: an approximation, not a defect",
    ),
    (Fault::StaleHit, "An evicted block is still found"),
    (
        Fault::WrongParent,
        "A block's name ignores the blocks before it",
    ),
    (
        Fault::MissingAdapterKey,
        "The adapter does not enter a block's name",
    ),
    (
        Fault::MissingSaltKey,
        "The tenant's salt does not enter a block's name",
    ),
    (
        Fault::MissingIdentityKey,
        "The engine's identity does not enter a block's name",
    ),
    (
        Fault::DoubleFree,
        "A released table drops its last block's reference twice",
    ),
    (
        Fault::LeakedReference,
        "Releasing a table leaves one block referenced; in a radix tree, one path locked",
    ),
    (
        Fault::HitOffByOne,
        "A fully cached prompt hits its last token too",
    ),
    (
        Fault::PartialBlockShared,
        "A block is named before it is full",
    ),
    (
        Fault::EvictWhileReferenced,
        "A referenced block is handed out again",
    ),
    (
        Fault::CopyOnWriteSkipped,
        "A shared partial block is written in place",
    ),
    (
        Fault::SlotTableNotRewritten,
        "After caching between chunks the request keeps the slots that were freed as duplicates",
    ),
    (
        Fault::UncomputedNameKept,
        "A block named in a step that never ran stays reusable",
    ),
    (
        Fault::TierKeyWithoutScope,
        "A tier's key leaves out adapter, salt and identity",
    ),
    (
        Fault::TierCorruption,
        "A tier returns a block with a flipped bit and no error",
    ),
    (
        Fault::SwapLosesBlock,
        "The last block of a swapped request does not come back",
    ),
    (
        Fault::RngDrawnOnPartialChunk,
        "A chunk that ends no prompt draws from the request's random stream",
    ),
    (
        Fault::ChunkBeyondBudget,
        "A chunk takes one token more than the budget leaves",
    ),
    (
        Fault::Starvation,
        "The oldest waiting request is passed over",
    ),
    (
        Fault::DecodeSkipped,
        "The last running decode gets no token while prompts get theirs",
    ),
    (Fault::CounterDrift, "A hit is counted again for each chunk"),
    (
        Fault::PreemptedHitCounted,
        "Hits after a preemption are counted as first hits",
    ),
    (
        Fault::LostOnPreemption,
        "A preempted request is not put back into the queue",
    ),
];
