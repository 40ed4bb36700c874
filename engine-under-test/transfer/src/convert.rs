//! From one KV element type to another.
//!
//! The value of an element is what the engine's kernels read: the code widened, times its scale.
//! Another type takes it as the engine's own write would: divided by the scale, rounded to nearest
//! even. One thing differs: where a write saturates or overflows, a transfer refuses, because what
//! arrives would stand for another value and nobody at the decode side could tell.

use half::{bf16, f16};
use pb_contract::KvDtype;
use pb_kernels_cpu::{Fp8E4m3, Fp8E5m2, KvElem};

/// How much a transfer may change the values that attention reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conversion {
    /// One element type, one set of scales.
    #[default]
    Never,
    /// Another type that reads as the same f32 values.
    Exact,
    /// Another type, rounded to nearest; values out of its range are still refused.
    Rounded,
}

impl Conversion {
    /// As in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Conversion::Never => "never",
            Conversion::Exact => "exact",
            Conversion::Rounded => "rounded",
        }
    }
}

/// What it takes to turn `from` into `to`; `None` when there is no rule. Scales aside: fp8 with
/// other scales is [`Conversion::Rounded`], see [`crate::Peer`].
pub fn needed(from: KvDtype, to: KvDtype) -> Option<Conversion> {
    use KvDtype::{Bf16, F16, F32, Fp8E4m3, Fp8E5m2};
    let known = |dtype| matches!(dtype, F32 | Bf16 | F16 | Fp8E4m3 | Fp8E5m2);
    match (from, to) {
        _ if from == to => Some(Conversion::Never),
        // f64 is the yardstick's, and the scales of int8 belong to single tokens: both move only
        // as they are.
        _ if !known(from) || !known(to) => None,
        (_, F32) => Some(Conversion::Exact),
        _ => Some(Conversion::Rounded),
    }
}

/// The value of the element at the start of `bytes`.
pub(crate) fn read(dtype: KvDtype, bytes: &[u8], scale: f32) -> f32 {
    let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        KvDtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        KvDtype::Bf16 => bf16::from_bits(half()).to_f32(),
        KvDtype::F16 => f16::from_bits(half()).to_f32(),
        KvDtype::Fp8E4m3 => KvElem::to_f32(Fp8E4m3(bytes[0])) * scale,
        KvDtype::Fp8E5m2 => KvElem::to_f32(Fp8E5m2(bytes[0])) * scale,
        KvDtype::F64 | KvDtype::Int8 => unreachable!("no rule: refused at the handshake"),
    }
}

/// Puts `value` at the start of `out`. False, and `out` unchanged, when the type cannot hold it.
#[must_use]
pub(crate) fn write(dtype: KvDtype, value: f32, scale: f32, out: &mut [u8]) -> bool {
    match dtype {
        KvDtype::F32 => out[..4].copy_from_slice(&value.to_le_bytes()),
        KvDtype::Bf16 => {
            let rounded = bf16::from_f32(value);
            if value.is_finite() != rounded.is_finite() {
                return false;
            }
            out[..2].copy_from_slice(&rounded.to_bits().to_le_bytes());
        }
        KvDtype::F16 => {
            let rounded = f16::from_f32(value);
            if value.is_finite() != rounded.is_finite() {
                return false;
            }
            out[..2].copy_from_slice(&rounded.to_bits().to_le_bytes());
        }
        KvDtype::Fp8E4m3 => {
            let code = unscaled(value, scale);
            // Half-way to 480, which is not a number of the format: the tie goes to 448.
            if code.abs() > 464.0 {
                return false;
            }
            out[0] = Fp8E4m3::from_f32(code).0;
        }
        KvDtype::Fp8E5m2 => {
            let code = unscaled(value, scale);
            // Half-way to 65,536, where infinity stands: the tie goes there.
            if code.abs() >= 61_440.0 {
                return false;
            }
            out[0] = Fp8E5m2::from_f32(code).0;
        }
        KvDtype::F64 | KvDtype::Int8 => unreachable!("no rule: refused at the handshake"),
    }
    true
}

/// `value / scale`, where a scale of zero means that there were only zeros.
fn unscaled(value: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { value / scale }
}
