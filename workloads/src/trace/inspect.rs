//! What a trace holds, in one pass and in memory that does not grow with it: lengths are counted
//! by value, gaps to three digits. Only the names of blocks are kept.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::trace::TraceRow;
use crate::trace::error::TraceError;
use crate::trace::file::TraceFile;
use crate::trace::reuse::{PoolCounter, PoolStats, ReuseCounter};
use crate::trace::shape::fits;

/// Counts the tokens of a text.
pub type TokenCounter<'a> = &'a mut dyn FnMut(&str) -> usize;

/// What to count beside the file itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct InspectOptions {
    /// Drop requests whose prompt and output do not fit; they are counted, and the reuse is that
    /// of the rest.
    pub max_model_len: Option<usize>,
    /// Block size of an engine, in tokens, to count what it would find.
    pub engine_block: Option<usize>,
    /// Blocks of that size in its pool; `None`: unlimited.
    pub pool_blocks: Option<usize>,
}

/// Nearest-rank percentiles of token counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LengthStats {
    /// Median.
    pub p50: u64,
    /// Mean.
    pub mean: f64,
    /// 95th percentile.
    pub p95: u64,
    /// Largest.
    pub max: u64,
}

/// Named blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockStats {
    /// All, partial ones included.
    pub total: u64,
    /// Different ones.
    pub unique: u64,
    /// Leading blocks that an earlier row had.
    pub hit: u64,
}

/// Arrival times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ArrivalStats {
    /// Different arrival times.
    pub distinct: u64,
    /// Sample coefficient of variation of the gaps; about 1 for Poisson arrivals, null of fewer
    /// than two gaps.
    pub cv: Option<f64>,
    /// Width of the recorder's bins in seconds; null when times are not binned.
    pub bin_s: Option<f64>,
    /// Median gap in seconds, to three digits.
    #[serde(skip)]
    pub gap_p50_s: Option<f64>,
    /// Mean gap in seconds.
    #[serde(skip)]
    pub gap_mean_s: Option<f64>,
    /// 95th percentile of the gaps in seconds, to three digits.
    #[serde(skip)]
    pub gap_p95_s: Option<f64>,
}

/// What an engine's pool would find.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PoolReuse {
    /// Tokens of a block.
    pub block_size: usize,
    /// Blocks of the pool; null: unlimited.
    pub pool_blocks: Option<usize>,
    /// Full blocks of all prompts.
    pub blocks: u64,
    /// Blocks found.
    pub hit_blocks: u64,
    /// Tokens found.
    pub hit_tokens: u64,
    /// Tokens found over all prompt tokens; null without any.
    pub hit_rate: Option<f64>,
}

/// What a trace holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Requests that can be replayed.
    pub rows: u64,
    /// From the first to the last arrival, in seconds; null without arrivals.
    pub span_s: Option<f64>,
    /// Unit of the time column: `s`, `ms`, `us`, `ns`, or `datetime`; null without arrivals.
    pub unit: Option<String>,
    /// Tokens that a name stands for; null without names.
    pub block_size: Option<usize>,
    /// Prompt lengths; null where the file has text and no tokenizer was given.
    pub input_tokens: Option<LengthStats>,
    /// Output lengths; null where the file does not say.
    pub output_tokens: Option<LengthStats>,
    /// Named blocks.
    pub blocks: BlockStats,
    /// Prompt tokens in hit blocks, with an unlimited cache of the trace's own blocks.
    pub hit_tokens: u64,
    /// Arrivals.
    pub arrivals: ArrivalStats,
    /// Requests that cannot be replayed, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// What an engine would find, when its block size was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolReuse>,
}

/// Reads a whole trace and counts. `count` gives the lengths of texts.
///
/// # Errors
/// The file cannot be read to its end.
pub fn inspect(
    file: &TraceFile,
    options: &InspectOptions,
    mut count: Option<TokenCounter<'_>>,
) -> Result<Inspection, TraceError> {
    let mut totals = Totals::new(options, file.format.has_local_times());
    let mut rows = file.rows()?;
    let mut too_long = 0;
    for row in &mut rows {
        let mut row = row?;
        if let Some(count) = &mut count {
            row.count_tokens(count);
        }
        if options.max_model_len.is_some_and(|most| !fits(&row, most)) {
            too_long += 1;
            continue;
        }
        totals.add(&row);
    }
    let counts = rows.dropped().iter();
    let mut dropped: BTreeMap<String, u64> = counts
        .map(|(reason, &n)| ((*reason).to_owned(), n))
        .collect();
    if too_long > 0 {
        dropped.insert("over_max_model_len".into(), too_long);
    }
    Ok(totals.finish(file, dropped))
}

