//! Maps of the figures over the factors of a sweep.

use super::grid::{Attributes, Grid};
use super::measure::Measure;
use super::settings::{Over, Setting, Shown, few};
use super::unfit::{Unfit, unfit, warnings};
use crate::format::ABSENT;
use crate::sections::Section;
use crate::table::Table;

/// Steps of the shading, each with how many times as bad as the best it begins with.
pub(super) const STEPS: [(f64, &str); 5] = [
    (1.0, "h0"),
    (1.1, "h1"),
    (1.5, "h2"),
    (2.5, "h3"),
    (5.0, "h4"),
];

/// The section of the maps.
pub(super) fn maps(settings: &[Setting<'_>], shown: &Shown) -> Section {
    let mut section = Section::new("maps", "Maps of the sweep");
    let attributes: Vec<Attributes> = settings.iter().map(|s| s.attributes.clone()).collect();
    let grid = Grid::of(&attributes);
    section.text.push(
        "Each cell is the median over all valid blocks, with the smallest and the largest block \
         in brackets. Stronger colour is worse: no colour is within 10 % of the best under the \
         same load, then the steps begin at 1.1, 1.5, 2.5 and 5 times as bad. ★ marks the best \
         median of a load, which is no claim: only the verdicts are."
            .to_owned(),
    );
    if !grid.constant.is_empty() {
        section
            .text
            .push(format!("The same everywhere: {}.", grid.constant));
    }
    let maps = shown.maps.iter();
    let maps = maps.filter_map(|measure| Some((measure, map(settings, &grid, measure)?)));
    let mut kept: Vec<(&Measure, Table)> = Vec::new();
    for (measure, table) in maps {
        match kept.iter_mut().find(|(_, known)| is_same(known, &table)) {
            Some((_, known)) => {
                known.note(&format!("{} is the same in every cell.", measure.words()));
            }
            None => kept.push((measure, table)),
        }
    }
    section
        .tables
        .extend(kept.into_iter().map(|(_, table)| table));
    if section.tables.is_empty() {
        section
            .text
            .push("There is no cell that may be used.".to_owned());
    }
    section
}

/// Whether two maps have the same numbers everywhere.
fn is_same(one: &Table, other: &Table) -> bool {
    one.rows == other.rows && one.classes == other.classes
}

/// The map of one figure; absent when no cell has it.
fn map(settings: &[Setting<'_>], grid: &Grid, measure: &Measure) -> Option<Table> {
    let overs: Vec<Over> = settings
        .iter()
        .map(|setting| setting.over(measure))
        .collect();
    overs.iter().find(|over| !over.values.is_empty())?;
    let unfit: Vec<Option<Unfit>> = settings.iter().map(|s| unfit(s, measure)).collect();
    // What is unfit has no median that could be the best or be compared with it.
    let medians: Vec<Option<f64>> = overs
        .iter()
        .zip(&unfit)
        .map(|(over, unfit)| over.median().filter(|_| unfit.is_none()))
        .collect();
    let mut caption = format!("{}{}", measure.words(), measure.unit());
    caption.push_str(&few(settings.iter(), measure));
    let alone = grid.rows.iter().all(String::is_empty);
    let mut headers = vec![if alone { "" } else { "setting" }.to_owned()];
    headers.extend(grid.columns.iter().map(|column| match column.as_str() {
        "" => measure.words(),
        column => column.to_owned(),
    }));
    let mut table = Table::new(caption, 1, &headers);
    table.kind = "heat";
    for row in 0..grid.rows.len() {
        let mut cells = vec![grid.row_heading(row, "median [range]")];
        cells.resize(headers.len(), ABSENT.to_owned());
        for i in (0..settings.len()).filter(|&i| grid.places[i].0 == row) {
            let column = grid.places[i].1 + 1;
            // Arms compete under one load; two loads have different figures anyway.
            let rivals: Vec<usize> = (0..settings.len())
                .filter(|&j| settings[j].condition == settings[i].condition)
                .collect();
            let best = best(&rivals, &medians, measure.more_is_better());
            let star = if best == Some(i) { "★\u{a0}" } else { "" };
            cells[column] = format!("{star}{}", overs[i].text(measure));
            let rivals: Vec<f64> = rivals.iter().filter_map(|&j| medians[j]).collect();
            let class = match medians[i] {
                Some(median) => shade(median, &rivals, measure.more_is_better()),
                None if unfit[i].is_some() => "jumps",
                None => "void",
            };
            table.classes.insert((row, column), class);
        }
        table.push(cells);
    }
    for warning in warnings(settings.iter(), measure) {
        table.note(&warning);
    }
    Some(table)
}

/// The best of several medians; none when there is nothing to choose from.
fn best(own: &[usize], medians: &[Option<f64>], more_is_better: bool) -> Option<usize> {
    let known: Vec<(f64, usize)> = own.iter().filter_map(|&i| Some((medians[i]?, i))).collect();
    let best = known.iter().min_by(|a, b| match more_is_better {
        true => b.0.total_cmp(&a.0),
        false => a.0.total_cmp(&b.0),
    })?;
    let alone = known.iter().filter(|(value, _)| *value == best.0).count() == 1;
    (known.len() > 1 && alone).then_some(best.1)
}

/// How strong: by ratio to the best of its rivals; where one is not above 0, by the share of the
/// range between the best and the worst.
fn shade(value: f64, rivals: &[f64], more_is_better: bool) -> &'static str {
    let low = rivals.iter().copied().fold(value, f64::min);
    let high = rivals.iter().copied().fold(value, f64::max);
    if low > 0.0 {
        let times = if more_is_better {
            high / value
        } else {
            value / low
        };
        let step = STEPS.iter().rev().find(|(from, _)| times >= *from);
        return step.map_or(STEPS[0].1, |(_, class)| class);
    }
    let best = if more_is_better { high } else { low };
    let share = match high > low {
        true => (value - best).abs() / (high - low),
        false => 0.0,
    };
    let step = (share * STEPS.len() as f64).floor() as usize;
    STEPS[step.min(STEPS.len() - 1)].1
}

/// The steps of the shading as they look, for the page.
pub(super) fn steps() -> String {
    let each = STEPS.iter().enumerate().map(|(i, (from, class))| {
        let words = match STEPS.get(i + 1) {
            Some((to, _)) => format!("{from} to {to}"),
            None => format!("{from} and more"),
        };
        format!("<span class=\"{class}\">{words}</span>")
    });
    let each: Vec<String> = each.collect();
    format!(
        "<p class=\"steps soft\">Times as bad as the best: {}</p>\n",
        each.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shading_is_by_ratio_to_the_best() {
        // 254 against 132 is 1.92 times as bad; 1.05 is within a tenth.
        let rivals = [132.0, 138.0, 254.0, 3400.0];
        let shades = rivals.map(|value| shade(value, &rivals, false));
        assert_eq!(shades, ["h0", "h0", "h2", "h4"]);
        // More is better: half of the best is twice as bad.
        assert_eq!(shade(50.0, &[100.0, 50.0], true), "h2");
        assert_eq!(shade(100.0, &[100.0, 50.0], true), "h0");
        assert_eq!(shade(4.0, &[0.0, 4.0], false), "h4");
        assert_eq!(shade(0.0, &[0.0, 0.0], true), "h0");
        assert!(steps().contains("<span class=\"h3\">2.5 to 5</span>"));
    }

    #[test]
    fn the_best_of_a_row_stands_alone() {
        let medians = [Some(3.0), Some(2.0), None, Some(2.0)];
        assert_eq!(best(&[0, 1, 2], &medians, false), Some(1));
        assert_eq!(best(&[0, 1], &medians, true), Some(0));
        assert_eq!(best(&[1, 3], &medians, false), None);
        assert_eq!(best(&[2], &medians, false), None);
        assert_eq!(best(&[0], &medians, false), None);
    }
}
