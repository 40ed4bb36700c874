//! Times of the emulated device: made up, for tests of what is done with them.

use super::Emulator;
use crate::error::KernelError;
use crate::profile::{Profile, Profiler};

/// Made-up times, and the launches of the profile under way.
#[derive(Debug, Default)]
pub(super) struct Timing {
    block_ns: Option<u64>,
    launches: Option<Vec<(String, u64)>>,
}

impl Emulator<'_> {
    /// Lets every block of a launch take `block_ns` nanoseconds in profiles from now on; nothing
    /// takes longer for it.
    pub fn pretend_time(&self, block_ns: u64) {
        self.timing.borrow_mut().block_ns = Some(block_ns);
    }

    /// Notes a launch.
    pub(super) fn note_launch(&self, kernel: &str, grid: [u32; 3]) {
        let timing = &mut *self.timing.borrow_mut();
        if let (Some(launches), Some(block_ns)) = (&mut timing.launches, timing.block_ns) {
            let blocks: u64 = grid.into_iter().map(u64::from).product();
            launches.push((kernel.to_owned(), blocks * block_ns));
        }
    }
}

impl Profiler for Emulator<'_> {
    fn profile(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<Profile>, KernelError> {
        let has_time = self.timing.borrow().block_ns.is_some();
        self.timing.borrow_mut().launches = has_time.then(Vec::new);
        let done = work();
        let launches = self.timing.borrow_mut().launches.take();
        done?;
        Ok(launches.map(|launches| Profile::new(launches.into_iter(), 0)))
    }
}
