//! A table before it is drawn, so that the terminal, Markdown and HTML show the same cells.

use std::collections::BTreeMap;

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table as Drawn,
    TableStyle, Width,
};

use pb_record::visible;

use crate::format::escape;

/// One line under the header; rows need none between them.
const LINES: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));

/// A table with a caption. Every row has as many cells as there are headers. Nothing in it can
/// drive a terminal: control characters are shown by their codes from the start, so that widths
/// are those of the text as shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// What the table shows, with the units of its numbers.
    pub caption: String,
    /// Column headers.
    pub headers: Vec<String>,
    /// Number of leading columns that hold words; the others hold numbers and align right.
    pub words: usize,
    /// Rows.
    pub rows: Vec<Vec<String>>,
    /// Styles of single cells on the page, by row and column.
    pub classes: BTreeMap<(usize, usize), &'static str>,
    /// Where the first cells of rows lead to: paths below the page's own directory.
    pub links: BTreeMap<usize, String>,
    /// Style of the table on the page.
    pub kind: &'static str,
    /// The last column holds sentences.
    pub wraps_last: bool,
    /// Sentences below the table.
    pub notes: Vec<String>,
    /// Names of rows that the page can lead to.
    pub anchors: BTreeMap<usize, String>,
}

impl Table {
    /// An empty table whose first `words` columns hold words.
    pub(crate) fn new(
        caption: impl Into<String>,
        words: usize,
        headers: &[impl AsRef<str>],
    ) -> Table {
        Table {
            caption: visible(&caption.into()),
            headers: headers.iter().map(|h| visible(h.as_ref())).collect(),
            words,
            ..Table::default()
        }
    }

