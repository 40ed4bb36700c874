//! Attention at every shape that engines meet: all combinations, where the ordinary suite takes a
//! few of them.

use half::{bf16, f16};

use super::case::{Case, Chunk, Sizes};
use super::judge::judge;
use super::suite::{Judged, in_words};
use super::values::{Stored, Value, bits, f64s};
use crate::device::Device;
use crate::elem::E4m3;
use crate::error::KernelError;
use crate::ops::PrefillBy;

/// Dimensions of a head.
pub const HEAD_DIMS: [usize; 2] = [64, 128];
/// Query heads for each key/value head, of prefill; decode takes 16 as well.
pub const GROUPS: [usize; 4] = [1, 3, 4, 8];
/// Tokens of a block.
pub const BLOCKS: [usize; 3] = [8, 16, 32];
/// Tokens of a chunk: one, a full tile of a tensor core and its neighbours, several tiles.
pub const CHUNKS: [usize; 5] = [1, 15, 16, 17, 128];
/// Tokens before a chunk.
pub const PREFIXES: [usize; 4] = [0, 1, 511, 2048];
/// Keys of an item of decode: one tile, several, all.
const SPLITS: [usize; 3] = [64, 256, 4096];

/// Types of activations and of stored elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// Both bf16.
    Bf16,
    /// Both f16.
    F16,
    /// Activations in bf16 over a store in E4M3.
    Bf16E4m3,
}

/// All pairs of types that have kernels.
pub const TYPES: [Types; 3] = [Types::Bf16, Types::F16, Types::Bf16E4m3];

/// What is computed.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A chunk after a prefix.
    Prefill(Chunk),
    /// The same by the kernel of sm_90a.
    PrefillSm90(Chunk),
    /// A chunk after a prefix, in ranges of so many keys.
    Split {
        /// Chunk and prefix.
        chunk: Chunk,
        /// Keys of a range.
        split: usize,
    },
    /// One query after each of [`PREFIXES`], in items of so many keys.
    Decode {
        /// Keys of an item.
        split: usize,
    },
}

/// One shape of attention in one pair of types.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Types.
    pub types: Types,
    /// Sizes.
    pub sizes: Sizes,
    /// Work.
    pub work: Work,
}

/// Every combination of types, head dimension, group and block size.
fn stores(groups: &[usize]) -> impl Iterator<Item = (Types, Sizes)> {
    HEAD_DIMS.into_iter().flat_map(move |d| {
        groups.iter().flat_map(move |&group| {
            BLOCKS.into_iter().flat_map(move |block| {
                TYPES.into_iter().map(move |types| {
                    // Two heads: with one, a wrong choice among them could not be told.
                    let kv_heads = 2;
                    let sizes = Sizes {
                        d,
                        group,
                        kv_heads,
                        block,
                    };
                    (types, sizes)
                })
            })
        })
    })
}

/// All 480 shapes of prefill in all types: 1440.
pub fn prefill_shapes() -> Vec<AttentionShape> {
    let chunks = || {
        CHUNKS.into_iter().flat_map(|len| {
            PREFIXES
                .into_iter()
                .map(move |prefix| Chunk { prefix, len })
        })
    };
    stores(&GROUPS)
        .flat_map(|(types, sizes)| {
            chunks().map(move |chunk| AttentionShape {
                types,
                sizes,
                work: Work::Prefill(chunk),
            })
        })
        .collect()
}

/// The same of the kernel of sm_90a, which has stores of 16 bits only: 960.
pub fn prefill_sm90_shapes() -> Vec<AttentionShape> {
    let of_16_bits = prefill_shapes().into_iter().filter_map(|shape| {
        let Work::Prefill(chunk) = shape.work else {
            return None;
        };
        (shape.types != Types::Bf16E4m3).then_some(AttentionShape {
            work: Work::PrefillSm90(chunk),
            ..shape
        })
    });
    of_16_bits.collect()
}

/// Chunks of few tokens after long prefixes at all 24 stores, keys split, in all types: 288.
pub fn split_shapes() -> Vec<AttentionShape> {
    stores(&GROUPS)
        .flat_map(|(types, sizes)| {
            [(1, 511), (16, 511), (1, 2048), (17, 2048)]
                .into_iter()
                .map(move |(len, prefix)| AttentionShape {
                    types,
                    sizes,
                    work: Work::Split {
                        chunk: Chunk { prefix, len },
                        split: 256,
                    },
                })
        })
        .collect()
}

/// All 30 stores of decode with three splits, in all types: 270.
pub fn decode_shapes() -> Vec<AttentionShape> {
    stores(&[1, 3, 4, 8, 16])
        .flat_map(|(types, sizes)| {
            SPLITS.into_iter().map(move |split| AttentionShape {
                types,
                sizes,
                work: Work::Decode { split },
            })
        })
        .collect()
}

