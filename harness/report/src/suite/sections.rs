//! The sections of a suite's report.

use super::gains::{Hypothesis, marked};
use super::measure::Measure;
use super::read::{Cell, SuiteDir};
use super::settings::{Setting, Shown};
use crate::format::{ABSENT, percent_or_dash};
use crate::sections::{Detail, Section};
use crate::table::Table;

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
    section.points.extend(sentences);
    let n = suite.file.comparisons.len();
    let mut legend = "▲ better, ▼ worse, = equivalent (the interval lies within the margin), ? \
                      inconclusive (not settled by these data; Verdicts has why)"
        .to_owned();
    if suite.file.comparisons.iter().any(|one| one.seen) {
        legend.push_str(&format!(
            ", ? seen, not claimed (its own interval excludes no change, but the Holm p over all \
             {n} comparisons is not below {})",
            suite.file.alpha
        ));
    }
    legend.push_str(", ✕ void; each with the change and its interval.");
    section.text.push(legend);
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
        // Of a single comparison the list has said all.
        let several = hypotheses.iter().filter(|one| one.placed.len() > 1);
        section.tables.extend(several.map(Hypothesis::table));
    }
    Some(section)
}

/// Every cell with the way to its own files.
pub(super) fn cells(suite: &SuiteDir, settings: &[Setting<'_>], shown: &Shown) -> Section {
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
    for (row, cell) in in_order(suite, settings).into_iter().enumerate() {
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
    section.text.push(
        "A cell leads to its own page, or to its document when `prefillbench report CELL` has not \
         made one. The links work only while this file lies in the directory of the run."
            .to_owned(),
    );
    section.folded = Some(format!("All {} cells", table.rows.len()));
    section.tables.push(table);
    section
}

/// Cells by block, and within a block in the order of the settings.
fn in_order<'a>(suite: &'a SuiteDir, settings: &[Setting<'_>]) -> Vec<&'a Cell> {
    let place = |cell: &Cell| {
        let own = |setting: &Setting<'_>| {
            setting.arm == cell.note.arm && setting.condition == cell.note.condition
        };
        settings.iter().position(own)
    };
    let mut cells: Vec<&Cell> = suite.cells.iter().collect();
    cells.sort_by_key(|cell| (cell.note.block, place(cell)));
    cells
}

/// What was run, on what.
pub(super) fn receipt(suite: &SuiteDir) -> String {
    let file = &suite.file;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let short = |text: &str| text.chars().take(12).collect::<String>();
    let machine = &file.machine;
    let cores = machine["cores"].as_u64();
    let cores = cores.map_or_else(String::new, |n| match n {
        1 => "1 core".to_owned(),
        n => format!("{n} cores"),
    });
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
    let seen = all.iter().filter(|one| one.seen).count();
    let seen = match seen {
        0 => String::new(),
        seen => format!(" ({seen} of them seen, not claimed)"),
    };
    let words: Vec<String> = known
        .map(|(word, n)| match *word {
            "inconclusive" => format!("{n} {}{seen}", marked(word)),
            word => format!("{n} {}", marked(word)),
        })
        .collect();
    format!("{} comparisons: {}", all.len(), words.join(", "))
}
