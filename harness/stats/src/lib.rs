//! The statistics that the verdicts rest on, with nothing else in the crate.
//!
//! A benchmark is only as good as its claim "B is faster than A". That claim fails in known ways:
//! samples inside one run taken as independent, a percentile rule that is never named, a wall-clock
//! seeded bootstrap that nobody can repeat, and "no significant difference" read as "the same".
//! So this crate is pure: no clock, no input or output, no global random state and no dependencies.
//! Randomness enters only through [`RandomSource`], and every function says what it does when there
//! is too little data to answer. It returns an error then, never a zero.
//!
//! The unit of analysis is always the *block* (one interleaved pair of runs), never the token.
//!
//! ```
//! use pb_stats::{nearest_rank, paired_ratio};
//!
//! let sorted: Vec<u64> = (1..=100).collect();
//! assert_eq!(nearest_rank(&sorted, 0.99), Some(99));
//!
//! // Per-block p99 of arm A and arm B: B takes half the time of A in every block.
//! let ratio = paired_ratio(&[80.0, 90.0, 84.0], &[40.0, 45.0, 42.0], 0.95)?;
//! assert!((ratio.point - 0.5).abs() < 1e-12);
//! # Ok::<(), pb_stats::StatError>(())
//! ```

mod bootstrap;
mod dist;
mod equivalence;
mod error;
mod moments;
mod multiple;
mod paired;
mod power;
mod quantile;
mod rank;
mod rng;
mod shape;
mod special;
mod stall;

pub use bootstrap::{bootstrap_bca, bootstrap_t_mean};
pub use dist::{
    normal_cdf, normal_quantile, normal_upper_tail, t_cdf, t_quantile, t_two_sided_p, t_upper_tail,
};
pub use equivalence::{Tost, tost, tost_units};
pub use error::StatError;
pub use moments::Moments;
pub use multiple::{holm, holm_adjust};
pub use paired::{Estimate, TTest, mean_interval, paired_difference, paired_ratio, paired_t_test};
pub use power::{minimum_detectable_effect, paired_t_power};
pub use quantile::{QuantileRule, linear, nearest_rank, quantile, sort_finite, upper_index};
pub use rank::{RankInterval, SIGN_FLIP_MAX_BLOCKS, hodges_lehmann, sign_flip_p, walsh_averages};
pub use rng::{RandomSource, SplitMix64, uniform_index};
pub use shape::{CdfPoint, LogBins, LogHistogram, ecdf, ecdf_thinned};
pub use special::{erfc, incomplete_beta, ln_gamma};
pub use stall::{StallRule, StallSummary, stalls};

#[cfg(test)]
mod testing;
