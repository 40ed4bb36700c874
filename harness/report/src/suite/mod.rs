//! Reports of a suite: many cells, the verdicts on its hypotheses, and the maps of its sweep.
//!
//! Made from `suite.json` and the cells below it. The order is that of use: whether the numbers may
//! be used, what was asked, where a candidate wins and where it loses and how sure that is, then
//! the figures of every setting, and at the end every cell. A cell that is not valid is counted and
//! named, and enters no number and no picture.

mod answer;
mod bias;
mod diff;
mod front;
mod fronts;
mod gains;
mod glance;
mod grid;
mod maps;
mod measure;
mod pictures;
mod pooled;
mod quantiles;
mod read;
mod rejudge;
mod scatter;
mod sections;
mod settings;
mod setup;
mod spoken;
mod unfit;
mod validity;
mod verdicts;
mod words;

use std::path::Path;

pub use diff::{Medians, SuiteDiff, Verdicts, suite_diff};
pub use read::{SUITE_FILE, SuiteError};

use crate::ReportError;
use crate::html::{self, HtmlSection, Page};
use crate::plots::Figure;
use crate::sections::{Detail, Section};
use crate::table::markdown_safe;
use crate::text::{self, Paint};
use crate::tone::Tone;
use fronts::Front;
use gains::{Hypothesis, hypotheses};
use measure::Measure;
use pb_record::visible;
use read::SuiteDir;
use sections::{receipt, tally};
use settings::{Setting, Shown, settings, shown};
use validity::{Validity, validity};
use words::Linker;

/// The value of a figure, for example `classes.background.itl_ms.p99`, in a document of `bench`;
/// absent when it was not measured.
pub(crate) fn figure(name: &str, document: &serde_json::Value) -> Option<f64> {
    Measure::new(name).value(document)
}

/// The run of a suite to report.
#[derive(Debug)]
pub struct SuiteReport {
    suite: SuiteDir,
    validity: Validity,
}

impl SuiteReport {
    /// Reads the directory that `prefillbench run` wrote, finished or not. The numbers of each cell
    /// are made again from its rows, where these are there.
    ///
    /// # Errors
    /// No `suite.json`, or one that cannot be read; a cell that lies elsewhere.
    pub fn open(dir: &Path) -> Result<SuiteReport, SuiteError> {
        let suite = read::read(dir)?;
        Ok(SuiteReport {
            validity: validity(&suite),
            suite,
        })
    }

    /// The exit code of the suite, 3 when its files contradict one another.
    pub fn exit_code(&self) -> u8 {
        match self.validity.broken {
            true => 3,
            false => self.suite.file.exit_code,
        }
    }

    /// `suite.json` as it is.
    pub fn document(&self) -> &serde_json::Value {
        &self.suite.document
    }

    /// Directories of the finished cells, below that of the suite.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        let finished = self.suite.cells.iter();
        let finished = finished.filter(|cell| cell.note.state == "complete");
        finished.map(|cell| cell.note.dir.as_str())
    }

    /// The report for a terminal of `width` columns (at least 40); colours only when asked for.
    pub fn terminal(&self, width: u16, color: bool) -> String {
        let (paint, width) = (Paint { color }, width.max(40));
        let columns = usize::from(width);
        let mut out = text::wrapped(&paint, "1", &self.title(), columns);
        out.push_str(&text::wrapped(&paint, "2", &receipt(&self.suite), columns));
        out.push('\n');
        for line in self.answer() {
            out.push_str(&text::wrapped(&paint, "1", &line, columns));
        }
        let head = format!("{}. {}", self.headline(), self.sentence());
        out.push_str(&text::wrapped(&paint, self.tone().style(), &head, columns));
        let parts = Parts::of(self);
        for section in parts.sections(self, Detail::Brief) {
            out.push('\n');
            out.push_str(&text::in_terminal(&section, &paint, width));
        }
        out
    }

    /// The report as Markdown (`report.md`).
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", markdown_safe(&self.title()));
        out.push_str(&format!("{}\n\n", markdown_safe(&receipt(&self.suite))));
        for line in self.answer() {
            out.push_str(&format!("**{}**\n\n", markdown_safe(&line)));
        }
        let (headline, sentence) = (self.headline(), self.sentence());
        out.push_str(&format!("**{headline}.** {}\n", markdown_safe(&sentence)));
        out.push_str(&text::markdown_sections(
            &Parts::of(self).sections(self, Detail::Full),
        ));
        out
    }

    /// The report as one self-contained HTML page (`report.html`). It leads to the cells by
    /// relative addresses and needs none of them to be read.
    ///
    /// # Errors
    /// [`ReportError::Template`] only.
    pub fn html(&self) -> Result<String, ReportError> {
        let parts = Parts::of(self);
        let mut sections = parts.sections(self, Detail::Full);
        // On the page they stand in the panel at the top.
        for section in sections
            .iter_mut()
            .filter(|section| section.key == "validity")
        {
            section.text.retain(|line| !line.starts_with(REASON));
        }
        html::page(Page {
            kind: "suite".to_owned(),
            title: visible(&self.title()),
            receipt: visible(&receipt(&self.suite)),
            tone: self.tone().class(),
            answer: self.answer().iter().map(|line| visible(line)).collect(),
            headline: self.headline().to_owned(),
            sentence: visible(&self.sentence()),
            reasons: self.validity.reasons.iter().map(|r| visible(r)).collect(),
            style: html::STYLE,
            contents: true,
            sections: linked(sections.iter().map(|section| parts.on_page(section))),
        })
    }

    /// What was found; nothing when nothing may be claimed.
    fn answer(&self) -> Vec<String> {
        match self.validity.broken {
            true => Vec::new(),
            false => answer::answers(&self.suite),
        }
    }

    fn title(&self) -> String {
        format!("Suite {}", self.suite.file.name)
    }

    fn headline(&self) -> &'static str {
        let file = &self.suite.file;
        let against = file
            .comparisons
            .iter()
            .any(|one| one.as_expected == Some(false));
        let open = file.comparisons.iter().any(|one| one.as_expected.is_none());
        match (self.validity.broken, against, file.state.as_str()) {
            (true, ..) => "Contradicts itself: nothing may be claimed",
            (_, true, _) => "Against an expectation",
            (_, _, "interrupted") => "Interrupted",
            (_, _, "incomplete") => "Incomplete",
            _ if open => "Not all is answered",
            _ if file.comparisons.is_empty() => "Measured, nothing compared",
            _ => "Every comparison is answered",
        }
    }

    fn tone(&self) -> Tone {
        match self.headline() {
            "Contradicts itself: nothing may be claimed" => Tone::Void,
            "Against an expectation" => Tone::Fail,
            "Measured, nothing compared" => Tone::Plain,
            "Every comparison is answered" => {
                let has = |verdict: &str| {
                    let mut all = self.suite.file.comparisons.iter();
                    all.any(|one| one.verdict == verdict)
                };
                match (has("better"), has("worse")) {
                    (true, false) => Tone::Better,
                    (false, true) => Tone::Worse,
                    _ => Tone::Plain,
                }
            }
            // That something is open is no fault; amber is for what is not valid or not there.
            "Not all is answered" => Tone::Plain,
            _ => Tone::Inconclusive,
        }
    }

    fn sentence(&self) -> String {
        let suite = &self.suite;
        let cells = suite.cells.len();
        let valid = suite.cells.iter().filter(|cell| cell.is_valid()).count();
        let compared = match suite.file.comparisons.is_empty() {
            true => String::new(),
            false => format!("{}; ", tally(suite)),
        };
        let bias = bias::bias(suite).map_or_else(String::new, |bias| format!(" {bias}"));
        format!(
            "{compared}{valid} of {cells} cells are valid.{}",
            bias.replace('`', "")
        )
    }
}

