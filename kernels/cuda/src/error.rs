//! What can go wrong before and during a launch.

use crate::emulate::Fault;

/// A refused or failed operation.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No C++ compiler to build the emulated kernels with.
    #[error("no C++ compiler found (tried {tried}): install g++ or set CXX")]
    NoCompiler {
        /// Commands tried.
        tried: String,
    },
    /// The compiler refused a file.
    #[error("{file} does not compile:\n{log}")]
    Compile {
        /// Source file.
        file: String,
        /// What the compiler said.
        log: String,
    },
    /// A file of the build could not be read or written.
    #[error("{path}: {problem}")]
    File {
        /// Path.
        path: String,
        /// What happened.
        problem: String,
    },
    /// The built library could not be loaded.
    #[error("{path} cannot be loaded: {problem}")]
    Load {
        /// Path.
        path: String,
        /// What the loader said.
        problem: String,
    },
    /// No kernel of this name.
    #[error("no kernel {name}: known are those of `source::FILES`")]
    UnknownKernel {
        /// Name.
        name: String,
    },
    /// An argument does not fit the others.
    #[error("{op}: {what} is {found}, expected {expected}")]
    Argument {
        /// Operation.
        op: &'static str,
        /// Which argument.
        what: &'static str,
        /// What was given.
        found: String,
        /// What would do.
        expected: String,
    },
    /// There is no device to run on, or nothing to build kernels with.
    #[error("no CUDA device: {problem}")]
    NoDevice {
        /// What is missing.
        problem: String,
    },
    /// The driver or a library of the device refused a call.
    #[error("{call}: {problem}")]
    Device {
        /// What was called, and on what.
        call: String,
        /// Its answer.
        problem: String,
    },
    /// The vendor's library of products refused a call, or failed.
    #[error("{call}: {problem}")]
    Vendor {
        /// What was called.
        call: &'static str,
        /// Its answer.
        problem: String,
    },
    /// The emulated machine stopped the kernel.
    #[error("{0}")]
    Fault(Fault),
}

/// Refuses an argument unless `ok`.
pub(crate) fn require(
    ok: bool,
    op: &'static str,
    what: &'static str,
    found: impl std::fmt::Debug,
    expected: impl Into<String>,
) -> Result<(), KernelError> {
    if ok {
        return Ok(());
    }
    Err(KernelError::Argument {
        op,
        what,
        found: format!("{found:?}"),
        expected: expected.into(),
    })
}