    /// Whether it has no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends a row.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        assert_eq!(
            row.len(),
            self.headers.len(),
            "a row has one cell for each header"
        );
        self.rows
            .push(row.iter().map(|cell| visible(cell)).collect());
    }

    /// Adds a sentence below the table.
    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(visible(text));
    }

    /// Drawn with lines for a terminal of `width` columns; long cells wrap between words. When
    /// not even single words fit side by side, each row becomes a list of its cells.
    pub(crate) fn terminal(&self, width: u16) -> String {
        let widths = self.widths(width);
        let body = widths.map_or_else(|| self.listed(), |widths| self.drawn(width, &widths));
        let notes = self.notes.iter().map(|note| format!("{note}\n"));
        format!("{}\n{body}\n{}", self.caption, notes.collect::<String>())
    }

    /// Widths with padding. Each column first gets room for its longest word. What is left makes
    /// labels (the first column) whole, up to half of the line; then the cells of the other
    /// columns, those that lack least first, so that what wraps is the long text; then headers.
    /// `None` when not even the words fit.
    fn widths(&self, width: u16) -> Option<Vec<usize>> {
        let whole = |text: &str| text.chars().count();
        // Only plain spaces break: a non-breaking one keeps an interval together.
        let word = |text: &str| text.split(' ').map(whole).max().unwrap_or(0);
        let most = |of: &dyn Fn(&str) -> usize, header: &dyn Fn(&str) -> usize, i: usize| {
            let cells = self.rows.iter().map(|row| of(&row[i]));
            cells.chain([header(&self.headers[i])]).max().unwrap_or(0) + 2
        };
        let columns = 0..self.headers.len();
        let mut widths: Vec<usize> = columns.clone().map(|i| most(&word, &word, i)).collect();
        let mut left = usize::from(width).checked_sub(widths.iter().sum())?;
        let cells: Vec<usize> = columns.clone().map(|i| most(&whole, &word, i)).collect();
        let headers: Vec<usize> = columns.map(|i| most(&whole, &whole, i)).collect();
        for mut wanted in [cells, headers] {
            if let Some(label) = wanted.first_mut() {
                *label = (*label).min(usize::from(width / 2).max(widths[0]));
            }
            let lacks = |i: usize| wanted[i].saturating_sub(widths[i]);
            let mut order: Vec<(bool, usize, usize)> =
                (0..widths.len()).map(|i| (i > 0, lacks(i), i)).collect();
            order.sort_unstable();
            for (_, lack, i) in order {
                let given = lack.min(left);
                widths[i] += given;
                left -= given;
            }
        }
        Some(widths)
    }

    fn drawn(&self, width: u16, widths: &[usize]) -> String {
        let mut drawn = Drawn::new();
        drawn.load_style(LINES);
        drawn
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
        drawn.set_header(
            self.headers
                .iter()
                .enumerate()
                .map(|(i, h)| self.cell(i, h)),
        );
        for row in &self.rows {
            drawn.add_row(row.iter().enumerate().map(|(i, text)| self.cell(i, text)));
        }
        let fixed = |&columns: &usize| {
            ColumnConstraint::Absolute(Width::Fixed(u16::try_from(columns).unwrap_or(width)))
        };
        drawn.set_constraints(widths.iter().map(fixed));
        let text = drawn.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    fn listed(&self) -> String {
        let mut lines = Vec::new();
        for row in &self.rows {
            for (i, (header, text)) in self.headers.iter().zip(row).enumerate() {
                let indent = if i == 0 { "- " } else { "  " };
                lines.push(format!("{indent}{header}: {text}"));
            }
        }
        lines.join("\n")
    }

    /// Whether a column holds numbers.
    fn is_number(&self, column: usize) -> bool {
        let sentence = self.wraps_last && column + 1 == self.headers.len();
        column >= self.words && !sentence
    }

    fn cell(&self, column: usize, text: &str) -> Cell {
        let right = self.is_number(column);
        let alignment = if right {
            CellAlignment::Right
        } else {
            CellAlignment::Left
        };
        Cell::new(text).set_alignment(alignment)
    }

    /// As a Markdown table.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("{}\n\n", markdown_safe(&self.caption));
        text.push_str(&line(
            self.headers.iter().map(|h| markdown_safe(h)).collect(),
        ));
        let rule = |i| if self.is_number(i) { "---:" } else { "---" }.to_owned();
        text.push_str(&line((0..self.headers.len()).map(rule).collect()));
        for (number, row) in self.rows.iter().enumerate() {
            let mut cells: Vec<String> = row.iter().map(|cell| markdown_safe(cell)).collect();
            if let (Some(path), Some(first)) = (self.links.get(&number), cells.first_mut()) {
                *first = format!("[{first}]({})", address(path));
            }
            text.push_str(&line(cells));
        }
        for note in &self.notes {
            text.push_str(&format!("\n{}\n", markdown_safe(note)));
        }
        text
    }

    fn html_cell(&self, row: usize, column: usize, cell: &str) -> String {
        let text = escape(cell);
        if column == 0 {
            let text = match self.links.get(&row) {
                Some(path) => format!("<a href=\"{}\">{text}</a>", address(path)),
                None => text,
            };
            return format!("<th scope=\"row\">{text}</th>");
        }
        let last = column + 1 == self.headers.len();
        let class = match self.classes.get(&(row, column)) {
            Some(class) => class,
            None if self.is_number(column) => "number",
            None if self.wraps_last && last => "sentence",
            None => state_class(cell),
        };
        match class {
            "" => format!("<td>{text}</td>"),
            class => format!("<td class=\"{class}\">{text}</td>"),
        }
    }

    /// As an HTML table in a box that scrolls by itself, so that a narrow window never scrolls
    /// the page sideways. The box can be reached by keyboard. Caption and notes stand outside of
    /// it and wrap with the page.
    pub(crate) fn html(&self) -> String {
        let caption = escape(&self.caption);
        let mut text = format!(
            "<figure class=\"tabled\">\n<figcaption class=\"caption\">{caption}</figcaption>\n\
             <div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n\
             <table{}>\n<thead><tr>",
            match self.kind {
                "" => String::new(),
                kind => format!(" class=\"{kind}\""),
            }
        );
        for (i, header) in self.headers.iter().enumerate() {
            let class = if self.is_number(i) {
                " class=\"number\""
            } else {
                ""
            };
            text.push_str(&format!("<th scope=\"col\"{class}>{}</th>", escape(header)));
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for (number, row) in self.rows.iter().enumerate() {
            text.push_str(&match self.anchors.get(&number) {
                Some(name) => format!("<tr id=\"{}\">", escape(name)),
                None => "<tr>".to_owned(),
            });
            for (i, cell) in row.iter().enumerate() {
                text.push_str(&self.html_cell(number, i, cell));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody>\n</table>\n</div>\n");
        for note in &self.notes {
            text.push_str(&format!("<p class=\"note\">{}</p>\n", escape(note)));
        }
        text.push_str("</figure>\n");
        text
    }
}

/// The class of a cell whose whole text is a conclusion.
fn state_class(cell: &str) -> &'static str {
    match cell {
        "held" | "ok" | "passed" | "pass" | "better" | "rejected" | "proven" | "valid" => "good",
        "BROKEN"
        | "FAILED"
        | "fail"
        | "fail (more accurate)"
        | "worse"
        | "NOT NOTICED"
        | "NOT PROVEN"
        | "void" => "bad",
        "not checked" | "missing" | "unfinished" => "open",
        "inconclusive" => "unsettled",
        _ => "",
    }
}

/// A path as a relative address: what has a meaning in one is written by its codes. The dot in
/// front keeps a name with a colon from being a scheme.
fn address(path: &str) -> String {
    let mut address = "./".to_owned();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                address.push(char::from(byte));
            }
            byte => address.push_str(&format!("%{byte:02X}")),
        }
    }
    address
}

