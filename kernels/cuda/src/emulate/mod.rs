//! Kernels executed by the host, thread by thread, with every access checked.

mod build;
mod lanes;
mod library;
mod profile;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CString;

pub use lanes::Schedule;
pub use library::Library;

use lanes::{LaneState, OwnedLaunch, Work};
use profile::Timing;

use crate::device::{Buffer, BufferState, Device, Launch, Mark, Product, VendorGemm};
use crate::error::KernelError;
use crate::lanes::Lane;
use crate::memory::{DeviceMemory, Ledger, PoolMemory, Purpose};
use crate::ops::PrefillBy;

/// What the machine found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An address in no buffer and not in the shared memory of the launch.
    OutOfBounds,
    /// A read of memory that nothing was written to.
    Uninitialised,
    /// Two accesses of two threads, one of them a write, that no barrier orders.
    Race,
    /// A barrier or warp-wide operation that not all threads reach.
    Divergence,
    /// An address that is not a multiple of the size of the access.
    Misaligned,
    /// A write to an input.
    ReadOnly,
    /// Use of the target of an asynchronous copy before it was waited for.
    PendingCopy,
    /// A grid, block or amount of shared memory that no device takes.
    BadLaunch,
    /// Use by `wgmma` of memory or registers that no fence made visible to it.
    MissingFence,
    /// Use of the sums or an operand of `wgmma` before it was waited for.
    PendingProduct,
}

impl FaultKind {
    /// From the number in `machine.hpp`; `None` for 0, no fault.
    fn from_code(code: u32) -> Option<Self> {
        use FaultKind::*;
        let kinds = [
            OutOfBounds,
            Uninitialised,
            Race,
            Divergence,
            Misaligned,
            ReadOnly,
            PendingCopy,
            BadLaunch,
            MissingFence,
            PendingProduct,
        ];
        kinds.get((code as usize).wrapping_sub(1)).copied()
    }
}

/// A fault of a kernel, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?}: {text}")]
pub struct Fault {
    /// Class.
    pub kind: FaultKind,
    /// Kernel, block, thread, and what it did.
    pub text: String,
}

/// What a vendor's library says to products.
type Vendor = fn(&Product) -> Result<VendorGemm, KernelError>;

fn no_vendor(_: &Product) -> Result<VendorGemm, KernelError> {
    Ok(VendorGemm::NoVendor)
}

/// A device that is this thread. It frees its memory when dropped.
///
/// Blocks run one after the other. With [`Emulator::permute`] the order of blocks, and that of
/// threads at every barrier and warp-wide operation, is drawn from a seed.
pub struct Emulator<'a> {
    library: &'a Library,
    machine: *mut library::Machine,
    seed: Cell<u64>,
    prefill_by: Cell<PrefillBy>,
    vendor: Cell<Vendor>,
    /// Allocations in their order.
    ledger: RefCell<Ledger>,
    /// Buffers that are not given back yet: address and bytes. A count of its own, and one that
    /// changes when memory really comes and goes.
    live: RefCell<BTreeMap<u64, usize>>,
    lanes: RefCell<LaneState>,
    timing: RefCell<Timing>,
}

// SAFETY: a machine keeps nothing of the thread that runs it beyond the end of a launch, and its
// owner is the only one to reach it; it is not Sync.
unsafe impl Send for Emulator<'_> {}

impl<'a> Emulator<'a> {
    /// A machine without memory in use.
    pub fn new(library: &'a Library) -> Self {
        // SAFETY: creating a machine has no precondition.
        let machine = unsafe { (library.api.machine_new)() };
        Emulator {
            library,
            machine,
            seed: Cell::new(0),
            prefill_by: Cell::default(),
            vendor: Cell::new(no_vendor as Vendor),
            ledger: RefCell::default(),
            live: RefCell::default(),
            lanes: RefCell::default(),
            timing: RefCell::default(),
        }
    }

    /// Runs threads in an order drawn from `seed` from now on; 0 is the plain order.
    pub fn permute(&self, seed: u64) {
        self.seed.set(seed);
    }

    /// Takes this kernel for prefill from now on, where none is asked for.
    pub fn take_prefill(&self, by: PrefillBy) {
        self.prefill_by.set(by);
    }

    /// Lets a vendor's library answer from now on, for tests of what is done with its answers; it
    /// computes nothing.
    pub fn pretend_vendor(&self, answer: fn(&Product) -> Result<VendorGemm, KernelError>) {
        self.vendor.set(answer);
    }

    /// Checks that `bytes` bytes from `address` on lie in one buffer that is still there.
    fn reach(&self, address: u64, bytes: usize) -> Result<(), KernelError> {
        let live = self.live.borrow();
        let below = live.range(..=address).next_back();
        let inside = below.is_some_and(|(base, len)| address - base + bytes as u64 <= *len as u64);
        if inside {
            return Ok(());
        }
        Err(KernelError::Fault(Fault {
            kind: FaultKind::OutOfBounds,
            text: format!("a copy of {bytes} bytes: an address in no buffer"),
        }))
    }

