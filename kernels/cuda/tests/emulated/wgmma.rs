//! Products of a warpgroup: how descriptors are read, against addresses worked out by hand; whole
//! products, against plain multiplication; and what the machine refuses.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use pb_kernels_cuda::{Device, DeviceExt, Emulator, FaultKind, KernelError, Launch, Library};

use crate::common::{Rng, Value, variant};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProductParams {
    image: u64,
    d: u64,
    a: u64,
    b: u64,
    words: u32,
    first: u32,
}

/// Bytes of the image of shared memory; the right operand of some tests has its second half.
const IMAGE_BYTES: usize = 32 << 10;
const HALF: usize = IMAGE_BYTES / 2;

/// A descriptor, field by field as the PTX ISA has it ("Matrix Descriptor Format" of wgmma).
/// Shared memory begins at address 1024. Modes: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes.
fn descriptor(offset: usize, leading: usize, stride: usize, mode: u64) -> u64 {
    let encoded = |x: usize| (x as u64 & 0x3_ffff) >> 4;
    encoded(1024 + offset) | encoded(leading) << 16 | encoded(stride) << 32 | mode << 62
}

/// The sums `[64][columns]` of a product of what lies in `image`, by a probe kernel, added to
/// `first` unless that is 0.
fn product(
    library: &Library,
    kernel: &str,
    columns: usize,
    image: &[u16],
    ([a, b], first): ([u64; 2], u32),
) -> Vec<f32> {
    let device = Emulator::new(library);
    let d = device.empty::<f32>("d", 64 * columns).unwrap();
    let words: &[u32] = bytemuck::cast_slice(image);
    let params = ProductParams {
        image: device.input("image", words).unwrap().address(),
        d: d.address(),
        a,
        b,
        words: words.len() as u32,
        first,
    };
    let launch = Launch {
        kernel,
        grid: [1, 1, 1],
        block: [128, 1, 1],
        shared_bytes: IMAGE_BYTES as u32,
    };
    device.launch(launch, bytemuck::bytes_of(&params)).unwrap();
    device.download(&d).unwrap()
}

/// One layout of an operand, and where some of its elements lie: row of the operand, or term where
/// columns are contiguous; then term or column; then bytes from the start of the image.
struct Layout {
    start: usize,
    leading: usize,
    stride: usize,
    mode: u64,
    places: &'static [[usize; 3]],
}

/// Right operands, 16 terms of up to 128 contiguous columns. The layouts in units of elements
/// (T = 8) are, with S the width of the swizzle in chunks of T:
/// ((T,S,m),(8,k)) : ((1,T,LBO),(S T,SBO)), without swizzle ((T,1,m),(8,k)) : ((1,T,SBO),(T,LBO)),
/// and the swizzle adds address bits 7.. to bits 4.. without carry.
const RIGHT: [Layout; 4] = [
    Layout {
        start: 0,
        leading: 4096,
        stride: 1024,
        mode: 1,
        places: &[
            [0, 0, 0],
            [1, 0, 128 + 16],                       // chunk 0 ^ 1
            [1, 9, 128 + 2],                        // chunk 1 ^ 1
            [7, 63, 896 + 14],                      // chunk 7 ^ 7
            [8, 0, 1024],                           // the next 8 terms
            [15, 5, 1024 + 896 + 112 + 10],         // chunk 0 ^ 7
            [0, 64, 4096],                          // the next 64 columns
            [3, 100, 4096 + 384 + 112 + 8],         // chunk 4 ^ 3
            [12, 127, 4096 + 1024 + 512 + 48 + 14], // chunk 7 ^ 4
        ],
    },
    Layout {
        start: 0,
        leading: 512,
        stride: 2048,
        mode: 2,
        places: &[
            [1, 0, 64],
            [2, 0, 128 + 16],            // bit 7
            [5, 20, 320 + 8],            // bit 8: chunk 2 ^ 2
            [6, 33, 512 + 384 + 48 + 2], // bits 7 and 8: chunk 0 ^ 3
            [9, 40, 2048 + 512 + 64 + 16],
        ],
    },
    Layout {
        start: 0,
        leading: 256,
        stride: 4096,
        mode: 3,
        places: &[
            [3, 12, 96 + 16 + 8],
            [4, 0, 128 + 16], // bit 7
            [13, 17, 4096 + 256 + 160 + 16 + 2],
        ],
    },
    Layout {
        start: 0,
        leading: 2048,
        stride: 128,
        mode: 0,
        places: &[[3, 2, 48 + 4], [8, 0, 2048], [10, 21, 2048 + 256 + 32 + 10]],
    },
];

