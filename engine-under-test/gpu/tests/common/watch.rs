//! A device between the executor and the emulated one: it counts, and leaves out what a planted
//! fault leaves out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use pb_kernels_cuda::{
    Buffer, BufferState, Device, DeviceMemory, Emulator, Event, Graph, Graphs, KernelError, Lane,
    Lanes, Launch, Mark, Pinned, Product, Profile, Profiler, Purpose, VendorGemm,
};

/// What was seen, and what is left out.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Bytes that the host asked for.
    pub(crate) read_bytes: AtomicU64,
    /// Launches that were not part of a graph.
    pub(crate) launches: AtomicU64,
    pub(crate) captures: AtomicU64,
    pub(crate) replays: AtomicU64,
    /// Copies of the host to the device.
    pub(crate) writes: AtomicU64,
    /// Lanes do not wait for events.
    pub(crate) no_waits: AtomicBool,
    /// The host does not wait for events.
    pub(crate) no_finish: AtomicBool,
    /// Copies of the host are forgotten.
    pub(crate) no_writes: AtomicBool,
    /// Nobody says what memory is for.
    pub(crate) no_purposes: AtomicBool,
    /// The last block of launches of split prompts is left out.
    pub(crate) short_splits: AtomicBool,
    /// Launches by the name of the kernel.
    pub(crate) kernels: Mutex<BTreeMap<String, u64>>,
    /// Launches at which purposes did not have all the bytes that were live.
    pub(crate) astray: AtomicU64,
}

impl Watch {
    /// A count since the last call.
    pub(crate) fn take(count: &AtomicU64) -> u64 {
        count.swap(0, Relaxed)
    }

    /// Launches of kernels whose names start so, since the start.
    pub(crate) fn launched(&self, start: &str) -> u64 {
        let kernels = self.kernels.lock().unwrap();
        let named = kernels.iter().filter(|(name, _)| name.starts_with(start));
        named.map(|(_, launches)| launches).sum()
    }
}

pub(crate) struct Watched {
    pub(crate) inner: Emulator<'static>,
    pub(crate) watch: Arc<Watch>,
}

impl Device for Watched {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn alloc(
        &self,
        name: &str,
        bytes: usize,
        granule: usize,
        state: BufferState,
    ) -> Result<u64, KernelError> {
        self.inner.alloc(name, bytes, granule, state)
    }

    fn write(&self, to: Buffer<u8>, from: &[u8]) -> Result<(), KernelError> {
        self.watch.writes.fetch_add(1, Relaxed);
        if self.watch.no_writes.load(Relaxed) {
            return Ok(());
        }
        self.inner.write(to, from)
    }

    fn read(&self, from: Buffer<u8>, to: &mut [u8]) -> Result<(), KernelError> {
        self.watch.read_bytes.fetch_add(to.len() as u64, Relaxed);
        self.inner.read(from, to)
    }

    fn zero(&self, at: Buffer<u8>) -> Result<(), KernelError> {
        self.inner.zero(at)
    }

    fn mark(&self) -> Mark {
        self.inner.mark()
    }

    fn release(&self, to: Mark) -> Result<(), KernelError> {
        self.inner.release(to)
    }

    fn purpose(&self, purpose: Purpose) -> Purpose {
        match self.watch.no_purposes.load(Relaxed) {
            true => Purpose::Unattributed,
            false => self.inner.purpose(purpose),
        }
    }

    fn memory(&self) -> DeviceMemory {
        self.inner.memory()
    }

    fn time_ns(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<u64>, KernelError> {
        self.inner.time_ns(work)
    }

    fn vendor_gemm(&self, product: &Product) -> Result<VendorGemm, KernelError> {
        self.inner.vendor_gemm(product)
    }

    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError> {
        self.watch.launches.fetch_add(1, Relaxed);
        let mut kernels = self.watch.kernels.lock().unwrap();
        *kernels.entry(launch.kernel.to_owned()).or_default() += 1;
        drop(kernels);
        let memory = self.inner.memory();
        let named = Purpose::ALL
            .into_iter()
            .filter(|p| *p != Purpose::Unattributed);
        let bytes: u64 = named.map(|p| memory.of(p).bytes).sum();
        if memory.pool.map(|pool| pool.used_bytes) != Some(bytes) {
            self.watch.astray.fetch_add(1, Relaxed);
        }
        let mut launch = launch;
        if launch.kernel.starts_with("prefill_split") && self.watch.short_splits.load(Relaxed) {
            launch.grid[0] -= 1;
        }
        self.inner.launch(launch, params)
    }
}

impl Lanes for Watched {
    fn lane(&self, lane: Lane) -> Lane {
        self.inner.lane(lane)
    }

    fn event(&self) -> Result<Event, KernelError> {
        self.inner.event()
    }

    fn record(&self, event: Event) -> Result<(), KernelError> {
        self.inner.record(event)
    }

    fn wait(&self, event: Event) -> Result<(), KernelError> {
        match self.watch.no_waits.load(Relaxed) {
            true => Ok(()),
            false => self.inner.wait(event),
        }
    }

    fn finish(&self, event: Event) -> Result<(), KernelError> {
        match self.watch.no_finish.load(Relaxed) {
            true => Ok(()),
            false => self.inner.finish(event),
        }
    }

    fn pinned(&self, bytes: usize) -> Result<Pinned, KernelError> {
        self.inner.pinned(bytes)
    }

    fn fill(&self, to: Pinned, at: usize, from: &[u8]) -> Result<(), KernelError> {
        self.inner.fill(to, at, from)
    }

    fn fetch(&self, from: Pinned, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        self.inner.fetch(from, at, to)
    }

    fn write_pinned(&self, to: Buffer<u8>, from: Pinned) -> Result<(), KernelError> {
        self.inner.write_pinned(to, from)
    }

    fn read_pinned(&self, from: Buffer<u8>, to: Pinned) -> Result<(), KernelError> {
        self.inner.read_pinned(from, to)
    }
}

impl Graphs for Watched {
    fn capture(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Graph, KernelError> {
        self.watch.captures.fetch_add(1, Relaxed);
        self.inner.capture(work)
    }

    fn replay(&self, graph: Graph) -> Result<(), KernelError> {
        self.watch.replays.fetch_add(1, Relaxed);
        self.inner.replay(graph)
    }

    fn forget_graphs(&self) -> Result<(), KernelError> {
        self.inner.forget_graphs()
    }
}

impl Profiler for Watched {
    fn profile(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<Profile>, KernelError> {
        self.inner.profile(work)
    }
}
