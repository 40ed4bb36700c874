//! Memory of the device in the core's words.

use pb_core::{DeviceMemory, PoolMemory, PurposeMemory, WholeMemory};
use pb_kernels_cuda::Purpose;

/// What a device says, as the engine tells it.
pub(crate) fn told(said: &pb_kernels_cuda::DeviceMemory) -> DeviceMemory {
    let purpose = |purpose: Purpose| {
        let found = said.of(purpose);
        PurposeMemory {
            purpose: purpose.name(),
            bytes: found.bytes,
            peak_bytes: found.peak_bytes,
        }
    };
    DeviceMemory {
        purposes: Purpose::ALL.map(purpose).to_vec(),
        peak_bytes: said.all.peak_bytes,
        pinned_bytes: said.pinned_bytes,
        pool: said.pool.map(|pool| PoolMemory {
            reserved_bytes: pool.reserved_bytes,
            used_bytes: pool.used_bytes,
        }),
        whole: said.whole.map(|whole| WholeMemory {
            total_bytes: whole.total_bytes,
            free_bytes: whole.free_bytes,
        }),
    }
}
