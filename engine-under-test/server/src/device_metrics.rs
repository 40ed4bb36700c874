//! A device's memory and the times of its kernels on the page `/metrics`, for an engine that
//! computes on one.

use pb_core::{DeviceMemory, KernelTotal};

use crate::page::Page;

/// Writes where the memory stands. It says nothing about how full the KV pool is: that is told in
/// blocks.
pub(crate) fn memory(page: &mut Page, memory: Option<&DeviceMemory>) {
    let Some(memory) = memory else {
        return;
    };
    let now = memory.purposes.iter().map(|p| (p.purpose, p.bytes as f64));
    let metric = (
        "prefillbench_device_allocated_bytes",
        "Device memory that the engine has allocated, by what it is for; the purposes are \
         disjoint.",
        "gauge",
    );
    page.family(metric, "purpose", now);
    let peaks = memory.purposes.iter();
    let metric = (
        "prefillbench_device_allocated_peak_bytes",
        "The most there ever was for each purpose; these need not be of one time, so never add \
         them.",
        "gauge",
    );
    let peaks = peaks.map(|p| (p.purpose, p.peak_bytes as f64));
    page.family(metric, "purpose", peaks);
    page.gauge(
        "prefillbench_device_allocated_together_peak_bytes",
        "The most device memory that was allocated at one time.",
        memory.peak_bytes as f64,
    );
    page.gauge(
        "prefillbench_device_pinned_host_bytes",
        "Page-locked memory of the host.",
        memory.pinned_bytes as f64,
    );
    if let Some(pool) = memory.pool {
        let states = [
            ("reserved", pool.reserved_bytes as f64),
            ("used", pool.used_bytes as f64),
        ];
        let metric = (
            "prefillbench_device_pool_bytes",
            "What the driver's memory pool has reserved, and what of it is in use; how full the \
             KV pool is does not follow from it.",
            "gauge",
        );
        page.family(metric, "state", states);
    }
    if let Some(whole) = memory.whole {
        let states = [
            ("total", whole.total_bytes as f64),
            ("free", whole.free_bytes as f64),
        ];
        let metric = (
            "prefillbench_device_memory_bytes",
            "Memory of the device, and what of it no process has reserved.",
            "gauge",
        );
        page.family(metric, "state", states);
    }
}

/// Writes the times of kernels, of the steps that were timed.
pub(crate) fn kernels(page: &mut Page, kernels: &[KernelTotal]) {
    type Value = fn(&KernelTotal) -> f64;
    let metrics: [(&str, &str, Value); 3] = [
        (
            "prefillbench_kernel_launches_total",
            "Launches of kernels in the steps that were timed.",
            |k| k.launches as f64,
        ),
        (
            "prefillbench_kernel_seconds_total",
            "Time of these launches on the device, the measurement's own included.",
            |k| k.time.as_secs_f64(),
        ),
        (
            "prefillbench_kernel_overhead_seconds_total",
            "How much of it is the measurement's own.",
            |k| k.overhead.as_secs_f64(),
        ),
    ];
    if kernels.is_empty() {
        return;
    }
    for (name, help, value) in metrics {
        let samples = kernels.iter().map(|k| (k.kernel.as_str(), value(k)));
        page.family((name, help, "counter"), "kernel", samples);
    }
}
