//! A small SVG writer.
//!
//! A plotting library draws colours into its output; here every mark carries a class instead, and
//! the page's style sheet gives it a colour for light and for dark. It also lets each picture have
//! a title and a description for people who do not see it.

pub(crate) mod frame;
pub(crate) mod labels;
pub(crate) mod scale;

use std::fmt::Write;

use crate::format::escape;

/// An SVG picture under construction. Coordinates are in pixels of the view box.
#[derive(Clone, Debug)]
pub(crate) struct Svg {
    width: f64,
    head: String,
    body: String,
}

/// Where text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Text starts at the point.
    Start,
    /// Text is centred on the point.
    Middle,
    /// Text ends at the point.
    End,
}

impl Svg {
    /// An empty picture. `id` must be unique on the page; title and description are escaped.
    pub(crate) fn new(id: &str, width: f64, height: f64, title: &str, description: &str) -> Svg {
        let head = format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\n\
             <title id=\"{id}-t\">{}</title>\n<desc id=\"{id}-d\">{}</desc>\n",
            number(width),
            number(height),
            escape(title),
            escape(description),
        );
        Svg {
            width,
            head,
            body: String::new(),
        }
    }

    /// Width of the view box.
    pub(crate) fn width(&self) -> f64 {
        self.width
    }

    /// A straight line.
    pub(crate) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let (x1, y1, x2, y2) = (number(x1), number(y1), number(x2), number(y2));
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        ));
    }

    /// A rectangle; negative sizes are taken as nothing.
    pub(crate) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let (width, height) = (number(width.max(0.0)), number(height.max(0.0)));
        let (x, y) = (number(x), number(y));
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
        ));
    }

    /// A dot.
    pub(crate) fn dot(&mut self, class: &str, x: f64, y: f64, radius: f64) {
        let (x, y, radius) = (number(x), number(y), number(radius));
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>"
        ));
    }

    /// A line through points; nothing below two points.
    pub(crate) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() >= 2 {
            let d = path_data(points);
            self.push(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
        }
    }

    /// A filled outline; nothing below three points.
    pub(crate) fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.len() >= 3 {
            let d = path_data(points);
            self.push(format_args!("<path class=\"{class}\" d=\"{d}Z\"/>"));
        }
    }

    /// Many small squares as one path, so that thousands of points stay one element.
    pub(crate) fn marks(&mut self, class: &str, points: &[(f64, f64)], size: f64) {
        if points.is_empty() {
            return;
        }
        let mut d = String::new();
        let (half, side) = (size / 2.0, number(size));
        for &(x, y) in points {
            let (x, y) = (number(x - half), number(y - half));
            let _ = write!(d, "M{x} {y}h{side}v{side}h-{side}z");
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
    }

    /// Text; escaped.
    pub(crate) fn text(&mut self, class: &str, x: f64, y: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (number(x), number(y), escape(text));
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// Text turned a quarter to the left around its centre; escaped.
    pub(crate) fn text_up(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let (x, y, text) = (number(x), number(y), escape(text));
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x} {y})\">{text}</text>"
        ));
    }

    /// The finished picture.
    pub(crate) fn finish(self) -> String {
        format!("{}{}</svg>\n", self.head, self.body)
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }
}

fn path_data(points: &[(f64, f64)]) -> String {
    let mut d = String::with_capacity(points.len() * 10);
    for (i, &(x, y)) in points.iter().enumerate() {
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{letter}{} {}", number(x), number(y));
    }
    d
}

/// A coordinate with at most one decimal: a tenth of a pixel is below what anyone sees.
fn number(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    // Also turns -0 and anything that is no number into 0.
    if rounded == 0.0 || !rounded.is_finite() {
        return "0".to_owned();
    }
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_title_a_description_and_escaped_text() {
        let mut svg = Svg::new("p1", 100.0, 50.0, "T <x>", "D & d");
        svg.text("tick", 1.25, f64::NAN, Anchor::End, "<script>");
        svg.path("line a0", &[(0.0, 0.0), (1.04, 2.06)]);
        svg.path("line a0", &[(0.0, 0.0)]);
        assert_eq!(
            svg.finish(),
            "<svg viewBox=\"0 0 100 50\" role=\"img\" aria-labelledby=\"p1-t p1-d\">\n\
             <title id=\"p1-t\">T &lt;x&gt;</title>\n<desc id=\"p1-d\">D &amp; d</desc>\n\
             <text class=\"tick\" x=\"1.3\" y=\"0\" text-anchor=\"end\">&lt;script&gt;</text>\n\
             <path class=\"line a0\" d=\"M0 0L1 2.1\"/>\n</svg>\n"
        );
    }
}
