//! Shares of ceilings, by hand.

use super::{Ceilings, Timed};

fn timed(traffic: [u64; 2]) -> Timed {
    Timed {
        kernel: "gemm",
        shape: String::new(),
        median_ns: 1_000,
        range_ns: [1_000, 1_000],
        traffic,
        flops: 500,
    }
}

#[test]
fn the_ceiling_is_that_of_the_kernels_own_traffic() {
    // In 1 us reading moves 2000 B and a copy 1000 B.
    let ceilings = Ceilings {
        read_bytes_per_s: 2e9,
        copy_bytes_per_s: 1e9,
        gemm_flops_per_s: Some(1e9),
    };
    let of_memory = |traffic| timed(traffic).shares(&ceilings).of_memory;
    for (traffic, want) in [
        ([2_000, 0], 1.0), // read at the rate of reading, which is twice that of a copy
        ([500, 500], 1.0), // copied at the rate of a copy
        // 500 B copied (half a microsecond) and 500 B read (a quarter of one).
        ([750, 250], 0.75),
        ([0, 1_000], 1.0),
        ([100, 500], 0.6),
    ] {
        assert!((of_memory(traffic) - want).abs() < 1e-12, "{traffic:?}");
    }
    let shares = timed([2_000, 0]).shares(&ceilings);
    assert!((shares.of_copy - 2.0).abs() < 1e-12 && (shares.of_read - 1.0).abs() < 1e-12);
    assert_eq!(shares.of_product, Some(0.5));
}
