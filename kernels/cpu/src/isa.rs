//! Choice of instruction set, as a value that proves the CPU supports it.
//!
//! Kernels take an [`Isa`] explicitly, so tests can compare instruction sets on one machine.
//! The inner kind is private: only constructors that ask the CPU can make an AVX value, which
//! is what makes the safe kernel functions sound.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use crate::lanes::{DotLanes, Lanes};

/// An instruction set that this CPU is known to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// What the fast product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// f32 activations times widened bf16 weights.
    F32,
    /// Activations rounded to bf16 (to nearest, ties to even) times bf16 weights, summed in
    /// f32. A CPU without a fitting instruction computes the same in f32 arithmetic.
    Bf16,
}

impl Isa {
    /// The best instruction set of this CPU.
    pub fn detect() -> Isa {
        Isa::supported()[0]
    }

    /// Plain Rust, which every CPU can run.
    pub fn portable() -> Isa {
        Isa(Kind::Portable)
    }

    /// All instruction sets that this CPU can run, best first. Never empty.
    pub fn supported() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 && is_x86_feature_detected!("avx512f") {
                all.push(Isa(Kind::Avx512));
            }
            if avx2 {
                all.push(Isa(Kind::Avx2));
            }
        }
        all.push(Isa::portable());
        all
    }

    /// The instruction set called `name` (`avx512`, `avx2` or `portable`), or `None` when the
    /// name is unknown or this CPU lacks it.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::supported().into_iter().find(|isa| isa.name() == name)
    }

    /// The faster [`Dot`] on this CPU.
    ///
    /// bf16 needs AVX512-BF16 and an AMD CPU. There (Zen 4 and later) the dot-product
    /// instruction issues as often as a multiply-add and does twice the work. Intel's server
    /// cores issue it at a fraction of the rate of multiply-adds (they put their bf16
    /// throughput into AMX tiles), so it would only cost precision.
    pub fn preferred_dot(self) -> Dot {
        if self.supports_dot(Dot::Bf16) && vendor_is_amd() {
            Dot::Bf16
        } else {
            Dot::F32
        }
    }

    /// Whether `dot` has instructions of its own here. Every `dot` works everywhere; without
    /// support the bf16 one is emulated, at the speed of the f32 one or a little less.
    pub fn supports_dot(self, dot: Dot) -> bool {
        match (dot, self.0) {
            (Dot::F32, _) => true,
            #[cfg(target_arch = "x86_64")]
            (Dot::Bf16, Kind::Avx512) => is_x86_feature_detected!("avx512bf16"),
            (Dot::Bf16, _) => false,
        }
    }

    /// Lower-case name, as [`Isa::from_name`] takes it.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Runs `job` compiled for this instruction set.
    ///
    /// # Safety
    /// The caller keeps the promises that the job's own `run` states.
    #[inline]
    pub(crate) unsafe fn dispatch<J: Job>(self, job: J) -> J::Out {
        // SAFETY: the private kind was only made after asking the CPU; the job's own
        // promises are passed on to our caller.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => run_avx512(job),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => run_avx2(job),
                Kind::Portable => job.run::<crate::lanes::portable::VArray>(),
            }
        }
    }

    /// Runs `job` compiled for this instruction set with its bf16 dot product.
    ///
    /// # Panics
    /// When [`Isa::supports_dot`] denies it.
    ///
    /// # Safety
    /// The caller keeps the promises that the job's own `run` states.
    #[inline]
    pub(crate) unsafe fn dispatch_dot<J: DotJob>(self, job: J) -> J::Out {
        assert!(self.supports_dot(Dot::Bf16), "no bf16 dot product");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU was just asked; the job's own promises are passed on to our caller.
        return unsafe { run_avx512_bf16(job) };
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = job;
            unreachable!("no bf16 dot product on this architecture");
        }
    }
}

/// Asked once: in a virtual machine the question costs a trip to the hypervisor.
#[cfg(target_arch = "x86_64")]
fn vendor_is_amd() -> bool {
    static AMD: OnceLock<bool> = OnceLock::new();
    *AMD.get_or_init(|| {
        let id = std::arch::x86_64::__cpuid(0);
        let name = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"AuthenticAMD"
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn vendor_is_amd() -> bool {
    false
}

/// A kernel with its arguments, generic over the lanes it runs on.
///
/// `run` and all it calls must be `#[inline(always)]`: only code inlined into the
/// `#[target_feature]` functions below is compiled with the wide instructions.
pub(crate) trait Job {
    /// What the kernel returns.
    type Out;
    /// Runs the kernel.
    unsafe fn run<L: Lanes>(self) -> Self::Out;
}

/// A [`Job`] that needs lanes with a bf16 dot product.
pub(crate) trait DotJob {
    /// What the kernel returns.
    type Out;
    /// Runs the kernel.
    unsafe fn run<L: DotLanes>(self) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
unsafe fn run_avx512_bf16<J: DotJob>(job: J) -> J::Out {
    // SAFETY: this function's features are those that V512's dot product needs.
    unsafe { job.run::<crate::lanes::avx512::V512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn run_avx512<J: Job>(job: J) -> J::Out {
    // SAFETY: this function's features are those that V512 needs.
    unsafe { job.run::<crate::lanes::avx512::V512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<J: Job>(job: J) -> J::Out {
    // SAFETY: this function's features are those that V256 needs.
    unsafe { job.run::<crate::lanes::avx2::V256>() }
}

#[cfg(test)]
mod tests {
    use super::{Dot, Isa};

    #[test]
    fn only_a_supported_dot_is_preferred_and_f32_always_is_supported() {
        for isa in Isa::supported() {
            assert!(isa.supports_dot(Dot::F32));
            assert!(isa.supports_dot(isa.preferred_dot()));
        }
        assert_eq!(Isa::portable().preferred_dot(), Dot::F32);
        assert!(!Isa::portable().supports_dot(Dot::Bf16));
    }

    #[test]
    fn names_round_trip_and_portable_is_always_there() {
        for isa in Isa::supported() {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("portable"), Some(Isa::portable()));
        assert_eq!(Isa::from_name("avx1024"), None);
        assert_eq!(Isa::supported()[0], Isa::detect());
    }
}
