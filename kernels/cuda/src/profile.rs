//! How long each kernel took within a longer piece of work.

use std::collections::BTreeMap;

use crate::error::KernelError;

/// Time of the launches of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelTime {
    /// Name, as in the source; `vendor_gemm` for products of the vendor's library.
    pub kernel: String,
    /// Launches.
    pub launches: u64,
    /// Their time on the device in nanoseconds, all together.
    pub ns: u64,
}

/// Times of all kernels of some work, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Kernels in the order of their names.
    pub kernels: Vec<KernelTime>,
    /// What the device takes for two events with nothing between them: so much of the time of every
    /// launch is the measurement's own.
    pub floor_ns: u64,
}

impl Profile {
    /// The sums of `launches` by name.
    pub(crate) fn new(launches: impl Iterator<Item = (String, u64)>, floor_ns: u64) -> Self {
        let mut sums = BTreeMap::<String, (u64, u64)>::new();
        for (kernel, ns) in launches {
            let sum = sums.entry(kernel).or_default();
            *sum = (sum.0 + 1, sum.1 + ns);
        }
        let time = |(kernel, (launches, ns))| KernelTime {
            kernel,
            launches,
            ns,
        };
        Profile {
            kernels: sums.into_iter().map(time).collect(),
            floor_ns,
        }
    }

    /// Time that is the measurement's own.
    pub fn overhead_ns(&self) -> u64 {
        let launches: u64 = self.kernels.iter().map(|k| k.launches).sum();
        launches * self.floor_ns
    }
}

/// Times of kernels on a device.
pub trait Profiler {
    /// Runs `work` and times every launch in the compute lane, but those of graphs. Returns after
    /// the last of them. `None` from a device without time, which runs `work` all the same.
    ///
    /// # Errors
    /// Those of `work`, and [`KernelError`] when the device fails.
    fn profile(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<Profile>, KernelError>;
}

#[cfg(test)]
mod tests {
    use super::{KernelTime, Profile};

    #[test]
    fn launches_of_one_name_are_one_row() {
        let launches = [("b", 5), ("a", 1), ("b", 7)].map(|(k, ns)| (k.to_owned(), ns));
        let profile = Profile::new(launches.into_iter(), 2);
        let time = |kernel: &str, launches, ns| KernelTime {
            kernel: kernel.to_owned(),
            launches,
            ns,
        };
        assert_eq!(profile.kernels, [time("a", 1, 1), time("b", 2, 12)]);
        assert_eq!(profile.overhead_ns(), 6);
    }
}
