//! The built kernels as a shared library, and the machine's interface in it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::path::Path;

use super::build;
use crate::error::KernelError;
use crate::source::{FILES, PROBES};

/// The state of `machine.hpp`, of which only pointers are known here.
#[repr(C)]
pub(super) struct Machine {
    opaque: [u8; 0],
}

/// `Fault` of `machine.hpp`.
#[repr(C)]
pub(super) struct RawFault {
    pub(super) kind: u32,
    text: [u8; 508],
}

impl RawFault {
    pub(super) fn new() -> Self {
        RawFault {
            kind: 0,
            text: [0; 508],
        }
    }

    pub(super) fn text(&self) -> String {
        let end = self.text.iter().position(|b| *b == 0);
        String::from_utf8_lossy(&self.text[..end.unwrap_or(self.text.len())]).into_owned()
    }
}

type LaunchFn = unsafe extern "C" fn(
    *mut Machine,
    *const c_void,
    *const c_char,
    *const u32,
    *const u32,
    usize,
    *const u8,
    usize,
    u64,
    *mut RawFault,
);

type NewFn = unsafe extern "C" fn() -> *mut Machine;
type FreeFn = unsafe extern "C" fn(*mut Machine);
type AllocFn = unsafe extern "C" fn(*mut Machine, usize, u32, u32, u32, *const c_char) -> *mut u8;
type ReleaseFn = unsafe extern "C" fn(*mut Machine, *mut u8);
type UnwrittenFn = unsafe extern "C" fn(*mut Machine, *const u8) -> usize;

/// Entry points of the machine.
pub(super) struct Api {
    pub(super) machine_new: NewFn,
    pub(super) machine_free: FreeFn,
    pub(super) alloc: AllocFn,
    pub(super) release: ReleaseFn,
    pub(super) unwritten: UnwrittenFn,
    pub(super) launch: LaunchFn,
}

/// A kernel of the library.
pub(super) struct Symbol {
    pub(super) address: *const c_void,
    pub(super) name: CString,
}

/// The kernels of one set of macros, compiled for this machine and loaded.
pub struct Library {
    handle: *mut c_void,
    pub(super) api: Api,
}

// SAFETY: the library has no state beyond the machines, each of which belongs to one thread.
unsafe impl Send for Library {}
// SAFETY: as above; the loader's lookups may be called from any thread.
unsafe impl Sync for Library {}

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

impl Library {
    /// Compiles all kernels, unless `directory` has the result already,
    /// and loads them. The library stays loaded for the life of the process.
    ///
    /// # Errors
    /// [`KernelError::NoCompiler`] where there is none; others when building or loading fails.
    pub fn build(directory: &Path) -> Result<Self, KernelError> {
        Self::build_with(directory, &[])
    }

    /// The same with `defines` as macros: kernels with a planted fault.
    ///
    /// # Errors
    /// As [`Library::build`].
    pub fn build_with(directory: &Path, defines: &[&str]) -> Result<Self, KernelError> {
        Self::load(&build::build(directory, FILES, defines)?)
    }

    /// The same of one file, with `defines` as macros: how tests plant faults.
    ///
    /// # Errors
    /// As [`Library::build`]; [`KernelError::UnknownKernel`] when there is no such file.
    pub fn build_variant(
        directory: &Path,
        file: &str,
        defines: &[&str],
    ) -> Result<Self, KernelError> {
        match FILES.iter().chain(PROBES).find(|f| f.name == file) {
            Some(found) => Self::load(&build::build(directory, &[*found], defines)?),
            None => Err(KernelError::UnknownKernel {
                name: file.to_owned(),
            }),
        }
    }

    fn load(path: &Path) -> Result<Self, KernelError> {
        let name = path.to_string_lossy().into_owned();
        let failed = |problem: String| KernelError::Load {
            path: name.clone(),
            problem,
        };
        let file = CString::new(name.as_bytes()).map_err(|e| failed(e.to_string()))?;
        // SAFETY: a valid string; the library's initialisers are the compiler's own.
        let handle = unsafe { dlopen(file.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failure dlerror returns a string or null.
            let problem = unsafe {
                match dlerror() {
                    text if text.is_null() => "unknown".to_owned(),
                    text => CStr::from_ptr(text).to_string_lossy().into_owned(),
                }
            };
            return Err(failed(problem));
        }
        let find = |symbol: &CStr| {
            // SAFETY: the handle is open and the name a valid string.
            let address = unsafe { dlsym(handle, symbol.as_ptr()) };
            if address.is_null() {
                return Err(failed(format!("{symbol:?} is missing")));
            }
            Ok(address)
        };
        // SAFETY: machine.cpp defines these functions with these signatures.
        let api = unsafe {
            Api {
                machine_new: transmute::<*mut c_void, NewFn>(find(c"pb_machine_new")?),
                machine_free: transmute::<*mut c_void, FreeFn>(find(c"pb_machine_free")?),
                alloc: transmute::<*mut c_void, AllocFn>(find(c"pb_machine_alloc")?),
                release: transmute::<*mut c_void, ReleaseFn>(find(c"pb_machine_release")?),
                unwritten: transmute::<*mut c_void, UnwrittenFn>(find(c"pb_machine_unwritten")?),
                launch: transmute::<*mut c_void, LaunchFn>(find(c"pb_machine_launch")?),
            }
        };
        Ok(Library { handle, api })
    }

    /// A kernel by its name.
    pub(super) fn kernel(&self, name: &str) -> Result<Symbol, KernelError> {
        let unknown = || KernelError::UnknownKernel {
            name: name.to_owned(),
        };
        // The machine's own functions are no kernels.
        if name.starts_with("pb_") || name.starts_with('_') {
            return Err(unknown());
        }
        let name = CString::new(name).map_err(|_| unknown())?;
        // SAFETY: the handle stays open and the name is a valid string.
        let address = unsafe { dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(unknown());
        }
        Ok(Symbol { address, name })
    }
}