struct Totals {
    rows: u64,
    input: Counts,
    output: Counts,
    arrivals: Arrivals,
    reuse: ReuseCounter,
    pool: Option<(PoolCounter, usize, Option<usize>)>,
}

impl Totals {
    fn new(options: &InspectOptions, out_of_order: bool) -> Self {
        let pool = options.engine_block.map(|block| {
            let counter = PoolCounter::new(block, options.pool_blocks);
            (counter, block, options.pool_blocks)
        });
        Totals {
            rows: 0,
            input: Counts::default(),
            output: Counts::default(),
            arrivals: Arrivals::new(out_of_order),
            // Blocks of an engine are the pool's to count.
            reuse: ReuseCounter::new(1, None),
            pool,
        }
    }

    fn add(&mut self, row: &TraceRow) {
        self.rows += 1;
        if row.input_tokens > 0 {
            self.input.add(row.input_tokens as u64);
        }
        if !row.output_unknown {
            self.output.add(row.output_tokens as u64);
        }
        if !row.untimed {
            self.arrivals.add(row.arrival_ns.0);
        }
        self.reuse.add(row);
        if let Some((pool, ..)) = &mut self.pool {
            pool.add(row);
        }
    }

    fn finish(self, file: &TraceFile, dropped: BTreeMap<String, u64>) -> Inspection {
        let reuse = self.reuse.stats();
        let unit = match (file.unit, file.has_arrivals) {
            (Some(unit), _) => Some(unit.to_string()),
            (None, true) => Some("datetime".to_owned()),
            (None, false) => None,
        };
        let (span_ns, arrivals) = self.arrivals.finish();
        Inspection {
            rows: self.rows,
            span_s: span_ns.map(|ns| ns as f64 / 1e9),
            unit,
            block_size: file.blocks.map(|rule| rule.tokens),
            input_tokens: self.input.stats(),
            output_tokens: self.output.stats(),
            blocks: BlockStats {
                total: reuse.blocks,
                unique: reuse.unique_blocks,
                hit: reuse.hit_blocks,
            },
            hit_tokens: reuse.hit_tokens,
            arrivals,
            dropped,
            pool: self
                .pool
                .map(|(counter, block, pool)| pool_reuse(counter.stats(), block, pool)),
        }
    }
}

fn pool_reuse(stats: PoolStats, block_size: usize, pool_blocks: Option<usize>) -> PoolReuse {
    PoolReuse {
        block_size,
        pool_blocks,
        blocks: stats.blocks,
        hit_blocks: stats.hit_blocks,
        hit_tokens: stats.hit_tokens,
        hit_rate: (stats.tokens > 0).then(|| stats.hit_tokens as f64 / stats.tokens as f64),
    }
}

/// How often each value was seen.
#[derive(Debug, Default)]
struct Counts {
    of: BTreeMap<u64, u64>,
    total: u64,
    sum: u128,
}

impl Counts {
    fn add(&mut self, value: u64) {
        *self.of.entry(value).or_default() += 1;
        self.total += 1;
        self.sum += u128::from(value);
    }

    /// The value of nearest rank; `None` of nothing.
    fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let mut found = self.of.iter().skip_while(|&(_, n)| {
            seen += n;
            seen < rank
        });
        found.next().map(|(&value, _)| value)
    }

    fn mean(&self) -> Option<f64> {
        (self.total > 0).then(|| self.sum as f64 / self.total as f64)
    }

    fn stats(&self) -> Option<LengthStats> {
        Some(LengthStats {
            p50: self.percentile(50)?,
            mean: self.mean()?,
            p95: self.percentile(95)?,
            max: *self.of.last_key_value()?.0,
        })
    }
}

/// Gaps between arrivals. Only times that may come out of order, those of conversations, are
/// kept.
#[derive(Debug, Default)]
struct Arrivals {
    ordered: Gaps,
    kept: Option<Vec<u64>>,
}

impl Arrivals {
    fn new(out_of_order: bool) -> Self {
        Arrivals {
            ordered: Gaps::default(),
            kept: out_of_order.then(Vec::new),
        }
    }

    fn add(&mut self, at: u64) {
        match &mut self.kept {
            Some(all) => all.push(at),
            None => self.ordered.add(at),
        }
    }

    fn finish(self) -> (Option<u64>, ArrivalStats) {
        let Some(mut all) = self.kept else {
            return self.ordered.finish();
        };
        all.sort_unstable();
        let mut gaps = Gaps::default();
        all.into_iter().for_each(|at| gaps.add(at));
        gaps.finish()
    }
}

