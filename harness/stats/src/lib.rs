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

mod anytime;
mod auc;
mod bootstrap;
mod change;
mod dist;
mod equivalence;
mod error;
mod gamma;
mod moments;
mod multiple;
mod noise;
mod outcome;
mod paired;
mod percentile;
mod pooled;
mod power;
mod proportion;
mod quantile;
mod rank;
mod rng;
mod series;
mod shape;
pub mod simulate;
mod special;
mod spending;
mod stall;
mod steady;
mod stopping;
mod trend;
mod two_sample;
mod warmup;

pub use anytime::{anytime_interval, e_value, mixture_variance};
pub use auc::{Auc, auc, auc_sample_size, auc_standard_error};
pub use bootstrap::{bootstrap_bca, bootstrap_t_mean};
pub use change::{ChangePoint, change_point};
pub use dist::{
    normal_cdf, normal_quantile, normal_upper_tail, t_cdf, t_quantile, t_two_sided_p, t_upper_tail,
};
pub use equivalence::{Tost, tost, tost_paired, tost_paired_ratio, tost_units};
pub use error::StatError;
pub use gamma::{chi2_cdf, chi2_quantile, chi2_upper_tail, lower_gamma, upper_gamma};
pub use moments::Moments;
pub use multiple::{holm, holm_adjust};
pub use noise::{NoiseFloor, aa_log_ratios, noise_floor};
pub use outcome::{Clearance, Evidence, Good, Margin, Outcome, judge};
pub use paired::{Estimate, TTest, mean_interval, paired_difference, paired_ratio, paired_t_test};
pub use percentile::{
    Contrast, Method, Resampling, distinct_resamples, paired_percentile, pooled_percentile,
};
pub use pooled::PooledBlocks;
pub use power::{
    blocks_for_equivalence, blocks_needed, minimum_detectable_effect, paired_t_power, tost_power,
};
pub use proportion::{McNemar, Proportion, mcnemar, proportion};
pub use quantile::{QuantileRule, linear, nearest_rank, quantile, sort_finite, upper_index};
pub use rank::{RankInterval, SIGN_FLIP_MAX_BLOCKS, hodges_lehmann, sign_flip_p, walsh_averages};
pub use rng::{RandomSource, SplitMix64, uniform_index};
pub use series::{LjungBox, autocorrelation, effective_sample_size, ljung_box};
pub use shape::{CdfPoint, LogBins, LogHistogram, ecdf, ecdf_thinned};
pub use special::{erfc, incomplete_beta, ln_gamma};
pub use spending::{Spending, group_sequential_bounds};
pub use stall::{StallRule, StallSummary, stalls, stalls_of_sorted};
pub use steady::{STEADY_LEAST, Steadiness, steadiness};
pub use stopping::{Bound, CompiledRule, Decision, Reason, Rule};
pub use trend::{Drift, MannKendall, TheilSen, batch_medians, drift, mann_kendall, theil_sen};
pub use two_sample::hodges_lehmann_shift;
pub use warmup::{MSER_BATCH, Transient, WarmUp, mser5, transient};

#[cfg(test)]
mod testing;
