//! The sections of a suite's report.

use super::gains::{Hypothesis, marked};
use super::grid::{Attributes, Grid};
use super::measure::Measure;
use super::read::SuiteDir;
use super::settings::{Setting, Shown, few};
use crate::format::{ABSENT, percent_or_dash};
use crate::sections::{Detail, Section, p_value};
use crate::table::Table;

/// Steps of the shading of a map.
const SHADES: [&str; 5] = ["h0", "h1", "h2", "h3", "h4"];

/// Ratio to the best from which on a map is as dark as can be, where no larger one is in it: so
/// that small changes look small.
const DARKEST: f64 = 2.0;

/// What was asked and how it is to be read.
pub(super) fn question(suite: &SuiteDir) -> Section {
    let mut section = Section::new("question", "Question");
    section.text.push(suite.file.question.clone());
    let reading = suite.file.reading.split_whitespace();
    let reading = reading.collect::<Vec<&str>>().join(" ");
    section
        .text
        .push(format!("How to read it, as the suite says: {reading}"));
    section
}

/// Where the candidates win and lose.
pub(super) fn gains(
    suite: &SuiteDir,
    hypotheses: &[Hypothesis<'_>],
    detail: Detail,
) -> Option<Section> {
    if hypotheses.is_empty() {
        return None;
    }
    let mut section = Section::new("gains", "Where it wins, where it loses");
    let sentences = hypotheses.iter().map(Hypothesis::sentence);
    section.text.extend(sentences);
    section.text.push(
        "▲ better, ▼ worse, = equivalent (the interval lies within the margin), ? inconclusive \
         (the data do not say), ✕ void; each with the change and its interval."
            .to_owned(),
    );
    let tables = super::glance::tables(suite);
    if !tables.is_empty() {
        section.text.push(
            "A candidate wins that is better by some figure and worse by none, and trades when it \
             is both. How much of one is worth how much of the other, no statistics can say."
                .to_owned(),
        );
    }
    section.tables.extend(tables);
    if detail == Detail::Full {
        let tables = hypotheses.iter().map(Hypothesis::table);
        section.tables.extend(tables);
    }
    Some(section)
}

/// Every comparison with its statistics.
pub(super) fn verdicts(suite: &SuiteDir, hypotheses: &[Hypothesis<'_>], detail: Detail) -> Section {
    let mut section = Section::new("verdicts", "Verdicts");
    let comparisons = &suite.file.comparisons;
    if comparisons.is_empty() {
        let text = "The suite has no hypothesis, so nothing is compared and nothing is claimed.";
        section.text.push(text.to_owned());
        return section;
    }
    let confidence = 100.0 * (1.0 - suite.file.alpha);
    let valid = match suite.file.stop.as_str() {
        "sequential" => " that are valid at every block",
        "spending" => " that are valid at its planned looks together",
        _ => "",
    };
    section.text.push(format!(
        "Baseline and candidate are medians over blocks; the change is the mean over pairs of \
         cells of one block (geometric for ratios), with {confidence} % intervals{valid}. Holm p \
         is adjusted for all {} comparisons of the suite. Better and worse are by the figure's own \
         good direction and need an interval without \"no change\" and a change beyond the margin.",
        comparisons.len()
    ));
    let tables = hypotheses
        .iter()
        .map(|hypothesis| statistics(hypothesis, detail));
    section.tables.extend(tables);
    section
}

/// The comparisons of one hypothesis with their numbers and, in full, why each verdict is as it is.
fn statistics(hypothesis: &Hypothesis<'_>, detail: Detail) -> Table {
    let mut headers = vec![
        "setting",
        "verdict",
        "expected",
        "pairs",
        "left out",
        "baseline",
        "candidate",
        "change [interval]",
        "Holm p",
    ];
    if detail == Detail::Full {
        headers.push("why");
    }
    let (name, constant) = (hypothesis.name, &hypothesis.constant);
    let caption = format!("{name}: {} ({constant})", hypothesis.measure().words());
    let mut table = Table::new(caption, 3, &headers);
    table.wraps_last = detail == Detail::Full;
    for placed in &hypothesis.placed {
        let one = placed.one;
        let measure = one.measure();
        let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| measure.shown(v));
        let expected = match (one.as_expected, one.expect.as_deref()) {
            (Some(true), None) => ABSENT.to_owned(),
            (Some(true), Some(expect)) => format!("{expect}: yes"),
            (Some(false), expect) => format!("{}: NO", expect.unwrap_or_default()),
            (None, None) => "open".to_owned(),
            (None, Some(expect)) => format!("{expect}: open"),
        };
        let label = match placed.whole_label().as_str() {
            "" => "all".to_owned(),
            label => label.to_owned(),
        };
        let p = one.p.map(|_| p_value(one.holm_p));
        let mut row = vec![
            label,
            one.verdict.clone(),
            expected,
            one.pairs.to_string(),
            one.left_out.len().to_string(),
            value(one.baseline_median),
            value(one.candidate_median),
            one.change_text(),
            p.unwrap_or_else(|| ABSENT.to_owned()),
        ];
        if detail == Detail::Full {
            let left_out = one.left_out.first();
            let left_out = left_out.map(|first| format!("; left out: {first}"));
            row.push(format!("{}{}", one.why, left_out.unwrap_or_default()));
        }
        table.push(row);
    }
    table
}

/// Maps of the figures over the factors.
pub(super) fn maps(settings: &[Setting<'_>], shown: &Shown) -> Section {
    let mut section = Section::new("maps", "Maps of the sweep");
    let attributes: Vec<Attributes> = settings.iter().map(|s| s.attributes.clone()).collect();
    let grid = Grid::of(&attributes);
    section.text.push(
        "Each cell is the median over the blocks that may be used, with the smallest and the \
         largest block in brackets. Darker is worse than the best under the same load: the darkest \
         is the worst of them, or twice as bad where all lie within that. ★ marks the best median \
         of a load, which is no claim: only the verdicts are."
            .to_owned(),
    );
    if !grid.constant.is_empty() {
        section
            .text
            .push(format!("The same everywhere: {}.", grid.constant));
    }
    for measure in &shown.maps {
        section.tables.extend(map(settings, &grid, measure));
    }
    if section.tables.is_empty() {
        section
            .text
            .push("There is no cell that may be used.".to_owned());
    }
    section
}

/// The map of one figure; absent when no cell has it.
fn map(settings: &[Setting<'_>], grid: &Grid, measure: &Measure) -> Option<Table> {
    let overs: Vec<_> = settings
        .iter()
        .map(|setting| setting.over(measure))
        .collect();
    let medians: Vec<Option<f64>> = overs.iter().map(super::settings::Over::median).collect();
    medians.iter().flatten().next()?;
    let mut caption = format!("{}{}", measure.words(), measure.unit());
    caption.push_str(&few(settings.iter(), measure));
    let mut headers = vec!["setting".to_owned()];
    headers.extend(grid.columns.iter().map(|column| match column.as_str() {
        "" => measure.words(),
        column => column.to_owned(),
    }));
    let mut table = Table::new(caption, 1, &headers);
    table.kind = "heat";
    for row in 0..grid.rows.len() {
        let mut cells = vec![grid.row_heading(row, "all")];
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
                None => "void",
            };
            table.classes.insert((row, column), class);
        }
        table.push(cells);
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

/// How dark: by ratio to the best of its rivals, or by difference when one is not above 0.
fn shade(value: f64, rivals: &[f64], more_is_better: bool) -> &'static str {
    let low = rivals.iter().copied().fold(value, f64::min);
    let high = rivals.iter().copied().fold(value, f64::max);
    let best = if more_is_better { high } else { low };
    let worse = match low > 0.0 {
        true => (value / best).ln().abs() / (high / low).max(DARKEST).ln(),
        false if high > low => (value - best).abs() / (high - low),
        false => 0.0,
    };
    let step = (worse.clamp(0.0, 1.0) * SHADES.len() as f64).floor() as usize;
    SHADES[step.min(SHADES.len() - 1)]
}

/// Every cell with the way to its own files.
pub(super) fn cells(suite: &SuiteDir, detail: Detail, shown: &Shown) -> Section {
    let mut section = Section::new("cells", "Cells");
    let gap = shown.gap_class.as_deref();
    let measures = [
        Measure::of_class("ttft_ms.p50", shown.ttft_class.as_deref()),
        Measure::of_class("ttft_ms.p99", shown.ttft_class.as_deref()),
        Measure::of_class("itl_ms.p99", gap),
        Measure::of_class("event_gap_ms.max", gap),
        Measure::new("rates.output_tps"),
    ];
    let mut headers = vec!["cell".to_owned(), "state".to_owned(), "ok, %".to_owned()];
    headers.extend(
        measures
            .iter()
            .map(|m| format!("{}{}", m.words(), m.unit())),
    );
    headers.push("with its server, s".to_owned());
    let caption = "Every cell; numbers of cells that are not valid are left out";
    let mut table = Table::new(caption, 2, &headers);
    for (row, cell) in suite.cells.iter().enumerate() {
        let note = &cell.note;
        let mut cells = vec![
            note.dir.trim_start_matches("cells/").to_owned(),
            cell.word().to_owned(),
            percent_or_dash(note.success_rate),
        ];
        let document = cell.document.as_ref().filter(|_| cell.is_valid());
        cells.extend(measures.iter().map(|measure| {
            let value = document.and_then(|document| measure.value(document));
            value.map_or_else(|| ABSENT.to_owned(), |value| measure.plain(value))
        }));
        cells.push(
            note.wall_s
                .map_or_else(|| ABSENT.to_owned(), |s| format!("{s:.1}")),
        );
        if let Some(page) = &cell.page {
            table.links.insert(row, page.clone());
        }
        table.push(cells);
    }
    if detail == Detail::Full {
        section.text.push(
            "A cell leads to its own page, or to its document when `prefillbench report CELL` has \
             not made one."
                .to_owned(),
        );
        section.tables.push(table);
    }
    section
}

/// What was run, on what.
pub(super) fn receipt(suite: &SuiteDir) -> String {
    let file = &suite.file;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let machine = &file.machine;
    let cores = machine["cores"].as_u64();
    let cores = cores.map_or_else(String::new, |n| format!("{n} cores"));
    let isa = text(&machine["isa"]);
    let dirty = if file.tool["git_dirty"] == true {
        " (changed)"
    } else {
        ""
    };
    let tool = format!(
        "prefillbench {} {}{dirty}",
        text(&file.tool["version"]),
        short(&text(&file.tool["git_rev"]))
    );
    let parts = [
        format!("{} cells", suite.cells.len()),
        format!("{} blocks", file.blocks_run),
        text(&machine["cpu"]),
        cores,
        isa,
        text(&machine["os"]),
        tool,
        format!("seed {}", file.seed),
        format!("suite {}", short(&file.suite_sha256)),
    ];
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" · ")
}

/// The marks of all verdicts, for the head: how often each.
pub(super) fn tally(suite: &SuiteDir) -> String {
    let all = &suite.file.comparisons;
    let count = |verdict: &str| all.iter().filter(|one| one.verdict == verdict).count();
    let words = ["better", "worse", "equivalent", "inconclusive", "void"];
    let known = words
        .iter()
        .map(|word| (word, count(word)))
        .filter(|(_, n)| *n > 0);
    let words: Vec<String> = known
        .map(|(word, n)| format!("{n} {}", marked(word)))
        .collect();
    format!("{} comparisons: {}", all.len(), words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shading_is_by_ratio_and_dark_is_worse() {
        // 1, 10, 100: halfway by ratio is 10, which is the third of five steps.
        let rivals = [1.0, 10.0, 100.0];
        let shades = |more| rivals.map(|value| shade(value, &rivals, more));
        assert_eq!(shades(false), ["h0", "h2", "h4"]);
        assert_eq!(shades(true), ["h4", "h2", "h0"]);
        // A tenth more is ln 1.1 / ln 2 = 0.14 of the way to the darkest: small.
        assert_eq!(shade(1.1, &[1.0, 1.1], false), "h0");
        assert_eq!(shade(2.0, &[1.0, 2.0], false), "h4");
        assert_eq!(shade(4.0, &[0.0, 4.0], false), "h4");
        assert_eq!(shade(0.0, &[0.0, 0.0], true), "h0");
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
