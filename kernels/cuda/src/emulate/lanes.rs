//! Lanes of the emulated device: when the work in them is done is a setting, so that an order that
//! no event asks for can be shown to matter.

use std::collections::VecDeque;

use super::Emulator;
use crate::device::Buffer;
use crate::error::{KernelError, require};
use crate::graphs::{Graph, Graphs};
use crate::lanes::{Event, Lane, Lanes, Pinned};

/// When what was put into a lane is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// At once.
    #[default]
    Eager,
    /// In one lane as late as events and the host allow, in the other at once.
    Late(Lane),
    /// At times drawn from a seed, within what events allow.
    Random(u64),
}

/// A launch with its own copy of everything.
#[derive(Clone, Debug)]
pub(super) struct OwnedLaunch {
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) params: Vec<u8>,
}

/// One thing to do in a lane.
#[derive(Debug)]
pub(super) enum Work {
    Launch(OwnedLaunch),
    Write { to: u64, bytes: Vec<u8> },
    WritePinned { to: Buffer<u8>, from: Pinned },
    ReadPinned { from: Buffer<u8>, to: Pinned },
    Zero(Buffer<u8>),
    Free(u64),
    Record(Event, u64),
    Wait(Event, u64),
}

/// How often an event was recorded, and how many of these places were passed.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    recorded: u64,
    passed: u64,
}

/// Queues, events, pinned memory and graphs.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    current: Lane,
    schedule: Schedule,
    random: u64,
    queues: [VecDeque<Work>; 2],
    events: Vec<Places>,
    pinned: Vec<Vec<u8>>,
    /// `None` once forgotten.
    graphs: Vec<Option<Vec<OwnedLaunch>>>,
    recording: Option<Vec<OwnedLaunch>>,
}

impl LaneState {
    pub(super) fn current(&self) -> Lane {
        self.current
    }

    /// A number below `below`, by SplitMix64.
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn blocked(&self, work: Option<&Work>) -> bool {
        matches!(work, Some(Work::Wait(e, place)) if self.events[e.0].passed < *place)
    }

    /// The lane in which a place of an event still lies ahead.
    fn holder(&self, event: Event, place: u64) -> Option<Lane> {
        let has = |lane: &Lane| {
            let queue = self.queues[*lane as usize].iter();
            let mut recorded = queue.filter_map(|work| match work {
                Work::Record(e, p) => Some((*e, *p)),
                _ => None,
            });
            recorded.any(|r| r == (event, place))
        };
        Lane::ALL.into_iter().find(has)
    }
}

fn refused(what: &str) -> KernelError {
    KernelError::Device {
        call: format!("{what} while a graph is recorded"),
        problem: "only launches can be recorded".to_owned(),
    }
}

impl Emulator<'_> {
    /// Sets when the work in lanes is done, from now on.
    ///
    /// # Errors
    /// Those of the work that waits, which is done first.
    pub fn schedule(&self, schedule: Schedule) -> Result<(), KernelError> {
        for lane in Lane::ALL {
            self.run_all(lane)?;
        }
        let mut state = self.lanes.borrow_mut();
        state.schedule = schedule;
        state.random = match schedule {
            Schedule::Random(seed) => seed,
            _ => 0,
        };
        Ok(())
    }

    /// Refuses what cannot be recorded while a graph is.
    pub(super) fn may(&self, what: &str) -> Result<(), KernelError> {
        match self.lanes.borrow().recording {
            Some(_) => Err(refused(what)),
            None => Ok(()),
        }
    }

    /// Page-locked bytes.
    pub(super) fn pinned_bytes(&self) -> u64 {
        let pinned = &self.lanes.borrow().pinned;
        pinned.iter().map(|p| p.len() as u64).sum()
    }

    /// Puts a launch into the graph that is recorded, or into the current lane.
    pub(super) fn submit_launch(&self, launch: OwnedLaunch) -> Result<(), KernelError> {
        let mut state = self.lanes.borrow_mut();
        if let Some(recorded) = &mut state.recording {
            recorded.push(launch);
            return Ok(());
        }
        drop(state);
        self.submit(Work::Launch(launch))
    }

    /// Puts work into the current lane.
    pub(super) fn submit(&self, work: Work) -> Result<(), KernelError> {
        let lane = self.lanes.borrow().current;
        self.submit_to(lane, work)
    }

    /// Puts work into a lane, and does what the schedule has done at once.
    pub(super) fn submit_to(&self, lane: Lane, work: Work) -> Result<(), KernelError> {
        let schedule = {
            let mut state = self.lanes.borrow_mut();
            state.queues[lane as usize].push_back(work);
            state.schedule
        };
        match schedule {
            Schedule::Eager => self.run_all(lane),
            Schedule::Late(late) if late == lane => Ok(()),
            Schedule::Late(_) => self.run_all(lane),
            Schedule::Random(_) => self.run_some(),
        }
    }

    /// Does some of what may be done, of lanes at random.
    fn run_some(&self) -> Result<(), KernelError> {
        let steps = self.lanes.borrow_mut().draw(4);
        for _ in 0..steps {
            let mut state = self.lanes.borrow_mut();
            let lane = state.draw(2) as usize;
            if state.blocked(state.queues[lane].front()) {
                continue;
            }
            let next = state.queues[lane].pop_front();
            drop(state);
            if let Some(work) = next {
                self.perform(work)?;
            }
        }
        Ok(())
    }

    /// Does everything that waits in a lane.
    pub(super) fn run_all(&self, lane: Lane) -> Result<(), KernelError> {
        while self.run_next(lane)? {}
        Ok(())
    }

    /// Does the next thing of a lane, and before it what it waits for; `false` when there is none.
    fn run_next(&self, lane: Lane) -> Result<bool, KernelError> {
        let next = self.lanes.borrow_mut().queues[lane as usize].pop_front();
        let Some(work) = next else { return Ok(false) };
        if let Work::Wait(event, place) = work {
            self.run_until(event, place)?;
        }
        self.perform(work)?;
        Ok(true)
    }

    /// Does what it takes to pass a place of an event.
    fn run_until(&self, event: Event, place: u64) -> Result<(), KernelError> {
        while self.lanes.borrow().events[event.0].passed < place {
            let holder = self.lanes.borrow().holder(event, place);
            // OK because a place that was recorded and not passed lies in some queue.
            let lane = holder.expect("a recorded place");
            self.run_next(lane)?;
        }
        Ok(())
    }

    fn perform(&self, work: Work) -> Result<(), KernelError> {
        match work {
            Work::Launch(launch) => self.run_launch(&launch),
            Work::Write { to, bytes } => self.put(to, &bytes),
            Work::WritePinned { to, from } => {
                let state = self.lanes.borrow();
                self.put(to.address(), &state.pinned[from.index][..to.len()])
            }
            Work::ReadPinned { from, to } => {
                let mut state = self.lanes.borrow_mut();
                self.get(from.address(), &mut state.pinned[to.index][..from.len()])
            }
            Work::Zero(at) => self.clear(at),
            Work::Free(address) => {
                self.free(address);
                Ok(())
            }
            Work::Record(event, place) => {
                let passed = &mut self.lanes.borrow_mut().events[event.0].passed;
                *passed = (*passed).max(place);
                Ok(())
            }
            Work::Wait(..) => Ok(()),
        }
    }
}

