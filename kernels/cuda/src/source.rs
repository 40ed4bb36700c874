//! The sources, carried in the binary: a machine that runs it needs no checkout.

/// One file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Name that `#include` and messages use.
    pub name: &'static str,
    /// Content.
    pub text: &'static str,
}

impl File {
    /// Whether a macro means anything to this file: others need not be built again for it.
    pub(crate) fn mentions(&self, define: &str) -> bool {
        [self]
            .into_iter()
            .chain(HEADERS)
            .any(|f| f.text.contains(define))
    }
}

/// A file of `cu/` or `emulate/`.
macro_rules! file {
    ($folder:literal, $name:literal) => {
        File {
            name: $name,
            text: include_str!(concat!("../", $folder, "/", $name)),
        }
    };
}

/// Headers that the kernels include.
pub const HEADERS: &[File] = &[
    file!("cu", "device.cuh"),
    file!("cu", "paged.cuh"),
    file!("cu", "prefill.cuh"),
];

/// The kernels, one operation a file.
pub const FILES: &[File] = &[
    file!("cu", "prefill.cu"),
    file!("cu", "prefill_sm90.cu"),
    file!("cu", "decode.cu"),
    file!("cu", "gemm.cu"),
    file!("cu", "lora.cu"),
    file!("cu", "quantize.cu"),
    file!("cu", "embed.cu"),
    file!("cu", "rmsnorm.cu"),
    file!("cu", "rope_kv.cu"),
    file!("cu", "silu_mul.cu"),
    file!("cu", "sample.cu"),
    file!("cu", "rows.cu"),
    file!("cu", "blocks.cu"),
    file!("cu", "checksum.cu"),
];

/// Kernels that test the emulator itself; not for a device.
pub(crate) const PROBES: &[File] = &[
    file!("emulate", "probe.cu"),
    file!("emulate", "probe_wgmma.cu"),
];

/// The architecture of devices of compute capability 9.0, with the instructions that no other has.
pub const SM_90A: &str = "sm_90a";

/// The kernels that an architecture has, as `sm_80`.
pub fn files_of(architecture: &str) -> impl Iterator<Item = &'static File> {
    let has_wgmma = architecture == SM_90A;
    FILES
        .iter()
        .filter(move |f| has_wgmma || !f.name.ends_with("_sm90.cu"))
}

/// Options of the device build. Sums fuse only where the source says so: then the emulator
/// computes what the device does.
pub const DEVICE_FLAGS: &[&str] = &["--std=c++17", "--fmad=false"];

/// What the emulator adds: the header that stands in for CUDA, and the machine.
pub(crate) const EMULATOR: &[File] = &[
    file!("emulate", "emulate.hpp"),
    file!("emulate", "machine.hpp"),
    file!("emulate", "machine.cpp"),
    file!("emulate", "memory.cpp"),
    file!("emulate", "warp.cpp"),
    file!("emulate", "wgmma.cpp"),
];

/// Whether some kernel asks for the macro `name`: a planted fault that none knows plants nothing.
pub fn is_known_macro(name: &str) -> bool {
    FILES.iter().any(|file| file.mentions(name))
}