/// Gaps between ascending arrivals.
#[derive(Debug, Default)]
struct Gaps {
    first: Option<u64>,
    last: Option<u64>,
    count: u64,
    distinct: u64,
    sum: f64,
    squares: f64,
    /// All gaps, to three digits.
    rounded: Counts,
    /// Those that are not zero.
    between_bins: Counts,
    /// Largest time that divides every gap.
    divisor: u64,
}

/// Times that are whole multiples of this or more are binned.
const COARSE_NS: u64 = 1_000_000_000;

impl Gaps {
    fn add(&mut self, at: u64) {
        let Some(last) = self.last.replace(at) else {
            self.first = Some(at);
            self.distinct = 1;
            return;
        };
        let gap = at - last;
        self.count += 1;
        self.sum += gap as f64;
        self.squares += gap as f64 * gap as f64;
        self.rounded.add(three_digits(gap));
        self.divisor = gcd(self.divisor, gap);
        if gap > 0 {
            self.distinct += 1;
            self.between_bins.add(three_digits(gap));
        }
    }

    fn finish(self) -> (Option<u64>, ArrivalStats) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mean = (self.count > 0).then(|| self.sum / self.count as f64);
        let cv = mean
            .filter(|&mean| mean > 0.0 && self.count > 1)
            .map(|mean| {
                let deviations = self.squares - mean * self.sum;
                libm::sqrt(deviations.max(0.0) / (self.count - 1) as f64) / mean
            });
        // Most requests share their time with others: the steps between times are the bins.
        let shared = self.count + 1 >= 2 * self.distinct && self.distinct > 1;
        let bin = match shared {
            true => self.between_bins.percentile(50),
            false => Some(self.divisor).filter(|&step| step >= COARSE_NS),
        };
        let stats = ArrivalStats {
            distinct: self.distinct,
            cv,
            bin_s: bin.map(seconds),
            gap_p50_s: self.rounded.percentile(50).map(seconds),
            gap_mean_s: mean.map(|ns| ns / 1e9),
            gap_p95_s: self.rounded.percentile(95).map(seconds),
        };
        let span = self.first.zip(self.last).map(|(first, last)| last - first);
        (span, stats)
    }
}

/// The value with all but its first three decimal digits rounded away.
fn three_digits(value: u64) -> u64 {
    let digits = value.checked_ilog10().unwrap_or(0);
    let step = 10u64.pow(digits.saturating_sub(2));
    (value / step + u64::from(value % step * 2 >= step && step > 1)) * step
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_nearest_rank() {
        let mut counts = Counts::default();
        (1..=100).for_each(|n| counts.add(n));
        let found = [1, 50, 95, 99, 100].map(|p| counts.percentile(p));
        assert_eq!(found, [1, 50, 95, 99, 100].map(Some));
        assert_eq!(Counts::default().percentile(50), None);
        assert_eq!(Counts::default().stats(), None);
    }

    #[test]
    fn gaps_are_rounded_to_three_digits() {
        let cases = [
            (0, 0),
            (7, 7),
            (999, 999),
            (1_004, 1_000),
            (1_005, 1_010),
            (2_999, 3_000),
        ];
        for (value, want) in cases {
            assert_eq!(three_digits(value), want);
        }
        assert_eq!(three_digits(u64::MAX), 18_400_000_000_000_000_000);
    }

    #[test]
    fn bins_are_found_and_not_invented() {
        let with = |times: &[u64], out_of_order| {
            let mut arrivals = Arrivals::new(out_of_order);
            times.iter().for_each(|&ms| arrivals.add(ms * 1_000_000));
            arrivals.finish()
        };
        let of = |times: &[u64]| with(times, false);
        let (span, binned) = of(&[0, 0, 0, 3_000, 3_000, 5_999, 5_999, 5_999, 9_000]);
        assert_eq!((span, binned.distinct), (Some(9_000_000_000), 4));
        assert_eq!(binned.bin_s, Some(3.0));
        assert_eq!(of(&[0, 27, 110, 254]).1.bin_s, None);
        assert_eq!(of(&[5_000, 6_000, 9_000, 9_000]).1.bin_s, Some(1.0));
        // Gaps 1, 1, 1, 5: mean 2, sample variance 12 / 3.
        let cv = of(&[0, 1, 2, 3, 8]).1.cv.unwrap();
        assert!((cv - 1.0).abs() < 1e-12);
        let sorted = with(&[0, 10, 5, 20, 3], true);
        assert_eq!(sorted, of(&[0, 3, 5, 10, 20]));
        assert_eq!(of(&[]), (None, ArrivalStats::default()));
        assert_eq!(of(&[4]).1.cv, None);
    }
}
