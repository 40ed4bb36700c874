//! What a suite found, in sentences for the head of its report: what a candidate gains by the
//! first figure that is settled, and what becomes of the other figures there.

use super::gains::{attributes, loads};
use super::glance::kinds;
use super::grid::Attributes;
use super::read::{Comparison, SuiteDir};
use super::spoken::{Chosen, capital};
use super::unfit;

/// A sentence for each kind of contrast of which something is settled, in the order of the suite;
/// one that says so where nothing is. Empty without comparisons.
pub(super) fn answers(suite: &SuiteDir) -> Vec<String> {
    if suite.file.comparisons.is_empty() {
        return Vec::new();
    }
    let kinds = kinds(suite);
    let missed = |all: &[&Comparison]| unfit::missed(suite, all);
    let found = kinds.iter();
    let found: Vec<String> = found
        .filter_map(|(factors, all)| answer(factors, all, &missed))
        .collect();
    if !found.is_empty() {
        return found;
    }
    let n = suite.file.comparisons.len();
    let same = |one: &Comparison| one.verdict == "equivalent";
    vec![match suite.file.comparisons.iter().all(same) {
        true => "Nothing changes by more than its margin.".to_owned(),
        false => format!("No change is claimed: none of {n} comparisons is better or worse."),
    }]
}

/// Arms whose stalls the figure of some comparisons does not have.
type Missed<'a> = &'a dyn Fn(&[&Comparison]) -> Vec<String>;

/// What the comparisons of one kind of contrast come to.
fn answer(factors: &[String], all: &[&Comparison], missed: Missed<'_>) -> Option<String> {
    let metrics = metrics(all);
    let claimed = |one: &&&Comparison| matches!(one.verdict.as_str(), "better" | "worse");
    let lead = metrics.iter().find(|metric| {
        all.iter()
            .filter(|one| one.metric == **metric)
            .any(|one| claimed(&one))
    })?;
    let own: Vec<&Comparison> = all
        .iter()
        .copied()
        .filter(|one| one.metric == *lead)
        .collect();
    let verdict = match own.iter().any(|one| one.verdict == "better") {
        true => "better",
        false => "worse",
    };
    let numbers: Vec<usize> = (0..own.len())
        .filter(|&i| own[i].verdict == verdict)
        .collect();
    let chosen: Vec<&Comparison> = numbers.iter().map(|&i| own[i]).collect();
    let things: Vec<Attributes> = own.iter().map(|one| attributes(one)).collect();
    let described = Chosen::of(&things, &numbers);
    let subject = described.subject(&loads(&own), factors);
    let subject = match subject.as_deref() {
        None | Some("") => format!("The candidate of {} of {}", chosen.len(), own.len()),
        Some(words) if words.contains(", ") => format!("{},", capital(words)),
        Some(words) => capital(words),
    };
    let measure = chosen[0].measure();
    let mut text = format!(
        "{subject} {} {}{} by {}{} {}{}",
        if is_up(chosen[0]) { "raises" } else { "lowers" },
        measure.words(),
        blind(&missed(&chosen)),
        range(&chosen, false),
        ends(&chosen),
        described.against(),
        if verdict == "worse" {
            ", which is worse"
        } else {
            ""
        },
    );
    if chosen.len() < own.len() {
        text.push_str(&format!(" ({} of {} comparisons)", chosen.len(), own.len()));
    }
    let mut phrases: Vec<(u8, String)> = metrics
        .iter()
        .filter(|metric| *metric != lead)
        .filter_map(|metric| {
            let there = |one: &&&Comparison| {
                one.metric == **metric && chosen.iter().any(|own| place(own) == place(one))
            };
            let there: Vec<&Comparison> = all.iter().filter(there).copied().collect();
            phrase(&there, &blind(&missed(&there)))
        })
        .collect();
    phrases.sort_by_key(|(order, _)| *order);
    for (_, phrase) in phrases {
        text.push_str(&format!("; {phrase}"));
    }
    Some(format!("{text}."))
}

