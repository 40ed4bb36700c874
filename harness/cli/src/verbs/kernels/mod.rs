//! `prefillbench kernels`: every kernel validated against f64, then timed.

mod cpu;
mod cpu_time;
mod cpu_torch;
mod cuda_torch;
mod forward;
mod rows;
mod shapes;
mod table;
mod torch;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use pb_kernels_cuda::check::{
    Ceilings, Found, Judged, NotAvailable, Timed, ceilings, time_all, validate,
};
use pb_kernels_cuda::source::is_known_macro;
use pb_kernels_cuda::{CudaDevice, CudaOptions, Device, Emulator, KernelError, Library};

use crate::args::{KernelDevice, KernelsArgs};
use crate::progress::Progress;
use crate::{machine, output, paths};

/// Runs of a shape whose bits must agree.
const RUNS_OF_SHAPE: u64 = 3;

/// Rows whose first choice is clear, below which "none flips" says little: with 50, a fault that
/// flips one in twenty goes unseen in one run of thirteen.
const MIN_DECIDABLE: usize = 50;

/// Everything that was found.
#[derive(Default)]
struct Findings {
    device: String,
    judged: Vec<Judged>,
    timed: Vec<Timed>,
    not_available: Vec<NotAvailable>,
    ceilings: Option<Ceilings>,
    /// Why nothing was timed, if so.
    untimed: Option<&'static str>,
    forward: Vec<pb_gpu::check::ForwardCheck>,
    /// Runs of each shape whose bits were compared, if they were.
    runs_of_shape: Option<usize>,
    torch: Option<torch::Comparison>,
}

impl Findings {
    fn add(&mut self, found: Found) {
        match found {
            Found::Judged(judged) => self.judged.push(judged),
            Found::Timed(timed) => self.timed.push(timed),
            Found::NotAvailable(what) => self.not_available.push(what),
        }
    }

    fn passed(&self) -> bool {
        self.judged.iter().all(Judged::passes) && self.forward.iter().all(|f| f.passed)
    }

    /// Why something that is not wrong proves nothing.
    fn undecided(&self) -> Vec<String> {
        let void = self.torch.iter().flat_map(|c| c.void.iter().cloned());
        let few = self.forward.iter().filter_map(|check| {
            let rows = check.decidable.filter(|n| *n < MIN_DECIDABLE)?;
            Some(format!(
                "{}: only {rows} decidable rows, {MIN_DECIDABLE} are needed to trust that none \
                 flips; raise --prompt-len or --prompts",
                check.name
            ))
        });
        void.chain(few).collect()
    }

    fn exit_code(&self) -> u8 {
        match self.passed() {
            false => 1,
            true if !self.undecided().is_empty() => 3,
            true => 0,
        }
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
    ensure!(
        !args.every_shape || args.device != KernelDevice::Cpu,
        "--every-shape: the shapes are those of the CUDA kernels; add --device emulated"
    );
    ensure!(
        args.torch.is_none() || args.device != KernelDevice::Emulated,
        "--torch: an emulated device has no time to compare"
    );
    let progress = Progress::new();
    let cache = paths::home()?.join("kernels");
    let mut findings = Findings::default();
    let done = match args.device {
        KernelDevice::Cpu => {
            let threads = args.threads.unwrap_or_else(machine::cores);
            let (time, python) = (!args.skip_timing, args.torch.as_deref());
            cpu::run(threads, time, python, &mut findings, &progress)
        }
        KernelDevice::Cuda => cuda(args, &cache, &mut findings, &progress),
        KernelDevice::Emulated => emulated(args, &cache, &mut findings, &progress),
    };
    progress.clear();
    done?;
    if let Some(path) = &args.csv {
        rows::write(path, &findings).with_context(|| format!("--csv {}", path.display()))?;
    }
    output::table(&table::text(&findings))?;
    Ok(ExitCode::from(findings.exit_code()))
}

fn cuda(
    args: &KernelsArgs,
    cache: &Path,
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    progress.phase("opening the GPU and building its kernels");
    let open = || -> Result<CudaDevice, KernelError> {
        CudaDevice::open(&CudaOptions {
            ordinal: 0,
            cache: cache.to_owned(),
            defines: args.plant.iter().cloned().collect(),
        })
    };
    {
        let device = open()?;
        findings.device = device.name();
        if args.every_shape {
            // The same device three times: what depends on the order of threads shows by chance.
            drop(device);
            let runs =
                || -> Result<Vec<_>, KernelError> { (0..RUNS_OF_SHAPE).map(|_| open()).collect() };
            return shapes::run(1, &runs, findings, progress);
        }
        if !args.forward_only {
            alone(&device, true, !args.skip_timing, findings, progress)?;
        }
        if let Some(python) = &args.torch {
            progress.phase("attention in turns with PyTorch's");
            let mut each = |torch: &mut torch::Torch, to: &mut torch::Comparison| {
                cuda_torch::beside_torch(&device, torch, to)
            };
            findings.torch = Some(torch::Comparison::of(python, "cuda", 1, &mut each)?);
        }
    }
    forward(args, findings, progress, &mut || open())
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
    if args.every_shape {
        let orders = || {
            (0..RUNS_OF_SHAPE).map(|seed| {
                let device = Emulator::new(library);
                device.permute(seed); // 0: threads in their plain order.
                Ok::<_, KernelError>(device)
            })
        };
        let threads = args.threads.unwrap_or_else(machine::cores);
        return shapes::run(threads, &|| orders().collect(), findings, progress);
    }
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
    validate(device, full, &mut |found| findings.add(found))?;
    if time {
        progress.phase("timing");
        findings.ceilings = ceilings(device)?;
        time_all(device, &mut |found| findings.add(found))?;
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
