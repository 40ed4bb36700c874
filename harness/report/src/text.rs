//! The report as text: for a terminal and as Markdown.

use pb_judge::run::RunVerdict;

use crate::sections::{Detail, Section, receipt, sections, title};
use crate::table::{markdown_prose, markdown_safe};
use crate::tone::Tone;

pub(crate) fn terminal(verdict: &RunVerdict, width: u16, color: bool) -> String {
    let paint = Paint { color };
    let columns = usize::from(width);
    let mut text = String::new();
    text.push_str(&wrapped(&paint, "1", &title(verdict), columns));
    text.push_str(&wrapped(&paint, "2", &receipt(verdict), columns));
    text.push('\n');
    let headline = format!("{}. {}", verdict.headline(), verdict.sentence);
    let style = Tone::of(verdict).style();
    text.push_str(&wrapped(&paint, style, &headline, columns));
    for section in sections(verdict, Detail::Brief) {
        text.push('\n');
        text.push_str(&in_terminal(&section, &paint, width));
    }
    text
}

pub(crate) fn in_terminal(section: &Section, paint: &Paint, width: u16) -> String {
    let columns = usize::from(width);
    let mut text = wrapped(paint, "1", &format!("## {}", section.title), columns);
    for point in &section.points {
        let lines = pb_record::wrapped(&format!("- {point}"), columns, 2);
        text.extend(lines.iter().map(|line| format!("{line}\n")));
    }
    for line in &section.text {
        text.push_str(&wrapped(paint, "", line, columns));
    }
    let tables = section.tables.iter().filter(|table| !table.rows.is_empty());
    for (number, table) in tables.enumerate() {
        if number > 0 || !section.text.is_empty() || !section.points.is_empty() {
            text.push('\n');
        }
        let drawn = table.terminal(width);
        // Captions and listed cells are sentences: they wrap, drawn lines fit already.
        let lines = drawn
            .lines()
            .map(|line| match line.chars().count() > columns {
                true => wrapped(paint, "", line, columns),
                false => format!("{line}\n"),
            });
        text.push_str(&paint.words(&lines.collect::<String>()));
    }
    text
}

pub(crate) fn markdown(verdict: &RunVerdict) -> String {
    let mut text = format!("# {}\n\n", markdown_safe(&title(verdict)));
    text.push_str(&format!("{}\n\n", markdown_safe(&receipt(verdict))));
    text.push_str(&format!(
        "**{}.** {}\n",
        markdown_safe(&verdict.headline()),
        markdown_safe(&verdict.sentence)
    ));
    text.push_str(&markdown_sections(&sections(verdict, Detail::Full)));
    text
}

/// Sections as Markdown, each after an empty line.
pub(crate) fn markdown_sections(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        text.push_str(&format!("\n## {}\n", markdown_safe(&section.title)));
        if !section.points.is_empty() {
            let points = section.points.iter();
            let points = points.map(|point| format!("- {}\n", markdown_prose(point)));
            text.push_str(&format!("\n{}", points.collect::<String>()));
        }
        for line in &section.text {
            text.push_str(&format!("\n{}\n", markdown_prose(line)));
        }
        for table in section.tables.iter().filter(|table| !table.rows.is_empty()) {
            text.push_str(&format!("\n{}", table.markdown()));
        }
    }
    text
}

/// Terminal colours, or none.
pub(crate) struct Paint {
    pub(crate) color: bool,
}

impl Paint {
    fn style(&self, code: &str, text: &str) -> String {
        if self.color && !code.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// Colours the conclusions in a drawn table. Done after drawing, so that the width of a cell
    /// is the width of its text.
    fn words(&self, table: &str) -> String {
        if !self.color {
            return table.to_owned();
        }
        let words = [
            (" BROKEN ", "31"),
            (" FAILED ", "31"),
            (" NOT PROVEN ", "31"),
            (" NOT NOTICED ", "31"),
            (" fail (more accurate) ", "31"),
            (" fail ", "31"),
            (" worse ", "31"),
            (" better ", "32"),
            (" rejected ", "32"),
            (" inconclusive ", "33"),
        ];
        let mut painted = table.replace('\n', " \n");
        for (word, code) in words {
            painted = painted.replace(word, &format!(" {} ", self.style(code, word.trim())));
        }
        painted.replace(" \n", "\n")
    }
}

/// Text broken into lines of at most `columns` characters, each styled by itself. Control
/// characters become visible, since some of the text came from a server.
pub(crate) fn wrapped(paint: &Paint, code: &str, text: &str, columns: usize) -> String {
    let lines = pb_record::wrapped(text, columns, 0);
    lines
        .iter()
        .map(|line| format!("{}\n", paint.style(code, line)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_only_when_asked_for() {
        let (plain, colored) = (Paint { color: false }, Paint { color: true });
        assert_eq!(plain.words(" worse \n"), " worse \n");
        assert_eq!(colored.words("x worse\n"), "x \u{1b}[31mworse\u{1b}[0m\n");
        assert_eq!(wrapped(&colored, "1", "hi", 10), "\u{1b}[1mhi\u{1b}[0m\n");
    }
}