/// What a reason against the numbers begins with.
const REASON: &str = "Reason: ";

/// What sections and pictures are made of.
struct Parts<'a> {
    hypotheses: Vec<Hypothesis<'a>>,
    settings: Vec<Setting<'a>>,
    shown: Shown,
}

impl<'a> Parts<'a> {
    fn of(report: &'a SuiteReport) -> Parts<'a> {
        let suite = &report.suite;
        Parts {
            hypotheses: hypotheses(suite),
            settings: settings(suite),
            shown: shown(suite),
        }
    }

    /// All sections, validity first.
    fn sections(&self, report: &SuiteReport, detail: Detail) -> Vec<Section> {
        let suite = &report.suite;
        let mut first = validity::section(suite, &report.validity, &self.settings);
        let reasons = report.validity.reasons.iter();
        let at = first.text.len().min(1);
        let reasons = reasons.map(|reason| format!("{REASON}{reason}."));
        first.text.splice(at..at, reasons);
        let mut all = vec![first, sections::question(suite)];
        all.push(setup::section(suite, &self.settings, detail));
        all.extend(sections::gains(suite, &self.hypotheses, detail));
        let mut verdicts = verdicts::section(suite, &self.hypotheses, detail);
        if detail == Detail::Brief {
            let more = "Maps, pictures, reasons and every cell are in report.md and report.html.";
            verdicts.text.push(more.to_owned());
            all.push(verdicts);
            return all;
        }
        all.push(verdicts);
        all.extend(pooled::section(suite, &self.hypotheses));
        all.push(maps::maps(&self.settings, &self.shown));
        all.extend(fronts::section(&self.fronts()));
        let figures = quantiles::figures(&self.settings, &self.shown).len();
        all.push(quantiles::section(figures));
        all.push(sections::cells(suite, &self.settings, &self.shown));
        all.push(words::section());
        all
    }

    fn fronts(&self) -> Vec<Front<'_>> {
        fronts::fronts(&self.settings, &self.shown)
    }

    /// A section of the page, with its pictures.
    fn on_page(&self, section: &Section) -> HtmlSection {
        match section.key {
            "verdicts" => html::interleaved(section, &verdicts::figures(&self.hypotheses)),
            "front" => {
                let figures = fronts::figures(&self.fronts()).into_iter();
                let figures: Vec<Vec<Figure>> = figures.map(Vec::from_iter).collect();
                html::interleaved(section, &figures)
            }
            "maps" => {
                let mut page = html::html_section(section, &mut Vec::new());
                if !page.blocks.is_empty() {
                    page.blocks.insert(0, maps::steps());
                }
                page
            }
            "distributions" => {
                let figures = quantiles::figures(&self.settings, &self.shown).into_iter();
                let mut figures = figures.map(|figure| (section.key, figure)).collect();
                html::html_section(section, &mut figures)
            }
            _ => html::html_section(section, &mut Vec::new()),
        }
    }
}

/// Sections in which the first use of each term leads to its meaning.
fn linked(sections: impl Iterator<Item = HtmlSection>) -> Vec<HtmlSection> {
    let mut linker = Linker::new();
    let mut linked: Vec<HtmlSection> = sections.collect();
    for section in &mut linked {
        for line in section.points.iter_mut().chain(&mut section.text) {
            *line = linker.link(line);
        }
    }
    linked
}
