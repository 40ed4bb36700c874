//! Settings of a suite, an arm under a condition each, and their figures over blocks.

use pb_stats::mean_interval;

use super::grid::{Attributes, ordered, parts};
use super::measure::Measure;
use super::read::{Cell, SuiteDir};
use crate::format::ABSENT;

/// Largest over smallest block from which on a latency is of two kinds of blocks, so that its
/// median says which kind was more frequent and not how fast the setting is.
const JUMP: f64 = 10.0;

/// Confidence of the intervals of single settings.
pub(super) const CONFIDENCE: f64 = 0.95;

/// An arm under a condition, with its cells in the order of blocks.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub(super) arm: &'a str,
    pub(super) condition: &'a str,
    pub(super) attributes: Attributes,
    pub(super) cells: Vec<&'a Cell>,
    least_success: f64,
}

impl Setting<'_> {
    /// A figure over the blocks whose cell may be used.
    pub(super) fn over(&self, measure: &Measure) -> Over {
        let values = self.cells.iter().filter_map(|cell| {
            let value = self.value(cell, measure)?;
            Some((cell.note.block, value))
        });
        Over {
            values: values.collect(),
            cells: self.cells.len(),
        }
    }

    /// The figure of a cell, when it may be used: the cell is valid, and as many of its requests
    /// ended well as the suite asks for, because what fails has no latency.
    fn value(&self, cell: &Cell, measure: &Measure) -> Option<f64> {
        let failing = cell.note.success_rate.unwrap_or(0.0) < self.least_success;
        if !cell.is_valid() || (measure.is_of_good_ends() && failing) {
            return None;
        }
        measure.value(cell.document.as_ref()?)
    }
}

/// Values of one figure, a block each, of the cells that may be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Over {
    /// Block and value.
    pub(super) values: Vec<(usize, f64)>,
    /// Cells that there are, usable or not.
    pub(super) cells: usize,
}

impl Over {
    /// The value of a block.
    pub(super) fn in_block(&self, block: usize) -> Option<f64> {
        let found = self.values.iter().find(|(own, _)| *own == block);
        found.map(|(_, value)| *value)
    }

    /// Median; the mean of the two in the middle of an even number.
    pub(super) fn median(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.values.iter().map(|(_, value)| *value).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        match n {
            0 => None,
            n if n % 2 == 1 => Some(sorted[n / 2]),
            n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
        }
    }

    /// Smallest and largest.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        let values = || self.values.iter().map(|(_, value)| *value);
        let low = values().min_by(f64::total_cmp)?;
        Some((low, values().max_by(f64::total_cmp)?))
    }

    /// Whether it differs so much from block to block that nothing may be chosen by its median.
    pub(super) fn jumps(&self) -> bool {
        let range = self.range();
        range.is_some_and(|(low, high)| low > 0.0 && high > JUMP * low)
    }

    /// Geometric mean with its t interval over blocks; absent below three blocks or with a value
    /// that is not above 0.
    pub(super) fn geometric(&self) -> Option<(f64, f64, f64)> {
        let positive = self.values.iter().all(|(_, value)| *value > 0.0);
        if self.values.len() < 3 || !positive {
            return None;
        }
        let logs: Vec<f64> = self.values.iter().map(|(_, value)| value.ln()).collect();
        let mean = mean_interval(&logs, CONFIDENCE).ok()?;
        Some((mean.point.exp(), mean.low.exp(), mean.high.exp()))
    }

    /// Median and range, with how many cells they are of when some could not be used.
    pub(super) fn text(&self, measure: &Measure) -> String {
        let (Some(median), Some((low, high))) = (self.median(), self.range()) else {
            return match self.cells {
                0 => ABSENT.to_owned(),
                cells => format!("none of {cells}"),
            };
        };
        let [median, low, high] = [median, low, high].map(|value| measure.plain(value));
        let mut text = match self.values.len() {
            1 => median,
            _ => format!("{median} [{low},\u{a0}{high}]"),
        };
        if self.values.len() < self.cells {
            text.push_str(&format!(
                " ({}\u{a0}of\u{a0}{})",
                self.values.len(),
                self.cells
            ));
        }
        text
    }
}

/// All settings that have cells, by condition and arm, each in the order of its levels; those that
/// are no numbers in the order of the plan.
pub(super) fn settings(suite: &SuiteDir) -> Vec<Setting<'_>> {
    let named = |what: &str, of: &dyn Fn(&Cell) -> String, planned: &[String]| {
        let mut names: Vec<String> = suite.cells.iter().map(of).collect();
        names.sort();
        names.dedup();
        // Names that the plan does not have come last.
        let rank = |name: &String| planned.iter().position(|p| p == name);
        names.sort_by_key(|name| rank(name).unwrap_or(usize::MAX));
        let things: Vec<Attributes> = names.iter().map(|name| parts(what, name)).collect();
        let order = ordered(&things).into_iter();
        order.map(|i| names[i].clone()).collect::<Vec<String>>()
    };
    let arms = named("arm", &|cell: &Cell| cell.note.arm.clone(), &suite.arms);
    let condition = |cell: &Cell| cell.note.condition.clone();
    let conditions = named("condition", &condition, &suite.conditions);
    let mut all = Vec::new();
    for condition in &conditions {
        for arm in &arms {
            let own = |cell: &&Cell| cell.note.arm == *arm && cell.note.condition == *condition;
            let cells: Vec<&Cell> = suite.cells.iter().filter(own).collect();
            let Some(first) = cells.first() else { continue };
            let (arm, condition) = (&first.note.arm, &first.note.condition);
            let mut attributes = parts("arm", arm);
            attributes.extend(parts("condition", condition));
            all.push(Setting {
                arm,
                condition,
                attributes,
                cells,
                least_success: suite.least_success,
            });
        }
    }
    all
}

