//! `prefillbench kernels`: every kernel validated against f64, then timed.

mod cpu;
mod cpu_time;
mod forward;
mod table;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use pb_kernels_cuda::check::{Ceilings, Judged, Timed, ceilings, time_all, validate};
use pb_kernels_cuda::source::is_known_macro;
use pb_kernels_cuda::{CudaDevice, CudaOptions, Device, Emulator, KernelError, Library};

use crate::args::{KernelDevice, KernelsArgs};
use crate::progress::Progress;
use crate::{machine, output, paths};

/// Everything that was found.
#[derive(Default)]
struct Findings {
    device: String,
    judged: Vec<Judged>,
    timed: Vec<Timed>,
    ceilings: Option<Ceilings>,
    /// Why nothing was timed, if so.
    untimed: Option<&'static str>,
    forward: Vec<pb_gpu::check::ForwardCheck>,
}

impl Findings {
    fn passed(&self) -> bool {
        self.judged.iter().all(Judged::passes) && self.forward.iter().all(|f| f.passed)
    }
}

/// Runs the verb.
pub(crate) fn run(args: &KernelsArgs) -> Result<ExitCode> {
    if let Some(fault) = &args.plant {
        ensure!(
            is_known_macro(fault),
            "--plant {fault}: no kernel has this fault"
        );
        ensure!(
            args.device != KernelDevice::Cpu,
            "--plant {fault}: planted faults are those of the CUDA kernels; add --device emulated"
        );
    }
    ensure!(
        !args.forward || args.device != KernelDevice::Cpu,
        "--forward: forward passes of the CPU are checked by `prefillbench validate`"
    );
    let progress = Progress::new();
    let cache = paths::home()?.join("kernels");
    let mut findings = Findings::default();
    let done = match args.device {
        KernelDevice::Cpu => {
            let threads = args.threads.unwrap_or_else(machine::cores);
            cpu::run(threads, !args.skip_timing, &mut findings, &progress)
        }
        KernelDevice::Cuda => cuda(args, &cache, &mut findings, &progress),
        KernelDevice::Emulated => emulated(args, &cache, &mut findings, &progress),
    };
    progress.clear();
    done?;
    if let Some(path) = &args.csv {
        table::write_csv(path, &findings).with_context(|| format!("--csv {}", path.display()))?;
    }
    output::table(&table::text(&findings))?;
    Ok(ExitCode::from(u8::from(!findings.passed())))
}

fn cuda(
    args: &KernelsArgs,
    cache: &Path,
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    progress.phase("opening the GPU and building its kernels");
    let mut open = || -> Result<CudaDevice, KernelError> {
        CudaDevice::open(&CudaOptions {
            ordinal: 0,
            cache: cache.to_owned(),
            defines: args.plant.iter().cloned().collect(),
        })
    };
    {
        let device = open()?;
        findings.device = device.name();
        if !args.forward_only {
            alone(&device, true, !args.skip_timing, findings, progress)?;
        }
    }
    forward(args, findings, progress, &mut open)
}

fn emulated(
    args: &KernelsArgs,
    cache: &Path,
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    std::fs::create_dir_all(cache)
        .with_context(|| format!("cannot create the folder {}", cache.display()))?;
    progress.phase("building the kernels with the host's compiler");
    let defines: Vec<&str> = args.plant.as_deref().into_iter().collect();
    // Devices of forward passes live as long as the process.
    let library: &'static Library = Box::leak(Box::new(Library::build_with(cache, &defines)?));
    let device = Emulator::new(library);
    findings.device = device.name();
    findings.untimed = Some("not timed: an emulated device has no time of its own");
    if !args.forward_only {
        alone(&device, args.full, false, findings, progress)?;
    }
    forward(args, findings, progress, &mut || Ok(Emulator::new(library)))
}

/// The kernels alone.
fn alone(
    device: &dyn Device,
    full: bool,
    time: bool,
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    progress.phase("validating every kernel");
    validate(device, full, &mut |judged| findings.judged.push(judged))?;
    if time {
        progress.phase("timing");
        findings.ceilings = ceilings(device)?;
        time_all(device, &mut |timed| findings.timed.push(timed))?;
    }
    Ok(())
}

/// Forward passes, if asked for, each on a device of its own.
fn forward<D: Device + Send + 'static>(
    args: &KernelsArgs,
    findings: &mut Findings,
    progress: &Progress,
    open: &mut dyn FnMut() -> Result<D, KernelError>,
) -> Result<()> {
    if !args.forward {
        return Ok(());
    }
    forward::run(args, progress, open, &mut |check| {
        progress.phase(format!("forward passes: {} done", check.name));
        findings.forward.push(check);
    })
}