    fn put(&self, to: u64, bytes: &[u8]) -> Result<(), KernelError> {
        self.reach(to, bytes.len())?;
        // SAFETY: so many bytes of a buffer of this machine lie there, as just checked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn get(&self, from: u64, bytes: &mut [u8]) -> Result<(), KernelError> {
        self.reach(from, bytes.len())?;
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len());
        };
        Ok(())
    }

    fn clear(&self, at: Buffer<u8>) -> Result<(), KernelError> {
        self.reach(at.address(), at.len())?;
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(at.address() as *mut u8, 0, at.len()) };
        Ok(())
    }

    fn free(&self, address: u64) {
        self.live.borrow_mut().remove(&address);
        // SAFETY: the machine lives, made this buffer, and forgets it once.
        unsafe { (self.library.api.release)(self.machine, address as *mut u8) };
    }

    fn run_launch(&self, launch: &OwnedLaunch) -> Result<(), KernelError> {
        let kernel = self.library.kernel(&launch.kernel)?;
        let mut fault = library::RawFault::new();
        // SAFETY: the kernel is a symbol of the library made by PB_KERNEL, which takes a
        // structure of parameters; the machine checks its accesses. Pointers live as long as
        // the call.
        unsafe {
            (self.library.api.launch)(
                self.machine,
                kernel.address,
                kernel.name.as_ptr(),
                launch.grid.as_ptr(),
                launch.block.as_ptr(),
                launch.shared_bytes as usize,
                launch.params.as_ptr(),
                launch.params.len(),
                self.seed.get(),
                &mut fault,
            );
        }
        match FaultKind::from_code(fault.kind) {
            None => Ok(()),
            Some(kind) => Err(KernelError::Fault(Fault {
                kind,
                text: fault.text(),
            })),
        }
    }
}

impl Drop for Emulator<'_> {
    fn drop(&mut self) {
        // SAFETY: made by machine_new, and not used after this.
        unsafe { (self.library.api.machine_free)(self.machine) };
    }
}

impl Device for Emulator<'_> {
    fn name(&self) -> String {
        "emulated: kernels executed thread by thread on the host".to_owned()
    }

    fn alloc(
        &self,
        name: &str,
        bytes: usize,
        granule: usize,
        state: BufferState,
    ) -> Result<u64, KernelError> {
        self.may("memory")?;
        let shift = granule.clamp(1, 4).ilog2();
        let name: Vec<u8> = name.bytes().filter(|b| *b != 0).collect();
        // OK because zero bytes were just removed.
        let name = CString::new(name).expect("no zero byte");
        let (read_only, filled) = (state == BufferState::Input, state != BufferState::Empty);
        // SAFETY: the machine lives and copies the name.
        let address = unsafe {
            (self.library.api.alloc)(
                self.machine,
                bytes,
                shift,
                u32::from(read_only),
                u32::from(filled),
                name.as_ptr(),
            )
        };
        self.ledger.borrow_mut().add(address as u64, bytes as u64);
        self.live.borrow_mut().insert(address as u64, bytes);
        Ok(address as u64)
    }

    fn zero(&self, at: Buffer<u8>) -> Result<(), KernelError> {
        self.may("a copy")?;
        self.submit(Work::Zero(at))
    }

    fn mark(&self) -> Mark {
        Mark(self.ledger.borrow().len())
    }

    fn release(&self, to: Mark) -> Result<(), KernelError> {
        self.may("memory")?;
        let last = || self.ledger.borrow_mut().remove_last(to.0);
        // Memory comes from this lane and goes back in it, as a GPU's does.
        std::iter::from_fn(last)
            .try_for_each(|address| self.submit_to(Lane::Compute, Work::Free(address)))
    }

    fn purpose(&self, purpose: Purpose) -> Purpose {
        self.ledger.borrow_mut().purpose(purpose)
    }

    fn memory(&self) -> DeviceMemory {
        // Nothing is kept of what was given back.
        let live: usize = self.live.borrow().values().sum();
        let pool = PoolMemory {
            reserved_bytes: live as u64,
            used_bytes: live as u64,
        };
        DeviceMemory {
            pool: Some(pool),
            ..self.ledger.borrow().memory(self.pinned_bytes())
        }
    }

    fn time_ns(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<u64>, KernelError> {
        work().map(|()| None)
    }

    fn vendor_gemm(&self, product: &Product) -> Result<VendorGemm, KernelError> {
        (self.vendor.get())(product)
    }

    fn has_wgmma(&self) -> bool {
        true
    }

    fn prefill_by(&self) -> PrefillBy {
        self.prefill_by.get()
    }

    fn unwritten_bytes(&self, buffer: Buffer<u8>) -> usize {
        // A failure of what still waits shows in what is read.
        let _ = Lane::ALL.map(|lane| self.run_all(lane));
        let address = buffer.address() as *const u8;
        // SAFETY: the machine lives; an address it does not know counts as nothing.
        unsafe { (self.library.api.unwritten)(self.machine, address) }
    }

    fn write(&self, to: Buffer<u8>, from: &[u8]) -> Result<(), KernelError> {
        crate::error::require(
            from.len() <= to.len(),
            "write",
            "bytes",
            from.len(),
            "fewer",
        )?;
        self.may("a copy")?;
        self.submit(Work::Write {
            to: to.address(),
            bytes: from.to_vec(),
        })
    }

    fn read(&self, from: Buffer<u8>, to: &mut [u8]) -> Result<(), KernelError> {
        crate::error::require(to.len() <= from.len(), "read", "bytes", to.len(), "fewer")?;
        self.may("a copy")?;
        let lane = self.lanes.borrow().current();
        self.run_all(lane)?;
        self.get(from.address(), to)
    }

    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError> {
        // An unknown kernel is no matter of time.
        self.library.kernel(launch.kernel)?;
        self.note_launch(launch.kernel, launch.grid);
        self.submit_launch(OwnedLaunch {
            kernel: launch.kernel.to_owned(),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            params: params.to_vec(),
        })
    }
}
