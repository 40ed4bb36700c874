//! What a device's memory is for, and how much of it there is.

/// What an allocation is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Nobody has said so.
    #[default]
    Unattributed,
    /// Weights of the model, and tables of its rotations.
    Weights,
    /// Adapters of low rank.
    Adapters,
    /// Keys and values.
    KvPool,
    /// Values between operations, logits among them, with the short lists that some operations take
    /// beside their operands.
    Activations,
    /// Words that say what a launch is about: tokens, places, plans, block tables.
    Plans,
    /// Block images on their way between host and device.
    Staging,
    /// Scratch of the vendor's library.
    Workspace,
}

impl Purpose {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Purpose; 8] = [
        Purpose::Unattributed,
        Purpose::Weights,
        Purpose::Adapters,
        Purpose::KvPool,
        Purpose::Activations,
        Purpose::Plans,
        Purpose::Staging,
        Purpose::Workspace,
    ];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Unattributed => "unattributed",
            Purpose::Weights => "weights",
            Purpose::Adapters => "adapters",
            Purpose::KvPool => "kv_pool",
            Purpose::Activations => "activations",
            Purpose::Plans => "plans",
            Purpose::Staging => "staging",
            Purpose::Workspace => "workspace",
        }
    }
}

/// Bytes that are allocated, and the most that ever were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Now.
    pub bytes: u64,
    /// At any time; peaks of several purposes need not be of one time.
    pub peak_bytes: u64,
}

impl Allocated {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }
}

/// A pool that memory comes from, and that keeps what is given back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMemory {
    /// Bytes that it has taken from the device.
    pub reserved_bytes: u64,
    /// Bytes of them that are handed out, as the pool counts them.
    pub used_bytes: u64,
}

/// The whole memory of a device, of all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeMemory {
    /// Bytes of the device.
    pub total_bytes: u64,
    /// Bytes that nobody has reserved.
    pub free_bytes: u64,
}

/// Where the memory of a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What was asked for, in the order of [`Purpose::ALL`].
    pub by_purpose: [Allocated; Purpose::ALL.len()],
    /// All of it.
    pub all: Allocated,
    /// Page-locked memory of the host, in bytes.
    pub pinned_bytes: u64,
    /// What the memory comes from; `None` where nobody says.
    pub pool: Option<PoolMemory>,
    /// `None` from a device that has no memory of its own, and where the driver does not say.
    pub whole: Option<WholeMemory>,
}

impl DeviceMemory {
    /// What is for `purpose`.
    pub fn of(&self, purpose: Purpose) -> Allocated {
        self.by_purpose[purpose as usize]
    }
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    purpose: Purpose,
    bytes: u64,
}

/// Allocations in their order, with their purposes: what every device keeps.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    purpose: Purpose,
    entries: Vec<Entry>,
    by_purpose: [Allocated; Purpose::ALL.len()],
    all: Allocated,
}

impl Ledger {
    /// Sets what allocations are for from now on; gives what they were for.
    pub(crate) fn purpose(&mut self, purpose: Purpose) -> Purpose {
        std::mem::replace(&mut self.purpose, purpose)
    }

    /// Takes an allocation in.
    pub(crate) fn add(&mut self, address: u64, bytes: u64) {
        let purpose = self.purpose;
        self.entries.push(Entry {
            address,
            purpose,
            bytes,
        });
        self.by_purpose[purpose as usize].add(bytes);
        self.all.add(bytes);
    }

    /// Allocations so far.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Strikes the last allocation out if there are more than `kept`; gives its address.
    pub(crate) fn remove_last(&mut self, kept: usize) -> Option<u64> {
        if self.entries.len() <= kept {
            return None;
        }
        let entry = self.entries.pop()?;
        self.by_purpose[entry.purpose as usize].bytes -= entry.bytes;
        self.all.bytes -= entry.bytes;
        Some(entry.address)
    }

    /// What it says, without pool and device.
    pub(crate) fn memory(&self, pinned_bytes: u64) -> DeviceMemory {
        DeviceMemory {
            by_purpose: self.by_purpose,
            all: self.all,
            pinned_bytes,
            pool: None,
            whole: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Allocated, Ledger, Purpose};

    #[test]
    fn purposes_are_counted_in_their_places() {
        for (place, purpose) in Purpose::ALL.into_iter().enumerate() {
            assert_eq!(purpose as usize, place, "{}", purpose.name());
        }
    }

    #[test]
    fn bytes_come_and_go_with_their_purpose_and_peaks_stay() {
        let mut ledger = Ledger::default();
        ledger.add(1000, 10);
        assert_eq!(ledger.purpose(Purpose::Weights), Purpose::Unattributed);
        ledger.add(2000, 7);
        ledger.purpose(Purpose::Plans);
        ledger.add(3000, 5);
        ledger.purpose(Purpose::Weights);
        // Given back under another purpose than it was taken under.
        assert_eq!(ledger.remove_last(2), Some(3000));
        assert_eq!(ledger.remove_last(2), None);
        ledger.add(4000, 1);
        let found = ledger.memory(3);
        let bytes = |bytes, peak_bytes| Allocated { bytes, peak_bytes };
        assert_eq!(found.of(Purpose::Unattributed), bytes(10, 10));
        assert_eq!(found.of(Purpose::Weights), bytes(8, 8));
        assert_eq!(found.of(Purpose::Plans), bytes(0, 5));
        assert_eq!((found.all, found.pinned_bytes), (bytes(18, 22), 3));
        assert_eq!(ledger.len(), 3);
    }
}
