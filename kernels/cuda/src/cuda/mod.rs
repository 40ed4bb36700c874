//! A GPU, through the CUDA driver. Driver, NVRTC and cuBLASLt are looked for at run time: the
//! program builds and runs without them, and says what is missing when asked for the device.

mod blas;
mod choice;
mod compile;
mod lanes;
mod memory;
mod profile;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;

use cudarc::driver::{result as cu, sys};

use crate::device::{Buffer, BufferState, Device, DeviceExt, Launch, Mark, Product, VendorGemm};
use crate::error::{KernelError, require};
use crate::lanes::Lane;
use crate::memory::{DeviceMemory, Ledger, Purpose};
use crate::ops::PrefillBy;
use crate::source::SM_90A;
use blas::{Blas, WORKSPACE_BYTES};
pub use compile::compile_all;
use lanes::{Locked, Ready};
use profile::Timing;

/// Dynamic shared memory that a block gets without asking.
const SHARED_UNASKED_BYTES: u32 = 48 << 10;

/// Smallest allocation: nothing has an address that is nobody's.
const ALLOC_MIN_BYTES: usize = 256;

/// Which GPU, and how its kernels are built.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Number of the GPU, from 0.
    pub ordinal: i32,
    /// Folder for compiled kernels.
    pub cache: PathBuf,
    /// Macros: how faults are planted.
    pub defines: Vec<String>,
}

/// One GPU with all kernels loaded, and two streams of work on it.
pub struct CudaDevice {
    name: String,
    /// As compilers name it.
    architecture: String,
    prefill_by: PrefillBy,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Of each lane.
    streams: [sys::CUstream; 2],
    current: Cell<Lane>,
    /// For times.
    events: [sys::CUevent; 2],
    /// For order.
    order: RefCell<Vec<sys::CUevent>>,
    pinned: RefCell<Vec<Locked>>,
    /// `None` once forgotten.
    graphs: RefCell<Vec<Option<Ready>>>,
    timing: RefCell<Timing>,
    modules: Vec<sys::CUmodule>,
    /// Kernels looked up so far, with the shared memory asked for.
    functions: RefCell<BTreeMap<String, (sys::CUfunction, u32)>>,
    ledger: RefCell<Ledger>,
    blas: Option<Blas>,
}

// SAFETY: handles of the driver may be used from any thread whose current context is theirs, which
// every method makes sure of; cells keep the device from being shared.
unsafe impl Send for CudaDevice {}

/// Gives a driver's refusal the name of the call.
fn call<T>(name: &str, answer: Result<T, cu::DriverError>) -> Result<T, KernelError> {
    answer.map_err(|e| KernelError::Device {
        call: name.to_owned(),
        problem: e.to_string(),
    })
}

fn missing(problem: impl Into<String>) -> KernelError {
    KernelError::NoDevice {
        problem: problem.into(),
    }
}

/// The GPU of that number, after asking for everything that can be asked for without it.
fn find(ordinal: i32) -> Result<sys::CUdevice, KernelError> {
    // SAFETY: loading a library runs its initialisers, which are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing(
            "the NVIDIA driver (libcuda.so) is not installed: this needs a machine with an \
             NVIDIA GPU; `--device emulated` runs the same kernels without one",
        ));
    }
    cu::init().map_err(|e| missing(format!("the driver does not start: {e}")))?;
    let count = call("cuDeviceGetCount", cu::device::get_count())?;
    if ordinal < 0 || ordinal >= count {
        return Err(missing(format!(
            "GPU {ordinal} does not exist: the driver sees {count}"
        )));
    }
    call("cuDeviceGet", cu::device::get(ordinal))
}

/// The compute capability as compilers name it.
fn architecture(device: sys::CUdevice) -> Result<String, KernelError> {
    use sys::CUdevice_attribute_enum::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    // SAFETY: the device is one that the driver gave.
    let ask = |what| unsafe { cu::device::get_attribute(device, what) };
    let major = call("cuDeviceGetAttribute", ask(MAJOR))?;
    let minor = call("cuDeviceGetAttribute", ask(MINOR))?;
    if major < 8 {
        return Err(missing(format!(
            "compute capability {major}.{minor}: the kernels need 8.0 or later"
        )));
    }
    Ok(choice::architecture_of(major, minor))
}

