//! Block formats back to f32, with the arithmetic of ggml's reference.
//!
//! Every product is rounded before the sum, as the reference programs do: a fused multiply-add
//! would differ in the last bit and the weights would no longer be the ones that other programs
//! run, which matters when logits are compared at 1e-8.

use half::{bf16, f16};

use super::types::TensorType;

/// Decodes whole blocks of `kind` from `bytes`.
///
/// # Panics
/// When `bytes` is not a whole number of blocks, which the header parser rules out.
pub fn dequantize(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
    assert!(
        bytes.len().is_multiple_of(kind.block_bytes()),
        "partial block of {kind:?}"
    );
    let blocks = bytes.len() / kind.block_bytes();
    let mut out = Vec::with_capacity(blocks * kind.block_len());
    let decode: fn(&[u8], &mut Vec<f32>) = match kind {
        TensorType::F32 => decode_f32,
        TensorType::F16 => decode_f16,
        TensorType::Bf16 => decode_bf16,
        TensorType::Q4_0 => decode_q4_0,
        TensorType::Q4_1 => decode_q4_1,
        TensorType::Q8_0 => decode_q8_0,
        TensorType::Q4K => decode_q4_k,
        TensorType::Q6K => decode_q6_k,
    };
    for block in bytes.chunks_exact(kind.block_bytes()) {
        decode(block, &mut out);
    }
    out
}

/// The f16 at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn decode_f32(block: &[u8], out: &mut Vec<f32>) {
    out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]));
}

fn decode_f16(block: &[u8], out: &mut Vec<f32>) {
    out.push(half_at(block, 0));
}

fn decode_bf16(block: &[u8], out: &mut Vec<f32>) {
    out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32());
}

/// Scale, then 16 bytes whose low nibbles are weights 0 to 15 and high nibbles 16 to 31.
fn decode_q4_0(block: &[u8], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    let codes = &block[2..18];
    let weight = |q: u8| d * (f32::from(q) - 8.0);
    out.extend(codes.iter().map(|b| weight(b & 15)));
    out.extend(codes.iter().map(|b| weight(b >> 4)));
}

/// Scale, minimum, then nibbles as in Q4_0.
fn decode_q4_1(block: &[u8], out: &mut Vec<f32>) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let codes = &block[4..20];
    let weight = |q: u8| d * f32::from(q) + m;
    out.extend(codes.iter().map(|b| weight(b & 15)));
    out.extend(codes.iter().map(|b| weight(b >> 4)));
}

/// Scale, then 32 signed bytes.
fn decode_q8_0(block: &[u8], out: &mut Vec<f32>) {
    let d = half_at(block, 0);
    out.extend(block[2..34].iter().map(|b| d * f32::from(*b as i8)));
}

/// Super-scale, super-minimum, eight 6-bit (scale, minimum) pairs in 12 bytes, 256 nibbles.
fn decode_q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    for (pair, codes) in block[16..144].chunks_exact(32).enumerate() {
        for (half, shift) in [(0, 0), (1, 4)] {
            let (scale, min) = scale_and_min(packed, 2 * pair + half);
            let (scale, min) = (d * f32::from(scale), d_min * f32::from(min));
            out.extend(
                codes
                    .iter()
                    .map(|b| scale * f32::from((b >> shift) & 15) - min),
            );
        }
    }
}

/// The 6-bit scale and minimum of sub-block `j` of a Q4_K block.
///
/// The first four pairs are the low six bits of bytes `j` and `j + 4`; the last four have their
/// low nibbles in bytes 8 to 11 and their two high bits on top of the first eight bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        let min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
        (scale, min)
    }
}

/// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, super-scale.
fn decode_q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for half in 0..2 {
        for quarter in 0..4 {
            for i in 0..32 {
                let nibbles = low[64 * half + 32 * (quarter % 2) + i];
                let nibble = (nibbles >> (4 * (quarter / 2))) & 15;
                let top = (high[32 * half + i] >> (2 * quarter)) & 3;
                let code = f32::from(nibble | (top << 4)) - 32.0;
                let scale = scales[8 * half + 2 * quarter + i / 16] as i8;
                out.push((d * f32::from(scale)) * code);
            }
        }
    }
}