/// Left operands, 64 rows of 16 contiguous terms: ((8,m),(T,2)) : ((S T,SBO),(1,T)), without
/// swizzle ((8,m),(T,2)) : ((T,SBO),(1,LBO)).
const LEFT: [Layout; 5] = [
    Layout {
        start: 0,
        leading: 16,
        stride: 1024,
        mode: 1,
        places: &[
            [0, 9, 16 + 2],
            [1, 0, 128 + 16],
            [10, 8, 1024 + 256 + 48],       // chunk 1 ^ 2
            [63, 15, 7168 + 896 + 96 + 14], // chunk 1 ^ 7
        ],
    },
    Layout {
        // The second 16 terms of rows of 64: within the pattern.
        start: 32,
        leading: 16,
        stride: 1024,
        mode: 1,
        places: &[
            [0, 0, 32],
            [1, 0, 128 + 48],      // chunk 2 ^ 1
            [5, 12, 640 + 96 + 8], // chunk 3 ^ 5
        ],
    },
    Layout {
        start: 0,
        leading: 16,
        stride: 512,
        mode: 2,
        places: &[
            [2, 0, 128 + 16],
            [7, 15, 448 + 32 + 14], // chunk 1 ^ 3
            [9, 1, 512 + 64 + 2],
        ],
    },
    Layout {
        start: 0,
        leading: 16,
        stride: 256,
        mode: 3,
        places: &[[4, 8, 128], [63, 0, 1792 + 224 + 16]],
    },
    Layout {
        start: 0,
        leading: 128,
        stride: 256,
        mode: 0,
        places: &[[3, 2, 48 + 4], [9, 12, 256 + 128 + 16 + 8]],
    },
];

/// Where a 16 by 64 right operand has an element, 128-byte swizzle: as the first of [`RIGHT`].
fn right_at(k: usize, n: usize) -> usize {
    k / 8 * 1024 + k % 8 * 128 + ((n / 8) ^ (k % 8)) * 16 + n % 8 * 2
}

/// Where a left operand has an element, 128-byte swizzle: as the first of [`LEFT`].
fn left_at(m: usize, k: usize) -> usize {
    m / 8 * 1024 + m % 8 * 128 + ((k / 8) ^ (m % 8)) * 16 + k % 8 * 2
}

/// The only sum that is not zero must be a 1 at `[row][column]`.
fn only_one_at(d: &[f32], columns: usize, [row, column]: [usize; 2], what: &str) {
    let found: Vec<_> = (0..d.len())
        .filter(|i| d[*i] != 0.0)
        .map(|i| [i / columns, i % columns])
        .collect();
    assert_eq!(found, [[row, column]], "{what}");
    assert_eq!(d[row * columns + column], 1.0, "{what}");
}

#[test]
fn a_descriptor_says_where_each_element_lies() {
    let Some(library) = variant("probe_wgmma.cu", &[]) else {
        return;
    };
    let one = bf16::ONE.to_bits();
    for layout in RIGHT {
        let b = descriptor(layout.start, layout.leading, layout.stride, layout.mode);
        for [k, n, at] in layout.places {
            let mut image = vec![0u16; IMAGE_BYTES / 2];
            image[at / 2] = one;
            let d = product(
                &library,
                "probe_wgmma_registers_bf16_128",
                128,
                &image,
                ([0, b], 0),
            );
            let what = format!("right, mode {}, term {k}, column {n}", layout.mode);
            only_one_at(&d, 128, [*k, *n], &what);
        }
    }
    let unit = descriptor(HALF, 16, 1024, 1);
    for layout in LEFT {
        let a = descriptor(layout.start, layout.leading, layout.stride, layout.mode);
        for [m, k, at] in layout.places {
            let mut image = vec![0u16; IMAGE_BYTES / 2];
            for i in 0..16 {
                image[(HALF + right_at(i, i)) / 2] = one;
            }
            image[at / 2] = one;
            let d = product(
                &library,
                "probe_wgmma_shared_bf16_64",
                64,
                &image,
                ([a, unit], 0),
            );
            let what = format!("left, mode {}, row {m}, term {k}", layout.mode);
            only_one_at(&d, 64, [*m, *k], &what);
        }
    }
}