impl CudaDevice {
    /// Opens a GPU, building or loading its kernels. Prefill takes the kernel that the variable
    /// `PREFILLBENCH_PREFILL` names, as tables do; without it the fastest that the device has.
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] without driver, GPU or NVRTC; others when one of them fails.
    pub fn open(options: &CudaOptions) -> Result<Self, KernelError> {
        let device = find(options.ordinal)?;
        let architecture = architecture(device)?;
        let wanted = std::env::var(choice::PREFILL_VARIABLE).ok();
        let prefill_by = choice::prefill_by(&architecture, wanted.as_deref())?;
        let (codes, _) = compile::build(&architecture, &options.cache, &options.defines)?;
        let model = call("cuDeviceGetName", cu::device::get_name(device))?;
        // SAFETY: the device is one that the driver gave, and the context is made current before
        // anything that needs one.
        let context = call("cuDevicePrimaryCtxRetain", unsafe {
            cu::primary_ctx::retain(device)
        })?;
        // SAFETY: the context was just retained.
        call("cuCtxSetCurrent", unsafe { cu::ctx::set_current(context) })?;
        let event = || {
            let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
            call("cuEventCreate", cu::event::create(flags))
        };
        let stream = || {
            let kind = cu::stream::StreamKind::NonBlocking;
            call("cuStreamCreate", cu::stream::create(kind))
        };
        let mut opened = CudaDevice {
            name: format!("{model} ({architecture})"),
            architecture,
            prefill_by,
            device,
            context,
            streams: [stream()?, stream()?],
            current: Cell::default(),
            events: [event()?, event()?],
            order: RefCell::default(),
            pinned: RefCell::default(),
            graphs: RefCell::default(),
            timing: RefCell::default(),
            modules: Vec::new(),
            functions: RefCell::default(),
            ledger: RefCell::default(),
            blas: None,
        };
        for code in codes {
            // SAFETY: a whole image as NVRTC made it; the driver checks it and copies it.
            let module = unsafe { cu::module::load_data(code.bytes.as_ptr().cast()) };
            let what = format!("cuModuleLoadData of {}", code.file);
            opened.modules.push(call(&what, module)?);
        }
        opened.keep_freed_memory()?;
        let workspace = opened.for_purpose(Purpose::Workspace, || {
            opened.alloc("workspace", WORKSPACE_BYTES, 1, BufferState::Empty)
        })?;
        opened.blas = Blas::new(workspace, &opened.architecture)?;
        if opened.blas.is_none() {
            opened.name += ", without cuBLASLt";
        }
        Ok(opened)
    }

    /// Freed memory stays with the process: steps allocate the same buffers again and again.
    fn keep_freed_memory(&self) -> Result<(), KernelError> {
        let mut all = u64::MAX;
        let threshold = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the device is alive, and the attribute is an unsigned 64-bit number.
        unsafe {
            let pool = call("cuDeviceGetMemPool", cu::device::get_mem_pool(self.device))?;
            let value = std::ptr::from_mut(&mut all).cast();
            call(
                "cuMemPoolSetAttribute",
                cu::mem_pool::set_attribute(pool, threshold, value),
            )
        }
    }

    /// Makes the context current on the calling thread.
    fn bind(&self) -> Result<(), KernelError> {
        // SAFETY: the context is retained until this is dropped.
        call("cuCtxSetCurrent", unsafe {
            cu::ctx::set_current(self.context)
        })
    }

    fn synchronize(&self, stream: sys::CUstream) -> Result<(), KernelError> {
        // SAFETY: the stream lives as long as this.
        call("cuStreamSynchronize", unsafe {
            cu::stream::synchronize(stream)
        })
    }

    /// A kernel by its name, allowed at least `shared_bytes` of shared memory.
    fn function(&self, name: &str, shared_bytes: u32) -> Result<sys::CUfunction, KernelError> {
        let mut functions = self.functions.borrow_mut();
        let known = functions.get(name).copied();
        let (function, allowed) = match known {
            Some(known) => known,
            None => (self.look_up(name)?, SHARED_UNASKED_BYTES),
        };
        if shared_bytes > allowed {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a module that stays loaded.
            let asked = unsafe {
                cu::function::set_function_attribute(
                    function,
                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared_bytes as i32,
                )
            };
            call(
                &format!("{shared_bytes} bytes of shared memory for {name}"),
                asked,
            )?;
        }
        functions.insert(name.to_owned(), (function, allowed.max(shared_bytes)));
        Ok(function)
    }

    fn look_up(&self, name: &str) -> Result<sys::CUfunction, KernelError> {
        let unknown = || KernelError::UnknownKernel {
            name: name.to_owned(),
        };
        let text = CString::new(name).map_err(|_| unknown())?;
        let found = self.modules.iter().find_map(|module| {
            // SAFETY: the module stays loaded until this is dropped.
            unsafe { cu::module::get_function(*module, text.clone()) }.ok()
        });
        found.ok_or_else(unknown)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alloc(
        &self,
        name: &str,
        bytes: usize,
        _granule: usize,
        _state: BufferState,
    ) -> Result<u64, KernelError> {
        self.bind()?;
        let room = bytes.max(ALLOC_MIN_BYTES);
        let stream = self.streams[Lane::Compute as usize];
        // SAFETY: the stream lives as long as this, and all uses are on it, or ordered behind it
        // by an event, as `Lane` asks for.
        let address = call(
            &format!("cuMemAllocAsync of {bytes} bytes ({name})"),
            unsafe { cu::malloc_async(stream, room) },
        )?;
        // What was asked for: the pool's own count has what it rounds up.
        self.ledger.borrow_mut().add(address, room as u64);
        Ok(address)
    }

    fn write(&self, to: Buffer<u8>, from: &[u8]) -> Result<(), KernelError> {
        let fits = from.len() <= to.len();
        require(
            fits,
            "write",
            "bytes",
            from.len(),
            "no more than the buffer",
        )?;
        if from.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the buffer is at least as long as the source. Pageable memory has been copied
        // away when the call returns, so the source may go.
        call("cuMemcpyHtoDAsync", unsafe {
            cu::memcpy_htod_async(to.address(), from, self.stream())
        })
    }

    fn read(&self, from: Buffer<u8>, to: &mut [u8]) -> Result<(), KernelError> {
        let fits = to.len() <= from.len();
        require(fits, "read", "bytes", to.len(), "no more than the buffer")?;
        self.bind()?;
        if !to.is_empty() {
            // SAFETY: the buffer is at least as long as the target, which outlives the wait below.
            call("cuMemcpyDtoHAsync", unsafe {
                cu::memcpy_dtoh_async(to, from.address(), self.stream())
            })?;
        }
        self.synchronize(self.stream())
    }

    fn zero(&self, at: Buffer<u8>) -> Result<(), KernelError> {
        if at.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the buffer is memory of that length.
        call("cuMemsetD8Async", unsafe {
            cu::memset_d8_async(at.address(), 0, at.len(), self.stream())
        })
    }

    fn mark(&self) -> Mark {
        Mark(self.ledger.borrow().len())
    }

    fn release(&self, to: Mark) -> Result<(), KernelError> {
        self.bind()?;
        let mut ledger = self.ledger.borrow_mut();
        while let Some(address) = ledger.remove_last(to.0) {
            let stream = self.streams[Lane::Compute as usize];
            // SAFETY: allocated on this stream, freed once, after the work before it in the stream.
            call("cuMemFreeAsync", unsafe { cu::free_async(address, stream) })?;
        }
        Ok(())
    }

    fn purpose(&self, purpose: Purpose) -> Purpose {
        self.ledger.borrow_mut().purpose(purpose)
    }

    fn memory(&self) -> DeviceMemory {
        let said = self.ledger.borrow().memory(self.pinned_bytes());
        self.with_driver(said)
    }

    fn time_ns(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<u64>, KernelError> {
        self.bind()?;
        let [first, last] = self.events;
        // SAFETY: events and stream live as long as this; the wait comes before the question.
        unsafe {
            call("cuEventRecord", cu::event::record(first, self.stream()))?;
            work()?;
            call("cuEventRecord", cu::event::record(last, self.stream()))?;
            call("cuEventSynchronize", cu::event::synchronize(last))?;
            let ms = call("cuEventElapsedTime", cu::event::elapsed(first, last))?;
            Ok(Some((f64::from(ms) * 1e6).round() as u64))
        }
    }

    fn vendor_gemm(&self, product: &Product) -> Result<VendorGemm, KernelError> {
        self.bind()?;
        let Some(blas) = &self.blas else {
            return Ok(VendorGemm::Lacks("cuBLASLt is not installed"));
        };
        let mut said = VendorGemm::Computed;
        self.timed("vendor_gemm", || {
            said = blas.run(product, self.stream().cast())?;
            Ok(said == VendorGemm::Computed)
        })?;
        Ok(said)
    }

    fn has_wgmma(&self) -> bool {
        self.architecture == SM_90A
    }

    fn prefill_by(&self) -> PrefillBy {
        self.prefill_by
    }

    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError> {
        self.bind()?;
        let function = self.function(launch.kernel, launch.shared_bytes)?;
        let dims = |d: [u32; 3]| (d[0], d[1], d[2]);
        // The driver copies the structure during the call and does not write to it.
        let mut arguments = [params.as_ptr().cast_mut().cast()];
        let mut run = || {
            // SAFETY: the kernel takes one structure by value, of the size of `params`: each
            // wrapper of `ops` pairs the two, and the emulator's tests cover every pair.
            unsafe {
                cu::launch_kernel(
                    function,
                    dims(launch.grid),
                    dims(launch.block),
                    launch.shared_bytes,
                    self.stream(),
                    &mut arguments,
                )
            }
        };
        let name = || format!("launch of {}", launch.kernel);
        let launched = self.timed(launch.kernel, || call(&name(), run()).map(|()| true));
        launched.map(|_| ())
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Failures to free are nothing to act on.
        if self.bind().is_err() {
            return;
        }
        let _ = self.synchronize(self.streams[Lane::Copy as usize]);
        let _ = self.release(Mark(0));
        let _ = self.synchronize(self.streams[Lane::Compute as usize]);
        self.blas = None;
        self.drop_lanes();
        self.drop_timing();
        // SAFETY: everything was made by this device, and is used by nobody after this.
        unsafe {
            for module in &self.modules {
                let _ = cu::module::unload(*module);
            }
            for event in self.events {
                let _ = cu::event::destroy(event);
            }
            for stream in self.streams {
                let _ = cu::stream::destroy(stream);
            }
            let _ = cu::primary_ctx::release(self.device);
        }
    }
}
