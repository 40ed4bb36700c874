//! `report.html`: one file without scripts, fonts or anything else from elsewhere.
//!
//! Everything that came from a run (arm names, server messages) passes through the template's
//! escaping or through [`crate::format::escape`]; only strings built here are marked safe.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};
use pb_judge::run::{Counted, RunVerdict, Samples, block_numbers};
use pb_record::{RunData, visible};
use serde::Serialize;

use crate::ReportError;
use crate::format::escape;
use crate::plots::ecdf::{Series, Share};
use crate::plots::{self, Figure};
use crate::sections::{Detail, Section, sections};
use crate::table::Table;
use crate::tone::Tone;

const TEMPLATE: &str = include_str!("report.html.j2");
pub(crate) const STYLE: &str = include_str!("style.css");

/// A page before it is drawn; its words are safe to show.
#[derive(Serialize)]
pub(crate) struct Page {
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) receipt: String,
    pub(crate) tone: &'static str,
    /// What was found, before the headline says how far it holds.
    pub(crate) answer: Vec<String>,
    pub(crate) headline: String,
    pub(crate) sentence: String,
    pub(crate) reasons: Vec<String>,
    pub(crate) style: &'static str,
    /// Whether a list of its sections leads to them.
    pub(crate) contents: bool,
    pub(crate) sections: Vec<HtmlSection>,
}

/// A section with its drawn tables and pictures.
#[derive(Serialize)]
pub(crate) struct HtmlSection {
    key: &'static str,
    title: String,
    /// A list, as HTML.
    pub(crate) points: Vec<String>,
    /// Sentences, as HTML.
    pub(crate) text: Vec<String>,
    /// Words behind which the blocks are folded.
    folded: Option<String>,
    /// Tables and pictures in their order, as HTML.
    pub(crate) blocks: Vec<String>,
}

/// Renders the page.
pub(crate) fn render(data: &RunData, verdict: &RunVerdict) -> Result<String, ReportError> {
    let mut figures = figures(data, verdict);
    page(Page {
        kind: visible(&verdict.kind),
        title: visible(&crate::sections::title(verdict)),
        receipt: visible(&crate::sections::receipt(verdict)),
        tone: Tone::of(verdict).class(),
        answer: Vec::new(),
        headline: verdict.headline(),
        sentence: visible(&verdict.sentence),
        reasons: verdict
            .validity
            .reasons
            .iter()
            .map(|r| visible(r))
            .collect(),
        style: STYLE,
        contents: false,
        sections: sections(verdict, Detail::Full)
            .iter()
            .map(|s| html_section(s, &mut figures))
            .collect(),
    })
}

/// Draws a page.
pub(crate) fn page(page: Page) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("report", TEMPLATE)?;
    Ok(environment.get_template("report")?.render(Serde(page))?)
}

/// A section with its pictures, which are taken out of `figures`.
pub(crate) fn html_section(
    section: &Section,
    figures: &mut Vec<(&'static str, Figure)>,
) -> HtmlSection {
    let (mine, others): (Vec<_>, Vec<_>) =
        figures.drain(..).partition(|(key, _)| *key == section.key);
    *figures = others;
    let tables = section.tables.iter().map(Table::html);
    let figures = mine.iter().map(|(_, figure)| figure_html(figure));
    headed(section, tables.chain(figures).collect())
}

/// A section of which each table has its pictures below it.
pub(crate) fn interleaved(section: &Section, figures: &[Vec<Figure>]) -> HtmlSection {
    let mut blocks = Vec::new();
    for (number, table) in section.tables.iter().enumerate() {
        blocks.push(table.html());
        let own = figures.get(number).into_iter().flatten();
        blocks.extend(own.map(figure_html));
    }
    headed(section, blocks)
}

fn headed(section: &Section, blocks: Vec<String>) -> HtmlSection {
    HtmlSection {
        key: section.key,
        title: visible(&section.title),
        points: section.points.iter().map(|line| prose(line)).collect(),
        text: section.text.iter().map(|line| prose(line)).collect(),
        folded: section.folded.as_deref().map(visible),
        blocks,
    }
}

/// A sentence as HTML: what stands between backticks is code.
fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return escape(text);
    }
    let each = parts.iter().enumerate();
    each.map(|(i, part)| match i % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    })
    .collect()
}