/// Which settings are compared, whatever the figure.
fn place(one: &Comparison) -> (&str, &str, &str) {
    (&one.candidate, &one.baseline, &one.condition)
}

fn metrics<'a>(all: &[&'a Comparison]) -> Vec<&'a str> {
    let mut metrics: Vec<&str> = Vec::new();
    for one in all {
        if !metrics.contains(&one.metric.as_str()) {
            metrics.push(&one.metric);
        }
    }
    metrics
}

fn is_up(one: &Comparison) -> bool {
    let neutral = if one.scale == "ratio" { 1.0 } else { 0.0 };
    one.change.is_some_and(|change| change.point > neutral)
}

/// What becomes of another figure where the first one is settled, with its place in the sentence.
fn phrase(there: &[&Comparison], blind: &str) -> Option<(u8, String)> {
    let n = there.len();
    let words = format!("{}{blind}", there.first()?.measure().words());
    let count = |verdict: &str| there.iter().filter(|one| one.verdict == verdict).count();
    let counts = [
        (count("better"), "better"),
        (count("worse"), "worse"),
        (count("equivalent"), "the same within the margin"),
        (count("inconclusive"), "not settled"),
        (count("void"), "void"),
    ];
    let range = match range(there, true) {
        range if range.is_empty() => String::new(),
        range => format!(" ({range})"),
    };
    let at = |i: usize| counts[i].0 == n;
    Some(match () {
        () if at(0) => (0, format!("{words} is better too{range}")),
        () if at(1) => (1, format!("the price is a worse {words}{range}")),
        () if at(2) => (4, format!("{words} is the same within the margin{range}")),
        () if at(3) => (3, format!("{words} is not settled{range}")),
        () => {
            let kept = counts.iter().filter(|(count, _)| *count > 0);
            let each: Vec<String> = kept
                .map(|(count, word)| format!("{word} in {count}"))
                .collect();
            (2, format!("{words} is {} of {n}{range}", each.join(", ")))
        }
    })
}

/// Behind a figure that does not have the stalls of some arms.
fn blind(arms: &[String]) -> String {
    match arms {
        [] => String::new(),
        [one] => format!(" (which misses the stalls of {one})"),
        all => format!(" (which misses the stalls of {} arms)", all.len()),
    }
}

/// From which medians to which: " (77–503 ms to 28 ms)". Percentages alone do not say
/// whether a change matters.
fn ends(all: &[&Comparison]) -> String {
    let Some(measure) = all.first().map(|one| one.measure()) else {
        return String::new();
    };
    let range = |of: &dyn Fn(&Comparison) -> Option<f64>| {
        let mut values: Vec<f64> = all.iter().filter_map(|one| of(one)).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let (plain, shown) = (measure.plain(low), measure.shown(high));
        Some(match plain == measure.plain(high) {
            true => shown,
            false => format!("{plain}–{shown}"),
        })
    };
    let ends = range(&|one| one.baseline_median).zip(range(&|one| one.candidate_median));
    ends.map_or_else(String::new, |(from, to)| format!(" ({from} to {to})"))
}