impl AttentionShape {
    /// Judges the kernel on the first of `devices`; the others must give its very bits. Devices
    /// that run threads in other orders show what depends on order.
    ///
    /// # Errors
    /// When a device fails; a kernel that is wrong, or that a checking device stops, is a result.
    ///
    /// # Panics
    /// When there is no device.
    pub fn judge<D: Device>(&self, devices: &[D]) -> Result<Judged, KernelError> {
        match self.types {
            Types::Bf16 => self.judge_as::<bf16, bf16, D>(devices),
            Types::F16 => self.judge_as::<f16, f16, D>(devices),
            Types::Bf16E4m3 => self.judge_as::<bf16, E4m3, D>(devices),
        }
    }

    fn judge_as<T: Value, S: Stored<T>, D: Device>(
        &self,
        devices: &[D],
    ) -> Result<Judged, KernelError> {
        let Sizes { d, group, .. } = self.sizes;
        let (kernel, chunks, words) = match self.work {
            Work::Prefill(chunk) | Work::PrefillSm90(chunk) => {
                let Chunk { prefix, len } = chunk;
                let kernel = match self.work {
                    Work::PrefillSm90(_) => PrefillBy::Wgmma.name(),
                    _ => PrefillBy::Mma.name(),
                };
                (kernel, vec![chunk], format!("{len}@{prefix}"))
            }
            Work::Split { chunk, split } => {
                let Chunk { prefix, len } = chunk;
                let words = format!("{len}@{prefix} split {split}");
                ("prefill_split", vec![chunk], words)
            }
            Work::Decode { split } => {
                let chunks = PREFIXES.map(|prefix| Chunk { prefix, len: 1 });
                ("decode", chunks.to_vec(), format!("split {split}"))
            }
        };
        let case = Case::<T, S>::new((d + group + chunks[0].len) as u64, self.sizes, &chunks);
        let outputs: Result<Vec<Vec<T>>, KernelError> = devices
            .iter()
            .map(|device| {
                let mark = device.mark();
                let output = match self.work {
                    Work::Prefill(_) => case.prefill_by(device, PrefillBy::Mma),
                    Work::PrefillSm90(_) => case.prefill_by(device, PrefillBy::Wgmma),
                    Work::Split { split, .. } => case.prefill_split(device, split),
                    Work::Decode { split } => case.decode(device, split),
                };
                device.release(mark)?;
                output
            })
            .collect();
        let (count, outcome) = match outputs {
            Ok(all) => {
                let outcome = match differing(&all) {
                    None => Ok(judge(&f64s(&all[0]), &case.expected())),
                    Some(problem) => Err(problem),
                };
                (all[0].len(), outcome)
            }
            Err(e @ (KernelError::Fault(_) | KernelError::Argument { .. })) => {
                (0, Err(e.to_string()))
            }
            Err(e) => return Err(e),
        };
        Ok(Judged {
            kernel: kernel.to_owned(),
            shape: format!("{}{} {} {words}", T::NAME, S::SUFFIX, in_words(self.sizes)),
            outputs: count,
            outcome,
        })
    }
}

/// The first output that is not the very bits of the first one.
fn differing<T: Value>(outputs: &[Vec<T>]) -> Option<String> {
    let first = bits(&outputs[0]);
    outputs.iter().enumerate().find_map(|(i, other)| {
        let pairs = first.iter().zip(bits(other));
        let wrong = pairs.filter(|(a, b)| **a != *b).count();
        (wrong > 0).then(|| {
            let all = first.len();
            format!(
                "run {} differs from the first in {wrong} of {all} values",
                i + 1
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use half::bf16;

    use super::{decode_shapes, differing, prefill_shapes, prefill_sm90_shapes, split_shapes};

    #[test]
    fn no_shape_is_missing_or_twice() {
        // 2 head dimensions, 3 block sizes and 3 types; 4 groups, 5 chunks, 4 prefixes of prefill;
        // 5 groups and 3 splits of decode.
        for (shapes, count) in [
            (prefill_shapes(), 2 * 3 * 3 * 4 * 5 * 4),
            (prefill_sm90_shapes(), 2 * 3 * 2 * 4 * 5 * 4),
            (split_shapes(), 2 * 3 * 3 * 4 * 4),
            (decode_shapes(), 2 * 3 * 3 * 5 * 3),
        ] {
            let names: BTreeSet<String> = shapes.iter().map(|s| format!("{s:?}")).collect();
            assert_eq!((shapes.len(), names.len()), (count, count));
        }
    }

    #[test]
    fn one_bit_of_one_value_is_seen() {
        let plain = vec![bf16::ONE; 4];
        let mut other = plain.clone();
        assert_eq!(differing(&[plain.clone(), other.clone()]), None);
        other[3] = bf16::from_bits(bf16::ONE.to_bits() ^ 1);
        let problem = differing(&[plain.clone(), plain, other]).unwrap();
        assert!(
            problem.contains("run 3") && problem.contains("1 of 4"),
            "{problem}"
        );
        let zeros = [vec![bf16::ZERO], vec![bf16::NEG_ZERO]];
        assert!(differing(&zeros).is_some(), "equal in value, not in bits");
    }
}
