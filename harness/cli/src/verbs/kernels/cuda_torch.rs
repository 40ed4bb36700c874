//! A device's attention beside PyTorch's on the same device.

use anyhow::{Context, Result};
use half::bf16;
use pb_kernels_cuda::check::case::{Case, Chunk, Sizes};
use pb_kernels_cuda::{Device, DeviceExt};

use super::torch::{Comparison, Problem, Torch};

/// Tokens of the chunk and before it: one query, a prompt, a chunk late in a prompt.
const SHAPES: [(usize, usize); 3] = [(1, 4095), (512, 0), (512, 2048)];

/// Heads of a model of 8 billion parameters.
const SIZES: Sizes = Sizes {
    d: 128,
    group: 4,
    kv_heads: 8,
    block: 16,
};

/// Overwritten before every launch; `sdpa.py` does the same.
const SCRUB_BYTES: usize = 256 << 20;

/// Compares prefill and decode in bf16.
pub(super) fn beside_torch(
    device: &dyn Device,
    torch: &mut Torch,
    to: &mut Comparison,
) -> Result<()> {
    for (len, prefix) in SHAPES {
        let mark = device.mark();
        let scrub = device.zeroed::<u8>("scrub", SCRUB_BYTES)?;
        let case = Case::<bf16, bf16>::new(41, SIZES, &[Chunk { prefix, len }]);
        let ([q, k, v], expected) = (case.rows(), case.expected());
        let problem = Problem {
            dtype: "bfloat16",
            q_heads: SIZES.group * SIZES.kv_heads,
            kv_heads: SIZES.kv_heads,
            d: SIZES.d,
            len,
            prefix,
            q: &q,
            k: &k,
            v: &v,
            expected: &expected,
        };
        let kernel = match len {
            1 => "decode",
            _ => device.prefill_by().name(),
        };
        let named = (kernel, format!("bf16 {len}@{prefix}"));
        case.launches(device, |launch| {
            let mut ours = || {
                device.zero(scrub)?;
                device.time_ns(launch)?.context("the device has no time")
            };
            to.add(torch, named, &problem, &mut ours)
        })??;
        device.release(mark)?;
    }
    Ok(())
}
