//! Building the kernels with the host's C++ compiler.
//!
//! Kernel files are compiled with `-fsanitize=thread` for the calls it puts before memory
//! accesses, and linked with our definitions of those calls; ThreadSanitizer itself takes no part.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::error::KernelError;
use crate::source::{EMULATOR, File, HEADERS};

/// Options of every file. Sums fuse only where the source says so, as in the device build.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-exceptions",
];
/// More options for kernels. Type punning through pointers is CUDA's way to load vectors.
const KERNEL_FLAGS: &[&str] = &[
    "-fsanitize=thread",
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",
    "-DPB_EMULATE",
    "-x",
    "c++",
];
/// More options for the machine.
const MACHINE_FLAGS: &[&str] = &["-O3"];

/// The first C++ compiler that answers.
fn compiler() -> Result<String, KernelError> {
    let from_environment = std::env::var("CXX").ok();
    let candidates: Vec<String> = from_environment
        .into_iter()
        .chain(["g++", "clang++", "c++"].map(String::from))
        .collect();
    let answers = |name: &&String| {
        let asked = Command::new(name.as_str()).arg("--version").output();
        asked.is_ok_and(|o| o.status.success())
    };
    match candidates.iter().find(answers) {
        Some(name) => Ok(name.clone()),
        None => Err(KernelError::NoCompiler {
            tried: candidates.join(", "),
        }),
    }
}

/// Identity of the result of compiling `sources` with `options`.
fn key(compiler: &str, options: &[&str], sources: &[File]) -> String {
    let mut hash = blake3::Hasher::new();
    let mut feed = |part: &str| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    feed(compiler);
    options.iter().for_each(|option| feed(option));
    for file in sources {
        feed(file.name);
        feed(file.text);
    }
    hash.finalize().to_hex()[..16].to_owned()
}

fn file_error(path: &Path, e: &std::io::Error) -> KernelError {
    KernelError::File {
        path: path.display().to_string(),
        problem: e.to_string(),
    }
}

/// Path of the library built from `files` with `defines`, in `directory`. What is there already,
/// objects included, is used again.
pub(super) fn build(
    directory: &Path,
    files: &[File],
    defines: &[&str],
) -> Result<PathBuf, KernelError> {
    // One build at a time in this process: builds share objects.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = compiler()?;
    let sources = [HEADERS, EMULATOR, files].concat();
    let key = key(
        &compiler,
        &[FLAGS, KERNEL_FLAGS, MACHINE_FLAGS, defines].concat(),
        &sources,
    );
    let library = directory.join(format!("pb-kernels-{key}.so"));
    if library.exists() {
        return Ok(library);
    }
    // Another process may build the same: each works in a folder of its own, and the last step
    // is a rename.
    let scratch = directory.join(format!("pb-kernels-{key}-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| file_error(&scratch, &e))?;
    for file in sources {
        let path = scratch.join(file.name);
        std::fs::write(&path, file.text).map_err(|e| file_error(&path, &e))?;
    }
    let build = Build {
        compiler: &compiler,
        directory,
        scratch: &scratch,
        defines,
    };
    let machine = EMULATOR.iter().filter(|f| f.name.ends_with(".cpp"));
    let units: Vec<File> = files.iter().chain(machine).copied().collect();
    let objects = build.compile_all(&units)?;
    let linked = scratch.join("library.so");
    let mut link = Command::new(&compiler);
    link.arg("-shared").args(&objects).arg("-o").arg(&linked);
    run(&mut link, "the library")?;
    std::fs::rename(&linked, &library).map_err(|e| file_error(&library, &e))?;
    std::fs::remove_dir_all(&scratch).map_err(|e| file_error(&scratch, &e))?;
    Ok(library)
}

/// What the steps of one build share.
struct Build<'a> {
    compiler: &'a str,
    directory: &'a Path,
    scratch: &'a Path,
    defines: &'a [&'a str],
}

impl Build<'_> {
    /// Compiles every file, as many at a time as there are processors.
    fn compile_all(&self, units: &[File]) -> Result<Vec<PathBuf>, KernelError> {
        let queue = Mutex::new(units.iter());
        let failure = Mutex::new(None);
        let work = || {
            loop {
                // OK because a worker holds the lock for one step that cannot panic.
                let next = queue.lock().expect("not poisoned").next();
                let Some(file) = next else { break };
                if let Err(e) = self.compile(file) {
                    // OK because, again, nothing under this lock panics.
                    *failure.lock().expect("not poisoned") = Some(e);
                }
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|s| {
            for _ in 0..workers.min(units.len()) {
                s.spawn(work);
            }
        });
        // OK because the workers are gone.
        match failure.into_inner().expect("not poisoned") {
            Some(e) => Err(e),
            None => Ok(units.iter().map(|f| self.object(f)).collect()),
        }
    }

    /// Options of a file.
    fn options(&self, file: &File) -> Vec<String> {
        let mut options: Vec<String> = FLAGS.iter().map(ToString::to_string).collect();
        if file.name.ends_with(".cu") {
            let known = self.defines.iter().filter(|d| file.mentions(d));
            options.extend(known.map(|d| format!("-D{d}")));
            options.extend(KERNEL_FLAGS.iter().map(ToString::to_string));
        } else {
            options.extend(MACHINE_FLAGS.iter().map(ToString::to_string));
        }
        options
    }

    /// Where the object of a file is kept, under a name for all that it depends on.
    fn object(&self, file: &File) -> PathBuf {
        let options = self.options(file);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let headers = EMULATOR.iter().filter(|f| f.name.ends_with(".hpp"));
        let sources: Vec<File> = HEADERS
            .iter()
            .chain(headers)
            .chain([file])
            .copied()
            .collect();
        let key = key(self.compiler, &options, &sources);
        self.directory.join(format!("pb-{}-{key}.o", file.name))
    }

    fn compile(&self, file: &File) -> Result<(), KernelError> {
        let object = self.object(file);
        if object.exists() {
            return Ok(());
        }
        let made = self.scratch.join(format!("{}.o", file.name));
        let mut command = Command::new(self.compiler);
        command
            .args(self.options(file))
            .arg("-c")
            .arg(self.scratch.join(file.name));
        run(command.arg("-o").arg(&made), file.name)?;
        std::fs::rename(&made, &object).map_err(|e| file_error(&object, &e))
    }
}

fn run(command: &mut Command, file: &str) -> Result<(), KernelError> {
    let failed = |log: String| KernelError::Compile {
        file: file.to_owned(),
        log,
    };
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
}
