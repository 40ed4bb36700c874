//! A device's memory on the page `/metrics`, for an engine that computes on one.

use pb_core::DeviceMemory;

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
        "Device memory that the engine has allocated, by what it is for; the purposes are disjoint.",
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
