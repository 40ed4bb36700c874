//! Why nothing may be chosen by a latency of a setting, though it has a median.

use super::measure::Measure;
use super::read::{Comparison, SuiteDir};
use super::settings::{Over, Setting, settings};

/// The longest gap over a percentile of the gaps from which on the percentile does not have the
/// stalls: they are rarer than the gaps above it.
const HIDDEN: f64 = 10.0;

/// What is wrong with a latency of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It differs so much from block to block that its median is no place.
    Jumps,
    /// A percentile of gaps below all stalls: whatever they take, it is the same.
    Blind,
}

impl Unfit {
    /// In a table.
    pub(super) fn words(self) -> &'static str {
        match self {
            Unfit::Jumps => "jumps: not judged",
            Unfit::Blind => "misses the stalls: not judged",
        }
    }
}

/// Whether a latency of a setting is unfit to choose by.
pub(super) fn unfit(setting: &Setting<'_>, measure: &Measure) -> Option<Unfit> {
    let over = setting.over(measure);
    if measure.jumps(&over) {
        return Some(Unfit::Jumps);
    }
    let longest = setting.over(&measure.longest_gap()?);
    is_blind(&over, &longest).then_some(Unfit::Blind)
}

fn is_blind(percentile: &Over, longest: &Over) -> bool {
    let medians = percentile.median().zip(longest.median());
    medians.is_some_and(|(percentile, longest)| percentile > 0.0 && longest > HIDDEN * percentile)
}

/// What is to be said of settings in which a latency is unfit, a sentence for each reason.
pub(super) fn warnings<'a>(
    settings: impl Iterator<Item = &'a Setting<'a>>,
    measure: &Measure,
) -> Vec<String> {
    let all: Vec<(&Setting<'_>, Unfit)> = settings
        .filter_map(|setting| Some((setting, unfit(setting, measure)?)))
        .collect();
    let of = |why: Unfit| -> Vec<&Setting<'_>> {
        let own = all.iter().filter(|(_, own)| *own == why);
        own.map(|(setting, _)| *setting).collect()
    };
    let mut said = Vec::new();
    let jumping: Vec<Over> = of(Unfit::Jumps).iter().map(|s| s.over(measure)).collect();
    said.extend(jumps(&jumping, measure));
    let blind = of(Unfit::Blind);
    if !blind.is_empty() {
        said.push(misses(&blind, measure));
    }
    said
}

fn jumps(jumping: &[Over], measure: &Measure) -> Option<String> {
    let ranges = || jumping.iter().filter_map(Over::range);
    let low = ranges().map(|(low, _)| low).min_by(f64::total_cmp)?;
    let high = ranges().map(|(_, high)| high).max_by(f64::total_cmp)?;
    let (low, high) = (measure.shown(low), measure.shown(high));
    let words = measure.words();
    let in_blocks = match measure.samples_needed() {
        Some(one_in) => {
            format!("Stalls are rarer than 1 in {one_in} in some blocks and not in others")
        }
        None => "Blocks are of two kinds".to_owned(),
    };
    Some(format!(
        "{in_blocks}, so {words} jumps between {low} and {high} in {} (hatched): do not choose by \
         it. Such a setting gets no star and no place on a front.",
        counted(jumping.len())
    ))
}

fn misses(blind: &[&Setting<'_>], measure: &Measure) -> String {
    let longest = |setting: &&Setting<'_>| {
        let longest = setting.over(&measure.longest_gap()?).median()?;
        Some((longest / setting.over(measure).median()?, longest))
    };
    let worst = blind.iter().filter_map(longest);
    let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0));
    let (times, longest) = worst.unwrap_or((HIDDEN, 0.0));
    let one_in = measure.samples_needed().unwrap_or(1);
    format!(
        "{} misses the stalls of {} (hatched): they are rarer than 1 gap in {one_in}. The longest \
         gap is up to {times:.0} times as long there ({}); choose by that. Such a setting gets no \
         star and no place on a front.",
        measure.words(),
        counted(blind.len()),
        measure.shown(longest),
    )
}

fn counted(settings: usize) -> String {
    match settings {
        1 => "1 setting".to_owned(),
        n => format!("{n} settings"),
    }
}

/// Arms whose stalls the figure of these comparisons misses, in the order of the suite.
pub(super) fn missed(suite: &SuiteDir, comparisons: &[&Comparison]) -> Vec<String> {
    let mut arms: Vec<String> = Vec::new();
    let settings = settings(suite);
    for one in comparisons {
        let own = settings.iter().filter(|s| {
            s.condition == one.condition && (s.arm == one.baseline || s.arm == one.candidate)
        });
        for setting in own.filter(|s| unfit(s, &one.measure()) == Some(Unfit::Blind)) {
            if !arms.iter().any(|arm| arm == setting.arm) {
                arms.push(setting.arm.to_owned());
            }
        }
    }
    arms
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
    fn a_percentile_far_below_the_longest_gap_misses_the_stalls() {
        // Medians: 11 and 503 ms; 64 and 77 ms.
        assert!(is_blind(
            &over(&[10.0, 11.0, 13.0]),
            &over(&[424.0, 503.0, 597.0])
        ));
        assert!(!is_blind(&over(&[64.0]), &over(&[77.0])));
        assert!(!is_blind(&over(&[1.0]), &over(&[10.0])));
        assert!(!is_blind(&over(&[]), &over(&[10.0])) && !is_blind(&over(&[0.0]), &over(&[9.0])));
    }

    #[test]
    fn only_tail_percentiles_of_gaps_can_miss_stalls() {
        let longest = |name: &str| Measure::new(name).longest_gap().map(|m| m.name);
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(longest("classes.b.itl_ms.p99"), of("classes.b.itl_ms.max"));
        assert_eq!(longest("event_gap_ms.p999"), of("event_gap_ms.max"));
        // A median is not meant to have them, and first tokens are no gaps.
        assert_eq!(longest("itl_ms.p50"), None);
        assert_eq!(longest("itl_ms.max"), None);
        assert_eq!(longest("ttft_ms.p99"), None);
    }

    #[test]
    fn a_latency_that_jumps_is_said_to() {
        let measure = Measure::new("classes.back.itl_ms.p99");
        let said = jumps(&[over(&[30.0, 1700.0])], &measure).unwrap();
        let expected = "Stalls are rarer than 1 in 100 in some blocks and not in others, so ITL \
                        p99 of back jumps between 30.0 ms and 1700 ms in 1 setting (hatched): do \
                        not choose by it.";
        let said = said.replace('\u{a0}', " ");
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(jumps(&[], &measure), None);
    }
}
