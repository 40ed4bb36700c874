//! Kernels executed by the host, thread by thread, with every access checked.

mod build;
mod library;

use std::cell::{Cell, RefCell};
use std::ffi::CString;

pub use library::Library;

use crate::device::{Buffer, BufferState, Device, Launch, Mark, Product};
use crate::error::KernelError;

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

/// A device that is this thread. It frees its memory when dropped.
///
/// Blocks run one after the other. With [`Emulator::permute`] the order of blocks, and that of
/// threads at every barrier and warp-wide operation, is drawn from a seed.
pub struct Emulator<'a> {
    library: &'a Library,
    machine: *mut library::Machine,
    seed: Cell<u64>,
    /// Addresses in the order of allocation.
    allocated: RefCell<Vec<u64>>,
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
            allocated: RefCell::default(),
        }
    }

    /// Runs threads in an order drawn from `seed` from now on; 0 is the plain order.
    pub fn permute(&self, seed: u64) {
        self.seed.set(seed);
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
        self.allocated.borrow_mut().push(address as u64);
        Ok(address as u64)
    }

    fn zero(&self, at: Buffer<u8>) -> Result<(), KernelError> {
        // SAFETY: the buffer is memory of this process of that length.
        unsafe { std::ptr::write_bytes(at.address() as *mut u8, 0, at.len()) };
        Ok(())
    }

    fn mark(&self) -> Mark {
        Mark(self.allocated.borrow().len())
    }

    fn release(&self, to: Mark) -> Result<(), KernelError> {
        let mut allocated = self.allocated.borrow_mut();
        while allocated.len() > to.0 {
            // OK because the loop's condition says that there is one.
            let address = allocated.pop().expect("not empty");
            // SAFETY: the machine lives, made this buffer, and forgets it once.
            unsafe { (self.library.api.release)(self.machine, address as *mut u8) };
        }
        Ok(())
    }

    fn time_ns(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<u64>, KernelError> {
        work().map(|()| None)
    }

    fn vendor_gemm(&self, _product: &Product) -> Result<bool, KernelError> {
        Ok(false)
    }

    fn unwritten_bytes(&self, buffer: Buffer<u8>) -> usize {
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
        // SAFETY: the buffer is memory of this process, at least as long as the source.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.address() as *mut u8, from.len());
        };
        Ok(())
    }

    fn read(&self, from: Buffer<u8>, to: &mut [u8]) -> Result<(), KernelError> {
        crate::error::require(to.len() <= from.len(), "read", "bytes", to.len(), "fewer")?;
        // SAFETY: the buffer is memory of this process, at least as long as the target.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address() as *const u8, to.as_mut_ptr(), to.len());
        };
        Ok(())
    }

    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError> {
        let kernel = self.library.kernel(launch.kernel)?;
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
                params.as_ptr(),
                params.len(),
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