impl Lanes for Emulator<'_> {
    fn lane(&self, lane: Lane) -> Lane {
        std::mem::replace(&mut self.lanes.borrow_mut().current, lane)
    }

    fn event(&self) -> Result<Event, KernelError> {
        let events = &mut self.lanes.borrow_mut().events;
        events.push(Places::default());
        Ok(Event(events.len() - 1))
    }

    fn record(&self, event: Event) -> Result<(), KernelError> {
        self.may("an event")?;
        let place = {
            let places = &mut self.lanes.borrow_mut().events[event.0];
            places.recorded += 1;
            places.recorded
        };
        self.submit(Work::Record(event, place))
    }

    fn wait(&self, event: Event) -> Result<(), KernelError> {
        self.may("a wait")?;
        let place = self.lanes.borrow().events[event.0].recorded;
        self.submit(Work::Wait(event, place))
    }

    fn finish(&self, event: Event) -> Result<(), KernelError> {
        self.may("a wait")?;
        let place = self.lanes.borrow().events[event.0].recorded;
        self.run_until(event, place)
    }

    fn pinned(&self, bytes: usize) -> Result<Pinned, KernelError> {
        let pinned = &mut self.lanes.borrow_mut().pinned;
        pinned.push(vec![0xff; bytes]);
        Ok(Pinned {
            index: pinned.len() - 1,
            len: bytes,
        })
    }

    fn fill(&self, to: Pinned, at: usize, from: &[u8]) -> Result<(), KernelError> {
        let fits = at.checked_add(from.len()).is_some_and(|end| end <= to.len);
        require(fits, "fill", "bytes", from.len(), "no more than there is")?;
        let pinned = &mut self.lanes.borrow_mut().pinned[to.index];
        pinned[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn fetch(&self, from: Pinned, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        let fits = at.checked_add(to.len()).is_some_and(|end| end <= from.len);
        require(fits, "fetch", "bytes", to.len(), "no more than there is")?;
        to.copy_from_slice(&self.lanes.borrow().pinned[from.index][at..at + to.len()]);
        Ok(())
    }

    fn write_pinned(&self, to: Buffer<u8>, from: Pinned) -> Result<(), KernelError> {
        self.may("a copy")?;
        let fits = to.len() <= from.len;
        require(fits, "write", "bytes", to.len(), "no more than there is")?;
        self.submit(Work::WritePinned { to, from })
    }

    fn read_pinned(&self, from: Buffer<u8>, to: Pinned) -> Result<(), KernelError> {
        self.may("a copy")?;
        let fits = from.len() <= to.len;
        require(fits, "read", "bytes", from.len(), "no more than there is")?;
        self.submit(Work::ReadPinned { from, to })
    }
}

impl Graphs for Emulator<'_> {
    fn capture(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Graph, KernelError> {
        self.may("a graph")?;
        self.lanes.borrow_mut().recording = Some(Vec::new());
        let done = work();
        let mut state = self.lanes.borrow_mut();
        let recorded = state.recording.take().unwrap_or_default();
        done?;
        state.graphs.push(Some(recorded));
        Ok(Graph(state.graphs.len() - 1))
    }

    fn replay(&self, graph: Graph) -> Result<(), KernelError> {
        self.may("a graph")?;
        let launches = self.lanes.borrow().graphs.get(graph.0).cloned().flatten();
        let known = launches.is_some();
        require(known, "replay", "graph", graph.0, "one that was recorded")?;
        let launches = launches.unwrap_or_default();
        launches
            .into_iter()
            .try_for_each(|launch| self.submit(Work::Launch(launch)))
    }

    fn forget_graphs(&self) -> Result<(), KernelError> {
        let graphs = &mut self.lanes.borrow_mut().graphs;
        graphs.iter_mut().for_each(|graph| *graph = None);
        Ok(())
    }
}
