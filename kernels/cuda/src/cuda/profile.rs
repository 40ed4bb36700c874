//! Times of launches: an event before and one behind each.

use cudarc::driver::{result as cu, sys};

use super::{CudaDevice, call};
use crate::error::KernelError;
use crate::lanes::Lane;
use crate::profile::{Profile, Profiler};

/// Pairs of events with nothing between them; their median is the floor.
const EMPTY_PAIRS: usize = 9;

/// Events for times, used again by every profile, and the launches of the one under way.
#[derive(Default)]
pub(super) struct Timing {
    pairs: Vec<[sys::CUevent; 2]>,
    /// Name of the launch of each pair; `None` while nothing is timed.
    names: Option<Vec<String>>,
}

impl CudaDevice {
    /// Runs `work`, which launches `kernel` if it returns `true`, between two events while a
    /// profile is under way.
    pub(super) fn timed(
        &self,
        kernel: &str,
        work: impl FnOnce() -> Result<bool, KernelError>,
    ) -> Result<bool, KernelError> {
        let in_compute = self.current.get() == Lane::Compute;
        let launches = self.timing.borrow().names.as_ref().map(Vec::len);
        let Some(pair) = launches.filter(|_| in_compute) else {
            return work();
        };
        let [before, behind] = self.pair(pair)?;
        self.stamp(before)?;
        let launched = work()?;
        if launched {
            self.stamp(behind)?;
            if let Some(names) = &mut self.timing.borrow_mut().names {
                names.push(kernel.to_owned());
            }
        }
        Ok(launched)
    }

    fn stamp(&self, event: sys::CUevent) -> Result<(), KernelError> {
        // SAFETY: event and stream live as long as this.
        call("cuEventRecord", unsafe {
            cu::event::record(event, self.stream())
        })
    }

    /// Pair `index`, made if there are fewer.
    fn pair(&self, index: usize) -> Result<[sys::CUevent; 2], KernelError> {
        let mut timing = self.timing.borrow_mut();
        while timing.pairs.len() <= index {
            let event = || {
                let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
                call("cuEventCreate", cu::event::create(flags))
            };
            timing.pairs.push([event()?, event()?]);
        }
        Ok(timing.pairs[index])
    }

    /// Time between the events of pair `index`, which has been passed.
    fn between(&self, index: usize) -> Result<u64, KernelError> {
        let [before, behind] = self.pair(index)?;
        // SAFETY: both were made with times and recorded in one stream.
        let ms = call("cuEventElapsedTime", unsafe {
            cu::event::elapsed(before, behind)
        })?;
        Ok((f64::from(ms) * 1e6).round() as u64)
    }

    fn floor_ns(&self) -> Result<u64, KernelError> {
        for index in 0..EMPTY_PAIRS {
            let [before, behind] = self.pair(index)?;
            self.stamp(before)?;
            self.stamp(behind)?;
        }
        self.synchronize(self.stream())?;
        let times = (0..EMPTY_PAIRS).map(|index| self.between(index));
        let mut times = times.collect::<Result<Vec<u64>, _>>()?;
        times.sort_unstable();
        Ok(times[EMPTY_PAIRS / 2])
    }

    /// Frees the events; nothing runs any more.
    pub(super) fn drop_timing(&self) {
        for event in self.timing.borrow_mut().pairs.drain(..).flatten() {
            // SAFETY: made above, used by nobody after this. A failure to free is nothing to act
            // on.
            let _ = unsafe { cu::event::destroy(event) };
        }
    }
}

impl Profiler for CudaDevice {
    fn profile(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<Profile>, KernelError> {
        self.bind()?;
        let floor_ns = self.floor_ns()?;
        self.timing.borrow_mut().names = Some(Vec::new());
        let done = work();
        let names = self.timing.borrow_mut().names.take().unwrap_or_default();
        done?;
        self.synchronize(self.stream())?;
        let times = (0..names.len()).map(|index| self.between(index));
        let times = times.collect::<Result<Vec<u64>, _>>()?;
        Ok(Some(Profile::new(names.into_iter().zip(times), floor_ns)))
    }
}