/// Fewest and most samples that a cell has of a latency, over the cells that may be used.
pub(super) fn samples<'a>(
    settings: impl Iterator<Item = &'a Setting<'a>>,
    measure: &Measure,
) -> Option<(u64, u64)> {
    let counts = settings.flat_map(|setting| {
        let own = setting
            .cells
            .iter()
            .filter(|cell| setting.value(cell, measure).is_some());
        own.filter_map(|cell| measure.samples(cell.document.as_ref()?))
    });
    counts.fold(None, |known: Option<(u64, u64)>, n| match known {
        None => Some((n, n)),
        Some((least, most)) => Some((least.min(n), most.max(n))),
    })
}

/// A range of counts: "3", "2 to 3".
pub(super) fn counted((least, most): (u64, u64)) -> String {
    match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    }
}

/// What a percentile is of which a cell has too few samples; behind a caption.
pub(super) fn few<'a>(
    settings: impl Iterator<Item = &'a Setting<'a>>,
    measure: &Measure,
) -> String {
    match samples(settings, measure).zip(measure.samples_needed()) {
        Some(((least, most), needed)) if least < needed => {
            let n = counted((least, most));
            format!(": the largest of {n} in a cell, since a percentile needs {needed}")
        }
        _ => String::new(),
    }
}

/// Names of the conditions of the settings, in their order.
pub(super) fn conditions<'a>(settings: &'a [Setting<'_>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = settings.iter().map(|setting| setting.condition).collect();
    names.dedup();
    names
}

/// Which figures the report shows.
#[derive(Debug)]
pub(super) struct Shown {
    /// Of the maps.
    pub(super) maps: Vec<Measure>,
    /// Class whose first tokens the suite asks about.
    pub(super) ttft_class: Option<String>,
    /// Class whose gaps the suite asks about.
    pub(super) gap_class: Option<String>,
}

/// A fixed list of figures, each of the class that the suite's hypotheses ask about, and those of
/// the hypotheses themselves.
pub(super) fn shown(suite: &SuiteDir) -> Shown {
    let class_of = |families: &[&str]| {
        let asked = suite.file.comparisons.iter().map(|one| one.measure());
        asked
            .filter(|measure| families.contains(&measure.family()))
            .find_map(|measure| measure.class().map(str::to_owned))
    };
    let ttft_class = class_of(&["ttft_ms", "service_ttft_ms", "ttfr_ms"]);
    let gap_class = class_of(&["itl_ms", "event_gap_ms", "stalls", "tpot_ms"]);
    let (ttft, gap) = (ttft_class.as_deref(), gap_class.as_deref());
    let mut maps = vec![
        Measure::of_class("event_gap_ms.max", gap),
        Measure::of_class("ttft_ms.p50", ttft),
        Measure::of_class("ttft_ms.p99", ttft),
        Measure::of_class("itl_ms.p99", gap),
        Measure::of_class("event_gap_ms.p99", gap),
        Measure::new("rates.goodput_rps"),
        Measure::new("rates.output_tps"),
    ];
    for one in &suite.file.comparisons {
        let measure = one.measure();
        if !maps.contains(&measure) {
            maps.push(measure);
        }
    }
    Shown {
        maps,
        ttft_class,
        gap_class,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(values: &[f64]) -> Over {
        Over {
            values: values.iter().copied().enumerate().collect(),
            cells: 5,
        }
    }

    #[test]
    fn median_range_and_what_is_missing() {
        let measure = Measure::new("ttft_ms.p50");
        assert_eq!(over(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(over(&[4.0, 1.0]).median(), Some(2.5));
        let text = |values: &[f64]| over(values).text(&measure).replace('\u{a0}', " ");
        assert_eq!(text(&[4.0, 1.0, 2.0]), "2.00 [1.00, 4.00] (3 of 5)");
        assert_eq!(text(&[]), "none of 5");
        assert_eq!(text(&[7.0]), "7.00 (1 of 5)");
        assert_eq!(Over::default().text(&measure), ABSENT);
    }

    #[test]
    fn a_latency_that_differs_tenfold_jumps() {
        assert!(!over(&[1.0, 10.0]).jumps());
        assert!(over(&[1.0, 10.1, 2.0]).jumps());
        assert!(!over(&[]).jumps() && !over(&[0.0, 5.0]).jumps());
        // Only latencies: a rate that differs tenfold is what it is.
        let jump = over(&[20.0, 1700.0]);
        assert!(Measure::new("itl_ms.p99").jumps(&jump));
        assert!(!Measure::new("rates.output_tps").jumps(&jump));
    }

    #[test]
    fn the_geometric_interval_is_that_of_the_logarithms() {
        // ln 1, ln 10, ln 100 have mean ln 10 and standard error ln(10)/sqrt(3); the t quantile
        // of 0.975 with 2 degrees of freedom is 4.302653.
        let (point, low, high) = over(&[1.0, 10.0, 100.0]).geometric().unwrap();
        let reach = (4.302_653 * 10_f64.ln() / 3_f64.sqrt()).exp();
        assert!((point - 10.0).abs() < 1e-9);
        assert!((high / (10.0 * reach) - 1.0).abs() < 1e-5, "{high}");
        assert!((low * reach / 10.0 - 1.0).abs() < 1e-5, "{low}");
        assert_eq!(over(&[1.0, 2.0]).geometric(), None);
        assert_eq!(over(&[1.0, 2.0, 0.0]).geometric(), None);
    }
}
