//! Choice of instruction set, as a value that proves the CPU supports it.
//!
//! Kernels take an [`Isa`] explicitly, so tests can compare instruction sets on one machine.
//! The inner kind is private: only constructors that ask the CPU can make an AVX value, which
//! is what makes the safe kernel functions sound.

use crate::lanes::Lanes;

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
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn run_avx512<J: Job>(job: J) -> J::Out {
    // SAFETY: this function's features are those that V512 needs.
    unsafe { job.run::<crate::lanes::avx512::V512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<J: Job>(job: J) -> J::Out {
    // SAFETY: this function's features are those that V256 needs.
    unsafe { job.run::<crate::lanes::avx2::V256>() }
}

#[cfg(test)]
mod tests {
    use super::Isa;

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
