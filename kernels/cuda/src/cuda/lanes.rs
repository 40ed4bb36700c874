//! Lanes and graphs of a GPU: two streams, events without times, page-locked memory.

use std::ffi::c_void;

use cudarc::driver::{result as cu, sys};

use super::{CudaDevice, call};
use crate::device::Buffer;
use crate::error::{KernelError, require};
use crate::graphs::{Graph, Graphs};
use crate::lanes::{Event, Lane, Lanes, Pinned};

/// Page-locked memory of the host.
pub(super) struct Locked {
    address: *mut c_void,
    len: usize,
}

/// A graph ready to run; its description is not needed any more.
pub(super) struct Ready(sys::CUgraphExec);

impl CudaDevice {
    /// The stream of the current lane.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.streams[self.current.get() as usize]
    }

    fn event_of(&self, event: Event) -> sys::CUevent {
        self.order.borrow()[event.0]
    }

    /// The address of byte `at`, when `bytes` bytes lie there.
    fn locked(
        &self,
        pinned: Pinned,
        at: usize,
        bytes: usize,
        op: &'static str,
    ) -> Result<*mut u8, KernelError> {
        let all = self.pinned.borrow();
        let locked = &all[pinned.index];
        let fits = at.checked_add(bytes).is_some_and(|end| end <= locked.len);
        require(fits, op, "bytes", bytes, "no more than there is")?;
        // SAFETY: within the allocation, as just checked.
        Ok(unsafe { locked.address.cast::<u8>().add(at) })
    }

    /// Page-locked bytes.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned.borrow().iter().map(|p| p.len as u64).sum()
    }

    /// Frees events, memory and graphs; nothing runs any more.
    pub(super) fn drop_lanes(&self) {
        // Failures to free are nothing to act on.
        let _ = self.forget_graphs();
        // SAFETY: everything was made by this device, and is used by nobody after this.
        unsafe {
            for event in self.order.borrow_mut().drain(..) {
                let _ = cu::event::destroy(event);
            }
            for locked in self.pinned.borrow_mut().drain(..) {
                let _ = cu::free_host(locked.address);
            }
        }
    }
}

impl Lanes for CudaDevice {
    fn lane(&self, lane: Lane) -> Lane {
        self.current.replace(lane)
    }

    fn event(&self) -> Result<Event, KernelError> {
        self.bind()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let event = call("cuEventCreate", cu::event::create(flags))?;
        let mut all = self.order.borrow_mut();
        all.push(event);
        Ok(Event(all.len() - 1))
    }

    fn record(&self, event: Event) -> Result<(), KernelError> {
        self.bind()?;
        // SAFETY: event and stream live as long as this.
        call("cuEventRecord", unsafe {
            cu::event::record(self.event_of(event), self.stream())
        })
    }

    fn wait(&self, event: Event) -> Result<(), KernelError> {
        self.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above. An event that was never recorded is no wait.
        call("cuStreamWaitEvent", unsafe {
            cu::stream::wait_event(self.stream(), self.event_of(event), flags)
        })
    }

    fn finish(&self, event: Event) -> Result<(), KernelError> {
        self.bind()?;
        // SAFETY: as above.
        call("cuEventSynchronize", unsafe {
            cu::event::synchronize(self.event_of(event))
        })
    }

    fn pinned(&self, bytes: usize) -> Result<Pinned, KernelError> {
        self.bind()?;
        let name = format!("cuMemHostAlloc of {bytes} bytes");
        // SAFETY: the memory is written before it is read: by `fill` or a copy.
        let address = call(&name, unsafe { cu::malloc_host(bytes.max(1), 0) })?;
        // SAFETY: as many bytes as were just allocated. So there is none that nobody wrote.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        let mut all = self.pinned.borrow_mut();
        all.push(Locked {
            address,
            len: bytes,
        });
        Ok(Pinned {
            index: all.len() - 1,
            len: bytes,
        })
    }

    fn fill(&self, to: Pinned, at: usize, from: &[u8]) -> Result<(), KernelError> {
        let address = self.locked(to, at, from.len(), "fill")?;
        // SAFETY: that many bytes lie there, and they are no Rust object. That no copy is under way
        // is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), address, from.len()) };
        Ok(())
    }

    fn fetch(&self, from: Pinned, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        let address = self.locked(from, at, to.len(), "fetch")?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(address, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn write_pinned(&self, to: Buffer<u8>, from: Pinned) -> Result<(), KernelError> {
        let address = self.locked(from, 0, to.len(), "write")?;
        if to.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: that many bytes lie there until the device is dropped, which waits for the
        // stream; nothing is read through the slice but its address.
        call("cuMemcpyHtoDAsync", unsafe {
            let bytes = std::slice::from_raw_parts(address, to.len());
            cu::memcpy_htod_async(to.address(), bytes, self.stream())
        })
    }

    fn read_pinned(&self, from: Buffer<u8>, to: Pinned) -> Result<(), KernelError> {
        let address = self.locked(to, 0, from.len(), "read")?;
        if from.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: as above; nothing is written through the slice but by the device.
        call("cuMemcpyDtoHAsync", unsafe {
            let bytes = std::slice::from_raw_parts_mut(address, from.len());
            cu::memcpy_dtoh_async(bytes, from.address(), self.stream())
        })
    }
}

impl Graphs for CudaDevice {
    fn capture(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Graph, KernelError> {
        self.bind()?;
        // Other threads of the process may do what this one must not while it records.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this, and recording ends below in any case.
        call("cuStreamBeginCapture", unsafe {
            cu::stream::begin_capture(self.stream(), mode)
        })?;
        let done = work();
        // SAFETY: the stream is being recorded.
        let ended = call("cuStreamEndCapture", unsafe {
            cu::stream::end_capture(self.stream())
        });
        // What `work` refused comes first: it is why the recording is worth nothing.
        let graph = match (done, ended) {
            (Ok(()), ended) => ended?,
            (Err(e), Ok(graph)) => {
                // SAFETY: the graph was just made; it may be empty, then there is none.
                unsafe {
                    if !graph.is_null() {
                        let _ = cu::graph::destroy(graph);
                    }
                }
                return Err(e);
            }
            (Err(e), Err(_)) => return Err(e),
        };
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is whole; what it became stands by itself.
        let ready = unsafe {
            let ready = call("cuGraphInstantiate", cu::graph::instantiate(graph, flags));
            let _ = cu::graph::destroy(graph);
            ready?
        };
        let mut all = self.graphs.borrow_mut();
        all.push(Some(Ready(ready)));
        Ok(Graph(all.len() - 1))
    }

    fn replay(&self, graph: Graph) -> Result<(), KernelError> {
        self.bind()?;
        let all = self.graphs.borrow();
        let Some(Some(ready)) = all.get(graph.0) else {
            return require(false, "replay", "graph", graph.0, "one that was recorded");
        };
        // SAFETY: graph and stream live as long as this.
        call("cuGraphLaunch", unsafe {
            cu::graph::launch(ready.0, self.stream())
        })
    }

    fn forget_graphs(&self) -> Result<(), KernelError> {
        self.bind()?;
        for ready in self.graphs.borrow_mut().iter_mut().filter_map(Option::take) {
            // SAFETY: made above, and taken out of the list.
            call("cuGraphExecDestroy", unsafe {
                cu::graph::exec_destroy(ready.0)
            })?;
        }
        Ok(())
    }
}
