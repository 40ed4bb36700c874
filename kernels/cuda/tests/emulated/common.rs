//! What the tests share: the library, seeded values, conversions, the rule of acceptance.

use std::path::Path;
use std::sync::OnceLock;

use half::{bf16, f16};
use pb_kernels_cpu::Fp8E4m3;
use pb_kernels_cuda::{E4m3, Elem, KernelError, Library, StoreElem};

/// Unit roundoff of f32.
pub(crate) const U32: f64 = 1.0 / 16_777_216.0;

fn directory() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The library of one file with macros; `None`, with a message, where nothing can compile it.
pub(crate) fn variant(file: &str, defines: &[&str]) -> Option<Library> {
    available(Library::build_variant(directory(), file, defines))
}

fn available(built: Result<Library, KernelError>) -> Option<Library> {
    match built {
        Ok(library) => Some(library),
        Err(e @ KernelError::NoCompiler { .. }) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The library of all kernels, built once.
pub(crate) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| available(Library::build(directory())))
        .as_ref()
}

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// Uniform in (-scale, scale).
    pub(crate) fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        let unit = |x: u64| (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..n).map(|_| unit(self.next_u64()) * scale).collect()
    }

    pub(crate) fn shuffle<T>(&mut self, x: &mut [T]) {
        for i in (1..x.len()).rev() {
            let j = self.below(i + 1);
            x.swap(i, j);
        }
    }
}

/// Conversions of an activation type, by the `half` crate instead of our headers.
pub(crate) trait Value: Elem + PartialEq + std::fmt::Debug {
    /// Unit roundoff.
    const ROUNDOFF: f64;
    /// Half of the smallest subnormal number: the error of a value that underflows.
    const UNDERFLOW: f64;
    fn of(x: f32) -> Self;
    fn f64(self) -> f64;
    fn bits(self) -> u16;
}

impl Value for bf16 {
    const ROUNDOFF: f64 = 1.0 / 256.0;
    const UNDERFLOW: f64 = 0.0; // Beyond f32 too; the values here stay far away.
    fn of(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn f64(self) -> f64 {
        bf16::to_f64(self)
    }
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Value for f16 {
    const ROUNDOFF: f64 = 1.0 / 2048.0;
    const UNDERFLOW: f64 = 1.0 / (1u64 << 25) as f64;
    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn f64(self) -> f64 {
        f16::to_f64(self)
    }
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// Conversions of a stored element; `scale` is 1 where there is none.
pub(crate) trait Stored<T: Elem>: StoreElem<T> + PartialEq + std::fmt::Debug {
    /// Something that is not a number.
    fn poison() -> Self;
    fn encode(x: f32, scale: f32) -> Self;
    fn decode(self, scale: f32) -> f64;
}

impl<T: Value> Stored<T> for T {
    fn poison() -> Self {
        T::of(f32::NAN)
    }
    fn encode(x: f32, _: f32) -> Self {
        T::of(x)
    }
    fn decode(self, _: f32) -> f64 {
        self.f64()
    }
}

impl<T: Value> Stored<T> for E4m3
where
    E4m3: StoreElem<T>,
{
    fn poison() -> Self {
        E4m3(0x7f)
    }
    fn encode(x: f32, scale: f32) -> Self {
        E4m3(Fp8E4m3::from_f32(x / scale).0)
    }
    fn decode(self, scale: f32) -> f64 {
        f64::from(Fp8E4m3(self.0).to_f32()) * f64::from(scale)
    }
}

/// Rounds an f32 to a type and back.
pub(crate) fn rounded<T: Value>(x: f32) -> f32 {
    T::of(x).f64() as f32
}

pub(crate) fn typed<T: Value>(x: &[f32]) -> Vec<T> {
    x.iter().map(|v| T::of(*v)).collect()
}

pub(crate) fn f64s<T: Value>(x: &[T]) -> Vec<f64> {
    x.iter().map(|v| v.f64()).collect()
}

pub(crate) fn bits<T: Value>(x: &[T]) -> Vec<u16> {
    x.iter().map(|v| v.bits()).collect()
}

/// Largest relative error after `k` roundings to f32.
pub(crate) fn gamma(k: usize) -> f64 {
    let ku = k as f64 * U32;
    ku / (1.0 - ku)
}

/// One output element as exact arithmetic, a naive evaluation in the low precision and the
/// derivation have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) exact: f64,
    pub(crate) naive: f64,
    /// Bound on the error of arithmetic in f32: what is granted beside twice the naive error.
    pub(crate) f32_bound: f64,
    /// Bound on the whole error, roundings to the low precision included.
    pub(crate) bound: f64,
}

/// Largest `|got - exact|` as a share of what the two rules allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// Share of twice the worst naive error plus the f32 bound.
    pub(crate) of_rule: f64,
    /// Share of the derived bound of the element.
    pub(crate) of_bound: f64,
}

impl Verdict {
    pub(crate) fn passes(&self) -> bool {
        self.of_rule <= 1.0 && self.of_bound <= 1.0
    }
}

/// Judges a kernel's output. NaN and infinity never pass.
pub(crate) fn judge(got: &[f64], want: &[Expected]) -> Verdict {
    assert_eq!(got.len(), want.len(), "outputs");
    let naive = want.iter().map(|e| (e.naive - e.exact).abs());
    let naive = naive.fold(0.0, f64::max);
    let mut verdict = Verdict {
        of_rule: 0.0,
        of_bound: 0.0,
    };
    for (got, e) in got.iter().zip(want) {
        let error = (got - e.exact).abs();
        if !error.is_finite() {
            return Verdict {
                of_rule: f64::INFINITY,
                of_bound: f64::INFINITY,
            };
        }
        let share = |allowed: f64| if error == 0.0 { 0.0 } else { error / allowed };
        verdict.of_rule = verdict.of_rule.max(share(2.0 * naive + e.f32_bound));
        verdict.of_bound = verdict.of_bound.max(share(e.bound));
    }
    verdict
}

/// Asserts both rules and prints how much of them was used.
pub(crate) fn accept(what: &str, got: &[f64], want: &[Expected]) {
    let verdict = judge(got, want);
    println!(
        "{what}: {:.0} % of the rule, {:.0} % of the bound",
        100.0 * verdict.of_rule,
        100.0 * verdict.of_bound
    );
    assert!(verdict.passes(), "{what}: {verdict:?}");
}

#[test]
fn the_rule_refuses_what_is_off() {
    let want = [Expected {
        exact: 1.0,
        naive: 1.01,
        f32_bound: 0.0,
        bound: 0.02,
    }; 2];
    assert!(judge(&[1.0, 1.019], &want).passes());
    assert!(!judge(&[1.0, 1.021], &want).passes());
    assert!(!judge(&[f64::NAN, 1.0], &want).passes());
    assert!(!judge(&[f64::INFINITY, 1.0], &want).passes());
}
