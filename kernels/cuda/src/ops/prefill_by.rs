//! Which kernel computes paged prefill.

use crate::elem::{Elem, StoreElem};

/// A kernel of paged prefill. Both take the same plan; their bits differ, because their sums over
/// keys are in different orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillBy {
    /// `prefill.cu`, by `mma.sync`: every device and every store.
    #[default]
    Mma,
    /// `prefill_sm90.cu`, by `wgmma`: compute capability 9.0 and stores of 16 bits.
    Wgmma,
}

impl PrefillBy {
    /// The kernel whose name in tables this is.
    pub fn named(name: &str) -> Option<Self> {
        [PrefillBy::Mma, PrefillBy::Wgmma]
            .into_iter()
            .find(|by| by.name() == name)
    }

    /// In names of kernels, and in tables.
    pub fn name(self) -> &'static str {
        match self {
            PrefillBy::Mma => "prefill",
            PrefillBy::Wgmma => "prefill_sm90",
        }
    }

    /// Whether it has activations of type `T` over a store of type `S`.
    pub fn takes<T: Elem, S: StoreElem<T>>(self) -> bool {
        self == PrefillBy::Mma || !S::SCALED
    }

    /// Threads of a block.
    pub(super) fn threads(self) -> u32 {
        match self {
            PrefillBy::Mma => 128,
            PrefillBy::Wgmma => 256,
        }
    }

    /// Bytes of shared memory of a block: queries, two tiles of keys and of values.
    pub(super) fn shared_bytes(self, d_head: usize) -> u32 {
        let rows = match self {
            PrefillBy::Mma => 64 + 4 * 64,
            PrefillBy::Wgmma => 128 + 4 * 128,
        };
        rows * d_head as u32 * 2
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::PrefillBy;
    use crate::elem::E4m3;

    #[test]
    fn kernels_have_the_types_and_the_room_that_their_headers_say() {
        assert!(PrefillBy::Wgmma.takes::<f16, f16>() && !PrefillBy::Wgmma.takes::<bf16, E4m3>());
        assert!(PrefillBy::Mma.takes::<bf16, E4m3>());
        // The tables of docs/KERNELS.md: KiB at d 64 and 128.
        let kib = |by: PrefillBy| [64, 128].map(|d| by.shared_bytes(d) >> 10);
        assert_eq!(kib(PrefillBy::Mma), [40, 80]);
        assert_eq!(kib(PrefillBy::Wgmma), [80, 160]);
        assert_eq!(PrefillBy::named("prefill_sm90"), Some(PrefillBy::Wgmma));
        assert_eq!(PrefillBy::named("prefill_sm80"), None);
    }
}