/// A figure; its picture was made safe to show already. On a narrow screen the picture scrolls in
/// its box rather than becoming too small to read.
fn figure_html(figure: &Figure) -> String {
    format!(
        "<figure>\n<h3>{0}</h3>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" \
         aria-label=\"{0}\">\n{1}</div>\n<figcaption>{2}</figcaption>\n</figure>\n",
        escape(&figure.title),
        figure.svg,
        escape(&figure.caption)
    )
}

/// The pictures, each with the key of the section in which it stands.
fn figures(data: &RunData, verdict: &RunVerdict) -> Vec<(&'static str, Figure)> {
    let comparison = verdict.performance.comparison.as_ref();
    let arms: Vec<String> = match comparison {
        Some(comparison) => vec![comparison.baseline.clone(), comparison.candidate.clone()],
        None => verdict
            .performance
            .arms
            .iter()
            .map(|arm| arm.name.clone())
            .collect(),
    };
    let ttft_class = comparison.and_then(|c| c.ttft_class.as_deref());
    let itl_class = comparison.and_then(|c| c.itl_class.as_deref());
    let block = shown_block(data, &arms);
    let mut figures = Vec::new();
    let forest = plots::forest::forest("forest", verdict);
    figures.extend(forest.map(|figure| ("comparison", figure)));
    figures.push((
        "latency",
        distribution(data, &arms, ttft_class, Which::Ttft),
    ));
    figures.push(("latency", distribution(data, &arms, itl_class, Which::Itl)));
    let timeline = plots::timeline::timeline("timeline", data, &arms, itl_class, block);
    figures.push(("latency", timeline));
    let time = plots::step_time::step_time("step-time", data, &arms, block);
    figures.extend(time.map(|figure| ("steps", figure)));
    figures.push(("steps", plots::step_cost::step_cost("steps", data, &arms)));
    figures.push((
        "buckets",
        plots::buckets::buckets("buckets", data, &arms, block),
    ));
    let numerics = plots::numerics::numerics("numerics", verdict);
    figures.extend(numerics.map(|figure| ("correctness", figure)));
    figures
}

/// The first block that every arm ran, so that the panels of a picture show the same schedule.
fn shown_block(data: &RunData, arms: &[String]) -> u32 {
    let blocks: Vec<Vec<u32>> = arms.iter().map(|arm| block_numbers(data, arm)).collect();
    let first = blocks.first().map_or(&[][..], Vec::as_slice);
    let common = first
        .iter()
        .find(|block| blocks.iter().all(|all| all.contains(block)));
    common
        .or(blocks.iter().flatten().min())
        .copied()
        .unwrap_or(0)
}

#[derive(Clone, Copy)]
enum Which {
    Ttft,
    Itl,
}

fn distribution(data: &RunData, arms: &[String], class: Option<&str>, which: Which) -> Figure {
    let samples: Vec<Samples> = arms
        .iter()
        .map(|arm| Samples::of(data, arm, class).sorted())
        .collect();
    let series: Vec<Series<'_>> = arms
        .iter()
        .zip(samples)
        .map(|(name, samples)| Series {
            name,
            sorted: match which {
                Which::Ttft => Counted::of(&samples.ttft),
                Which::Itl => samples.itl,
            },
        })
        .collect();
    let of_class = class.map_or_else(String::new, |class| format!(" ({class})"));
    match which {
        Which::Ttft => {
            let title = format!("Time to first token{of_class}");
            plots::ecdf::ecdf(
                "ttft",
                &title,
                "time to first token",
                Share::AtOrBelow,
                &series,
            )
        }
        Which::Itl => {
            let title = format!("Time between tokens{of_class}");
            plots::ecdf::ecdf("itl", &title, "inter-token latency", Share::Above, &series)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_make_code_and_markup_stays_text() {
        assert_eq!(prose("`a.b` of <b>"), "<code>a.b</code> of &lt;b&gt;");
        assert_eq!(prose("one ` alone <b>"), "one ` alone &lt;b&gt;");
        assert_eq!(prose("`<script>`"), "<code>&lt;script&gt;</code>");
    }
}