/// Text that Markdown shows as it is, on one line.
pub(crate) fn markdown_safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in visible(text).chars() {
        match character {
            '|' | '*' | '_' | '~' | '`' | '[' | ']' | '\\' => {
                safe.push('\\');
                safe.push(character);
            }
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            c => safe.push(c),
        }
    }
    safe
}

/// As [`markdown_safe`], with what stands between backticks as code, when nothing in it can end the
/// code or act.
pub(crate) fn markdown_prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let harmless = |c: char| c.is_ascii_alphanumeric() || " ._-=,/:{}~".contains(c);
    let code = |part: &str| !part.trim().is_empty() && part.chars().all(harmless);
    if parts.len().is_multiple_of(2) || !parts.iter().skip(1).step_by(2).all(|part| code(part)) {
        return markdown_safe(text);
    }
    let each = parts.iter().enumerate();
    each.map(|(i, part)| match i % 2 {
        0 => markdown_safe(part),
        _ => format!("`{part}`"),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_and_nothing_in_them_acts() {
        let mut table = Table::new("c", 1, &["cell"]);
        table.push(vec!["a".to_owned()]);
        let path = "x:y/a b=\"1\"),~1/report.html".to_owned();
        table.links.insert(0, path);
        let address = "./x%3Ay/a%20b%3D%221%22%29%2C%7E1/report.html";
        assert!(
            table
                .html()
                .contains(&format!("<a href=\"{address}\">a</a>"))
        );
        assert!(table.markdown().contains(&format!("[a]({address})")));
    }

    fn sample() -> Table {
        let mut table = Table::new("Latency in ms", 1, &["arm", "p50"]);
        table.push(vec!["<script>|".into(), "12.3".into()]);
        table
    }

    #[test]
    fn markdown_keeps_its_columns_whatever_the_text() {
        let text = sample().markdown();
        assert_eq!(
            text,
            "Latency in ms\n\n| arm | p50 |\n| --- | ---: |\n| &lt;script&gt;\\| | 12.3 |\n"
        );
    }

    #[test]
    fn code_stays_code_and_nothing_else_does() {
        assert_eq!(
            markdown_prose("see `a_b.p99`, not a_b"),
            "see `a_b.p99`, not a\\_b"
        );
        for text in ["a `b", "`<script>`", "``"] {
            assert_eq!(markdown_prose(text), markdown_safe(text));
        }
    }

    #[test]
    fn html_escapes_and_captions() {
        let text = sample().html();
        let caption = "<figcaption class=\"caption\">Latency in ms</figcaption>";
        assert!(text.contains(caption), "{text}");
        assert!(
            text.contains("<th scope=\"row\">&lt;script&gt;|</th>"),
            "{text}"
        );
        assert!(text.contains("<td class=\"number\">12.3</td>"), "{text}");
    }

    #[test]
    fn notes_stand_below_everywhere() {
        let mut table = sample();
        table.note("1 <b>: why");
        assert!(
            table
                .html()
                .contains("</div>\n<p class=\"note\">1 &lt;b&gt;: why</p>\n</figure>")
        );
        assert!(table.markdown().ends_with("|\n\n1 &lt;b&gt;: why\n"));
        assert!(table.terminal(80).ends_with("12.3\n1 <b>: why\n"));
    }

    #[test]
    fn the_terminal_width_is_kept_and_controls_are_shown() {
        let mut table = Table::new("Checks", 2, &["check", "found"]);
        table.push(vec![
            "x".repeat(20),
            format!("\u{1b}[2J {}", "long words ".repeat(30)),
        ]);
        let text = table.terminal(60);
        assert!(
            text.lines().all(|line| line.chars().count() <= 60),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn long_text_wraps_and_labels_do_not() {
        let mut table = Table::new("Checks", 3, &["check", "state", "found"]);
        let label = "both arms got the same schedule";
        table.push(vec![label.into(), "held".into(), "many words ".repeat(12)]);
        let text = table.terminal(80);
        let row = text.lines().find(|line| line.contains("held")).unwrap();
        assert!(row.contains(label), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        // Four lines of text (132 characters beside a label of 31), no more.
        assert_eq!(text.lines().count(), 3 + 4, "{text}");
    }

    #[test]
    fn rows_become_lists_when_words_do_not_fit() {
        let mut table = Table::new("Wide", 1, &["arm", "p50"]);
        table.push(vec!["a".repeat(30), "1 ms".to_owned()]);
        let want = format!("Wide\n- arm: {}\n  p50: 1 ms\n", "a".repeat(30));
        assert_eq!(table.terminal(30), want);
    }
}