/// A product of small integers, whose sums are exact: a misplaced element cannot hide.
fn product_is_the_matrix_product<T: Value>(library: &Library, kernel: &str, columns: usize) {
    let mut rng = Rng(columns as u64);
    let mut integers =
        |n: usize| -> Vec<f32> { (0..n).map(|_| rng.below(33) as f32 - 16.0).collect() };
    let (a, b) = (integers(64 * 16), integers(16 * columns));
    let mut image = vec![0u16; IMAGE_BYTES / 2];
    let mut put = |at: usize, x: f32| {
        image[at / 2] = bytemuck::cast(T::of(x));
    };
    for (i, x) in a.iter().enumerate() {
        put(left_at(i / 16, i % 16), *x);
    }
    for (i, x) in b.iter().enumerate() {
        let (k, n) = (i / columns, i % columns);
        put(HALF + n / 64 * 2048 + right_at(k, n % 64), *x);
    }
    let descriptors = [descriptor(0, 16, 1024, 1), descriptor(HALF, 2048, 1024, 1)];
    for first in [0, 3] {
        let d = product(library, kernel, columns, &image, (descriptors, first));
        for (i, got) in d.iter().enumerate() {
            let (m, n) = (i / columns, i % columns);
            let terms = (0..16).map(|k| a[m * 16 + k] * b[k * columns + n]);
            let want = terms.sum::<f32>() + first as f32;
            assert_eq!(*got, want, "{kernel}: row {m}, column {n}");
        }
    }
}

#[test]
fn wgmma_makes_a_matrix_product() {
    let Some(library) = variant("probe_wgmma.cu", &[]) else {
        return;
    };
    product_is_the_matrix_product::<bf16>(&library, "probe_wgmma_shared_bf16_64", 64);
    product_is_the_matrix_product::<f16>(&library, "probe_wgmma_shared_f16_128", 128);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct FaultParams {
    out: u64,
    fault: u32,
    zero: u32,
}

fn probe(library: &Library, fault: u32, seed: u64) -> Result<Vec<f32>, KernelError> {
    let device = Emulator::new(library);
    device.permute(seed);
    let out = device.empty::<f32>("out", 128)?;
    let params = FaultParams {
        out: out.address(),
        fault,
        zero: 0,
    };
    let launch = Launch {
        kernel: "probe_wgmma_fault",
        grid: [1, 1, 1],
        block: [128, 1, 1],
        shared_bytes: 2048,
    };
    device.launch(launch, bytemuck::bytes_of(&params))?;
    device.download(&out)
}

#[test]
fn every_misuse_of_wgmma_is_found_in_every_order() {
    use FaultKind::*;
    let Some(library) = variant("probe_wgmma.cu", &[]) else {
        return;
    };
    for seed in 0..6 {
        assert_eq!(
            probe(&library, 0, seed).unwrap(),
            [32.0; 128],
            "order {seed}"
        );
    }
    for (number, kind) in [
        (1, MissingFence),
        (2, MissingFence),
        (3, Race),
        (4, PendingProduct),
        (5, PendingProduct),
        (6, Race),
        (7, PendingProduct),
        (8, Divergence),
        (9, MissingFence),
        (10, PendingProduct),
        (11, Misaligned),
        (12, OutOfBounds),
        (13, Divergence),
        (14, Race),
        (15, PendingProduct),
        (16, Race),
    ] {
        for seed in 0..6 {
            let Err(KernelError::Fault(fault)) = probe(&library, number, seed) else {
                panic!("program {number}, order {seed}: nothing found");
            };
            assert_eq!(fault.kind, kind, "program {number}, order {seed}: {fault}");
        }
    }
}
