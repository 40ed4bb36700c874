//! Reports of a load run: one endpoint, no comparison.
//!
//! Made from the document and from the rows behind it. The order is that of use: whether the
//! numbers may be used at all, the numbers, where they came from, and at the end each request.

mod collect;
mod numbers;
mod origin;
mod pictures;
mod sections;
mod transfers;
mod waterfall;

pub use collect::Pictures;

use pb_bench::Document;
use pb_record::visible;

use crate::ReportError;
use crate::html::{self, Page};
use crate::table::markdown_safe;
use crate::text::{self, Paint};
use sections::{REASON, headline, receipt, sections, sentence, title, tone};

/// A load run to report.
#[derive(Clone, Copy, Debug)]
pub struct BenchReport<'a> {
    /// Its numbers.
    pub document: &'a Document,
    /// What its pictures and its table of failures are made of.
    pub pictures: &'a Pictures,
    /// What its directory told: cut-off lines, an unfinished run.
    pub notes: &'a [String],
}

impl BenchReport<'_> {
    /// The report for a terminal of `width` columns (at least 40); colours only when asked for.
    pub fn terminal(&self, width: u16, color: bool) -> String {
        let (paint, width) = (Paint { color }, width.max(40));
        let columns = usize::from(width);
        let document = self.document;
        let mut out = text::wrapped(&paint, "1", &title(document), columns);
        out.push_str(&text::wrapped(&paint, "2", &receipt(document), columns));
        out.push('\n');
        let head = format!("{}. {}", headline(document), sentence(document));
        out.push_str(&text::wrapped(
            &paint,
            tone(document).style(),
            &head,
            columns,
        ));
        for section in sections(self) {
            out.push('\n');
            out.push_str(&text::in_terminal(&section, &paint, width));
        }
        out
    }

    /// The report as Markdown (`report.md`).
    pub fn markdown(&self) -> String {
        let document = self.document;
        let mut out = format!("# {}\n\n", markdown_safe(&title(document)));
        out.push_str(&format!("{}\n\n", markdown_safe(&receipt(document))));
        out.push_str(&format!(
            "**{}.** {}\n",
            markdown_safe(headline(document)),
            markdown_safe(&sentence(document))
        ));
        out.push_str(&text::markdown_sections(&sections(self)));
        out
    }

    /// The report as one self-contained HTML page (`report.html`).
    ///
    /// # Errors
    /// [`ReportError::Template`] only.
    pub fn html(&self) -> Result<String, ReportError> {
        let document = self.document;
        let mut figures = pictures::figures(document, self.pictures);
        let mut parts = sections(self);
        // On the page they stand in the panel at the top.
        for section in parts.iter_mut().filter(|section| section.key == "validity") {
            section.text.retain(|line| !line.starts_with(REASON));
        }
        html::page(Page {
            kind: "bench".to_owned(),
            title: visible(&title(document)),
            receipt: visible(&receipt(document)),
            tone: tone(document).class(),
            answer: Vec::new(),
            headline: headline(document).to_owned(),
            sentence: visible(&sentence(document)),
            reasons: document
                .validity
                .reasons
                .iter()
                .map(|r| visible(r))
                .collect(),
            style: html::STYLE,
            contents: false,
            sections: parts
                .iter()
                .map(|s| html::html_section(s, &mut figures))
                .collect(),
        })
    }
}