/// Smallest and largest change, with their signs or without; empty where there is none.
fn range(all: &[&Comparison], signed: bool) -> String {
    let Some(first) = all.first() else {
        return String::new();
    };
    let (ratio, share) = (first.scale == "ratio", first.measure().is_share());
    let in_unit = |point: f64| match (ratio, share) {
        (true, _) => 100.0 * (point - 1.0),
        (false, true) => 100.0 * point,
        (false, false) => point,
    };
    let points = all.iter().filter_map(|one| one.change);
    let mut values: Vec<f64> = points.map(|change| in_unit(change.point)).collect();
    if !signed {
        values.iter_mut().for_each(|value| *value = value.abs());
    }
    values.sort_by(f64::total_cmp);
    let number = |value: &f64| {
        let decimals = usize::from(value.abs() < 9.95);
        match signed {
            true => format!("{value:+.decimals$}"),
            false => format!("{value:.decimals$}"),
        }
    };
    let unit = match (ratio, share) {
        (true, _) => "\u{a0}%",
        (false, true) => "\u{a0}points",
        (false, false) => "",
    };
    let (Some(low), Some(high)) = (values.first().map(number), values.last().map(number)) else {
        return String::new();
    };
    match low == high {
        true => format!("{low}{unit}"),
        false => format!("{low} to {high}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::Interval;
    use super::*;

    fn one(metric: &str, arms: [&str; 2], verdict: &str, point: f64) -> Comparison {
        let (low, high) = (point - 0.01, point + 0.01);
        Comparison {
            candidate: arms[0].to_owned(),
            baseline: arms[1].to_owned(),
            metric: metric.to_owned(),
            scale: "ratio".to_owned(),
            verdict: verdict.to_owned(),
            change: Some(Interval { point, low, high }),
            ..Comparison::default()
        }
    }

    const GAP: &str = "event_gap_ms.max";
    const TTFT: &str = "ttft_ms.p50";

    #[test]
    fn the_gain_and_its_price_in_one_sentence() {
        let arms = ["chunk=64", "chunk=whole"];
        let wide = ["chunk=512", "chunk=whole"];
        let all = [
            one(GAP, arms, "better", 0.07),
            one(GAP, wide, "better", 0.48),
            one(TTFT, arms, "inconclusive", 1.2),
            one(TTFT, wide, "inconclusive", 1.01),
        ];
        let all: Vec<&Comparison> = all.iter().collect();
        let said = answer(&["chunk".to_owned()], &all, &|_| Vec::new()).unwrap();
        assert_eq!(
            said.replace('\u{a0}', " "),
            "Chunk 64, 512, lowers longest event gap by 52 to 93 % against whole; TTFT p50 is not \
             settled (+1.0 to +20 %)."
        );
    }

    #[test]
    fn medians_stand_beside_the_change_and_rare_stalls_beside_a_percentile() {
        let with = |metric: &str, from: f64, to: f64| Comparison {
            baseline_median: Some(from),
            candidate_median: Some(to),
            ..one(metric, ["split", "one"], "better", to / from)
        };
        let all = [with(GAP, 500.0, 25.0), with("itl_ms.p99", 10.0, 5.0)];
        let all: Vec<&Comparison> = all.iter().collect();
        let missed = |of: &[&Comparison]| match of[0].metric.as_str() {
            GAP => Vec::new(),
            _ => vec!["one".to_owned()],
        };
        let said = answer(&["arm".to_owned()], &all, &missed).unwrap();
        assert_eq!(
            said.replace('\u{a0}', " "),
            "Split lowers longest event gap by 95 % (500 ms to 25.0 ms) against one; ITL p99 \
             (which misses the stalls of one) is better too (-50 %)."
        );
        let more = [with(GAP, 500.0, 25.0), with(GAP, 80.0, 25.0)];
        let more: Vec<&Comparison> = more.iter().collect();
        assert_eq!(
            ends(&more).replace('\u{a0}', " "),
            " (80.0–500 ms to 25.0 ms)"
        );
    }

    #[test]
    fn what_is_worse_is_said_to_be() {
        let arms = ["split", "one"];
        let all = [
            one(GAP, arms, "worse", 3.0),
            one(TTFT, arms, "worse", 1.5),
            one("rates.output_tps", arms, "equivalent", 1.001),
        ];
        let all: Vec<&Comparison> = all.iter().collect();
        let said = answer(&["arm".to_owned()], &all, &|_| Vec::new()).unwrap();
        assert_eq!(
            said.replace('\u{a0}', " "),
            "Split raises longest event gap by 200 % against one, which is worse; the price is a \
             worse TTFT p50 (+50 %); output tokens/s is the same within the margin (+0.1 %)."
        );
    }

    #[test]
    fn nothing_is_said_where_nothing_is_claimed() {
        let open = one(GAP, ["a", "b"], "inconclusive", 0.5);
        assert_eq!(answer(&["arm".to_owned()], &[&open], &|_| Vec::new()), None);
    }
}
