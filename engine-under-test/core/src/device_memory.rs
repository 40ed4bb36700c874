//! Memory of a backend's device, apart from what the blocks in it are used for.

/// Memory that was allocated for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurposeMemory {
    /// What it is for, as the backend calls it.
    pub purpose: &'static str,
    /// Bytes now.
    pub bytes: u64,
    /// The most there ever were; those of several purposes need not be of one time.
    pub peak_bytes: u64,
}

/// The driver's pool, which keeps what is given back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMemory {
    /// Bytes that it has taken from the device.
    pub reserved_bytes: u64,
    /// Bytes of them that are in use.
    pub used_bytes: u64,
}

/// The device's memory, of all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeMemory {
    /// Bytes of the device.
    pub total_bytes: u64,
    /// Bytes that nobody has reserved.
    pub free_bytes: u64,
}

/// Where the memory of a device stands. How full the KV pool is does not follow from any of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What the backend has allocated; the purposes are disjoint.
    pub purposes: Vec<PurposeMemory>,
    /// The most that was allocated at one time, in bytes.
    pub peak_bytes: u64,
    /// Page-locked memory of the host, in bytes.
    pub pinned_bytes: u64,
    /// `None` where nobody says.
    pub pool: Option<PoolMemory>,
    /// `None` from a device that has no memory of its own, and where the driver does not say.
    pub whole: Option<WholeMemory>,
}

impl DeviceMemory {
    /// Bytes that are allocated, for all purposes.
    pub fn bytes(&self) -> u64 {
        self.purposes.iter().map(|p| p.bytes).sum()
    }
}
