//! What the driver says of its memory.

use cudarc::driver::{result as cu, sys};

use super::CudaDevice;
use crate::memory::{DeviceMemory, PoolMemory, WholeMemory};

impl CudaDevice {
    /// `said` with what the driver says of its pool and of the device. What it does not say is left
    /// out: a driver that fails for good fails the next step.
    pub(super) fn with_driver(&self, said: DeviceMemory) -> DeviceMemory {
        if self.bind().is_err() {
            return said;
        }
        let whole = cu::mem_get_info().ok();
        DeviceMemory {
            pool: self.pool_memory(),
            whole: whole.map(|(free, total)| WholeMemory {
                total_bytes: total as u64,
                free_bytes: free as u64,
            }),
            ..said
        }
    }

    /// What the pool has reserved and handed out.
    fn pool_memory(&self) -> Option<PoolMemory> {
        use sys::CUmemPool_attribute_enum::{
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED,
        };
        // SAFETY: the device is alive, and so is its pool.
        let pool = unsafe { cu::device::get_mem_pool(self.device) }.ok()?;
        let ask = |what| {
            let mut bytes = 0u64;
            let value = std::ptr::from_mut(&mut bytes).cast();
            // SAFETY: the pool is alive, and both attributes are unsigned 64-bit numbers.
            let asked = unsafe { cu::mem_pool::get_attribute(pool, what, value) };
            asked.ok().map(|()| bytes)
        };
        Some(PoolMemory {
            reserved_bytes: ask(RESERVED)?,
            used_bytes: ask(USED)?,
        })
    }
}
