//! Attention at every shape: many small problems, on as many devices as there are threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, anyhow};
use pb_kernels_cuda::check::Judged;
use pb_kernels_cuda::check::shapes::{
    AttentionShape, decode_shapes, prefill_shapes, prefill_sm90_shapes, split_shapes,
};
use pb_kernels_cuda::{Device, KernelError};

use super::Findings;
use crate::progress::Progress;

/// Shapes between two lines of progress.
const STEP: usize = 100;

/// Judges every shape; each of `threads` threads takes the next one, on the devices that `open`
/// gives it: the first is judged against f64, the others against its bits.
pub(super) fn run<D: Device>(
    threads: usize,
    open: &(dyn Fn() -> Result<Vec<D>, KernelError> + Sync),
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    let mut shapes = [prefill_shapes(), split_shapes(), decode_shapes()].concat();
    if open()?.iter().all(Device::has_wgmma) {
        shapes.extend(prefill_sm90_shapes());
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![None; shapes.len()]);
    let work = || -> Result<usize, KernelError> {
        let devices = open()?;
        while let Some(judged) = take(&shapes, &next, &devices) {
            let (i, judged) = judged?;
            done.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(judged);
            if (i + 1).is_multiple_of(STEP) {
                progress.phase(format!("{} of {} shapes", i + 1, shapes.len()));
            }
        }
        Ok(devices.len())
    };
    let runs = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        let ends = workers.into_iter().map(|worker| match worker.join() {
            Ok(end) => end.map_err(anyhow::Error::from),
            Err(_) => Err(anyhow!("a thread that judges shapes panicked")),
        });
        ends.collect::<Result<Vec<usize>>>()
    })?;
    let judged = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    findings.judged.extend(judged.into_iter().flatten());
    findings.runs_of_shape = runs.first().copied();
    Ok(())
}

/// Judges the next shape that nobody has taken.
fn take<D: Device>(
    shapes: &[AttentionShape],
    next: &AtomicUsize,
    devices: &[D],
) -> Option<Result<(usize, Judged), KernelError>> {
    let i = next.fetch_add(1, Ordering::Relaxed);
    let shape = shapes.get(i)?;
    Some(shape.judge(devices).map(|judged| (i, judged)))
}
