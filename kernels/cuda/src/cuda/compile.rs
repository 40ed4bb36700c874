//! Building the kernels with NVRTC, once for each machine: results are kept on disk.
//!
//! Machine code, not PTX, is made: a driver that is older than NVRTC takes the code of a device it
//! knows, but not PTX of a version it does not.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result as nvrtc, sys};

use crate::error::KernelError;
use crate::source::{DEVICE_FLAGS, File, HEADERS, files_of};

/// Machine code of one file of kernels.
pub(super) struct Code {
    pub(super) file: &'static str,
    pub(super) bytes: Vec<u8>,
}

fn failed(call: &str, problem: impl std::fmt::Display) -> KernelError {
    KernelError::Device {
        call: call.to_owned(),
        problem: problem.to_string(),
    }
}

/// Major and minor version of NVRTC.
fn version() -> Result<(c_int, c_int), KernelError> {
    // SAFETY: loading a library runs its initialisers, which are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(KernelError::NoDevice {
            problem: "NVRTC (libnvrtc.so) is not where the loader looks: install the CUDA \
                      toolkit's run-time compiler, or name its folder in LD_LIBRARY_PATH"
                .to_owned(),
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two valid pointers; the library was found.
    let answer = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    answer.result().map_err(|e| failed("nvrtcVersion", e))?;
    Ok((major, minor))
}

/// Compiles every file of `architecture` (as `sm_90a`), or takes what `cache` has of the same
/// sources, options, architecture and compiler. `defines` are macros: how faults are planted.
/// Gives the number of files and how many of them had to be compiled. Needs no GPU.
///
/// # Errors
/// [`KernelError::NoDevice`] without NVRTC; others when it refuses a file, or the cache cannot be
/// written.
pub fn compile_all(
    architecture: &str,
    cache: &Path,
    defines: &[String],
) -> Result<(usize, usize), KernelError> {
    let (codes, compiled) = build(architecture, cache, defines)?;
    Ok((codes.len(), compiled))
}

/// The code of every file, and how many were compiled.
pub(super) fn build(
    architecture: &str,
    cache: &Path,
    defines: &[String],
) -> Result<(Vec<Code>, usize), KernelError> {
    let version = version()?;
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    options.extend(DEVICE_FLAGS.iter().map(ToString::to_string));
    let file_error = |path: &Path, e: std::io::Error| KernelError::File {
        path: path.display().to_string(),
        problem: e.to_string(),
    };
    std::fs::create_dir_all(cache).map_err(|e| file_error(cache, e))?;
    let (mut codes, mut compiled) = (Vec::new(), 0);
    for file in files_of(architecture) {
        let known = defines.iter().filter(|d| file.mentions(d));
        let known = known.map(|d| format!("-D{d}"));
        let options: Vec<String> = options.iter().cloned().chain(known).collect();
        let kept = place(cache, file, &options, version);
        let bytes = match std::fs::read(&kept) {
            Ok(bytes) if !bytes.is_empty() => bytes,
            _ => {
                compiled += 1;
                let bytes = compile(file, &options)?;
                // Another process may do the same; the last step is a rename.
                let made = kept.with_extension(format!("{}", std::process::id()));
                std::fs::write(&made, &bytes).map_err(|e| file_error(&made, e))?;
                std::fs::rename(&made, &kept).map_err(|e| file_error(&kept, e))?;
                bytes
            }
        };
        codes.push(Code {
            file: file.name,
            bytes,
        });
    }
    Ok((codes, compiled))
}

/// Where the code of a file is kept: under a name for all that it depends on.
fn place(cache: &Path, file: &File, options: &[String], version: (c_int, c_int)) -> PathBuf {
    let mut hash = blake3::Hasher::new();
    let mut feed = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    feed(&format!("NVRTC {}.{}", version.0, version.1));
    options.iter().for_each(|option| feed(option));
    for source in HEADERS.iter().chain([file]) {
        feed(source.name);
        feed(source.text);
    }
    let key = hash.finalize().to_hex()[..16].to_owned();
    cache.join(format!("pb-{}-{key}.cubin", file.name))
}

/// A program of NVRTC, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by nvrtcCreateProgram, and not used after this. A failure to free it is
        // nothing to act on.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

fn compile(file: &File, options: &[String]) -> Result<Vec<u8>, KernelError> {
    // OK because no source has a zero byte: a test compiles them all.
    let text = |text: &str| CString::new(text).expect("no zero byte");
    let (source, name) = (text(file.text), text(file.name));
    let headers: Vec<CString> = HEADERS.iter().map(|h| text(h.text)).collect();
    let names: Vec<CString> = HEADERS.iter().map(|h| text(h.name)).collect();
    let pointers =
        |texts: &[CString]| -> Vec<*const c_char> { texts.iter().map(|t| t.as_ptr()).collect() };
    let (headers, names) = (pointers(&headers), pointers(&names));
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings outlive the call, which copies them; the lists have one length.
    let made = unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as c_int,
            headers.as_ptr(),
            names.as_ptr(),
        )
    };
    made.result().map_err(|e| failed("nvrtcCreateProgram", e))?;
    let program = Program(program);
    // SAFETY: the program is alive, here and in the calls below.
    if let Err(e) = unsafe { nvrtc::compile_program(program.0, options) } {
        // SAFETY: as above; the log is asked for and copied before the program is dropped.
        let log = unsafe { nvrtc::get_program_log(program.0) };
        let log: Vec<u8> = log
            .unwrap_or_default()
            .iter()
            .map(|c| c.cast_unsigned())
            .collect();
        return Err(KernelError::Compile {
            file: file.name.to_owned(),
            log: format!("{e}\n{}", String::from_utf8_lossy(&log)),
        });
    }
    let mut size = 0;
    // SAFETY: as above, and a valid pointer.
    let answer = unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) };
    answer
        .result()
        .map_err(|e| failed("nvrtcGetCUBINSize", e))?;
    let mut bytes = vec![0u8; size];
    // SAFETY: as above, and room for as many bytes as the library said.
    let answer = unsafe { sys::nvrtcGetCUBIN(program.0, bytes.as_mut_ptr().cast()) };
    answer.result().map_err(|e| failed("nvrtcGetCUBIN", e))?;
    if bytes.is_empty() {
        let problem = "no machine code: the architecture must be a real one, as sm_90";
        return Err(failed("nvrtcGetCUBIN", problem));
    }
    Ok(bytes)
}
