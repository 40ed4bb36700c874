//! The percentiles of all samples of an arm together, beside the verdicts by blocks.
//!
//! A verdict is about the mean over blocks of each block's own percentile. What a user of the
//! server meets is the percentile of all samples; the two differ where blocks differ or are small.

use pb_judge::compare::{Pooled, pool, pooled};

use super::gains::Hypothesis;
use super::read::{Cell, Comparison, SuiteDir};
use crate::format::{ABSENT, percent_change};
use crate::sections::{Section, interval};
use crate::table::Table;

/// A row for each comparison of a percentile whose cells have their rows.
pub(super) fn section(suite: &SuiteDir, hypotheses: &[Hypothesis<'_>]) -> Option<Section> {
    let mut table = Table::new(
        "Change in %, beside that of the blocks",
        3,
        &[
            "figure",
            "setting",
            "verdict",
            "blocks [interval]",
            "pooled baseline",
            "pooled candidate",
            "pooled [interval]",
        ],
    );
    for hypothesis in hypotheses {
        for placed in &hypothesis.placed {
            let (one, measure) = (placed.one, placed.one.measure());
            let Some(found) = of(suite, one) else {
                continue;
            };
            let ends = [found.ratio.point, found.ratio.low, found.ratio.high];
            let [point, low, high] = ends.map(percent_change);
            let label = match placed.whole_label().as_str() {
                "" => one.arms(),
                label => label.to_owned(),
            };
            table.push(vec![
                measure.words(),
                label,
                one.verdict.clone(),
                match one.change {
                    Some(_) => one.change_text(),
                    None => ABSENT.to_owned(),
                },
                measure.shown(found.baseline),
                measure.shown(found.candidate),
                interval(&point, &low, &high),
            ]);
        }
    }
    if table.is_empty() {
        return None;
    }
    let mut section = Section::new("pooled", "The same percentiles over all samples");
    section.text.push(
        "Verdicts rest on the mean over blocks of each block's own percentile. Here are the \
         percentiles of all samples of an arm together, of the blocks that the verdict used, with \
         the interval of the jackknife over blocks. They are shown and claim nothing; where the \
         two disagree, blocks differ, or are too small for the percentile."
            .to_owned(),
    );
    section.tables.push(table);
    Some(section)
}

/// The pooled percentile of both arms over the blocks of a comparison.
fn of(suite: &SuiteDir, one: &Comparison) -> Option<Pooled> {
    let measure = one.measure();
    let p = measure.percentile()?;
    let arm = |arm: &str| {
        let cell = |block: &usize| {
            let own = |cell: &&Cell| {
                let note = &cell.note;
                note.block == *block && note.arm == arm && note.condition == one.condition
            };
            let cell = suite.cells.iter().find(own)?;
            cell.samples.get(&measure.sampled())
        };
        pool(&one.blocks.iter().map(cell).collect::<Option<Vec<_>>>()?)
    };
    let (a, b) = (arm(&one.baseline)?, arm(&one.candidate)?);
    pooled(&a, &b, p, 1.0 - suite.file.alpha)
}
