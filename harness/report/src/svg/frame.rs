//! The part that all plots share: axes with ticks, labels and a legend.

use super::scale::{Scale, tick_label};
use super::{Anchor, Svg};

/// Room for the labels around the plotted area, in pixels.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 42.0;

/// A plotted area inside a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Horizontal axis.
    pub x: Scale,
    /// Vertical axis; grows upwards.
    pub y: Scale,
    /// Left edge of the plotted area.
    pub left: f64,
    /// Right edge.
    pub right: f64,
    /// Top edge.
    pub top: f64,
    /// Bottom edge.
    pub bottom: f64,
}

impl Frame {
    /// A frame over the whole width of `svg` between the pixel rows `top` and `bottom`; labels
    /// of the horizontal axis take the lowest part.
    pub(crate) fn new(svg: &Svg, top: f64, bottom: f64, x: Scale, y: Scale) -> Frame {
        let (left, right, bottom) = (LEFT, svg.width() - RIGHT, bottom - BOTTOM);
        Frame {
            x: x.over(left, right),
            y: y.over(bottom, top),
            left,
            right,
            top,
            bottom,
        }
    }

    /// Draws grid, ticks and axis labels. Put it before the data, so that data lies on top.
    pub(crate) fn draw(&self, svg: &mut Svg, x_label: &str, y_label: &str) {
        let mut last = f64::NEG_INFINITY;
        for tick in self.x.ticks() {
            let x = self.x.px(tick);
            svg.line("grid", x, self.top, x, self.bottom);
            // Labels that would touch the previous one are left out; their grid line stays.
            if x - last >= 34.0 {
                svg.text(
                    "tick",
                    x,
                    self.bottom + 16.0,
                    Anchor::Middle,
                    &tick_label(tick),
                );
                last = x;
            }
        }
        for tick in self.y.ticks() {
            let y = self.y.px(tick);
            svg.line("grid", self.left, y, self.right, y);
            svg.text(
                "tick",
                self.left - 6.0,
                y + 4.0,
                Anchor::End,
                &tick_label(tick),
            );
        }
        svg.line("axis", self.left, self.bottom, self.right, self.bottom);
        let middle = (self.left + self.right) / 2.0;
        svg.text("label", middle, self.bottom + 34.0, Anchor::Middle, x_label);
        svg.text_up("label", 14.0, (self.top + self.bottom) / 2.0, y_label);
    }

    /// Says in the middle that there is nothing to draw.
    pub(crate) fn empty(&self, svg: &mut Svg, why: &str) {
        let (x, y) = (
            (self.left + self.right) / 2.0,
            (self.top + self.bottom) / 2.0,
        );
        svg.text("label", x, y, Anchor::Middle, why);
    }
}

/// Draws a legend in one line at the pixel row `y`: a swatch of each class with its name. Names
/// are cut so that they never run over each other.
pub(crate) fn legend(svg: &mut Svg, y: f64, entries: &[(String, String)]) {
    let width = (svg.width() - LEFT - RIGHT) / entries.len().max(1) as f64;
    let room = ((width - 28.0) / 6.6).max(4.0) as usize;
    let mut x = LEFT;
    for (class, name) in entries {
        svg.rect(class, x, y - 9.0, 12.0, 10.0);
        let text = shorten(name, room);
        svg.text("tick", x + 17.0, y, Anchor::Start, &text);
        x += (text.chars().count() as f64 * 6.6 + 40.0).min(width);
    }
}

/// At most `room` characters, with an ellipsis for what was cut.
pub(crate) fn shorten(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The style class of the arm with this number; colours repeat after six.
pub(crate) fn arm_class(kind: &str, arm: usize) -> String {
    format!("{kind} a{}", arm % 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_by_characters() {
        assert_eq!(shorten("größer", 6), "größer");
        assert_eq!(shorten("größer", 4), "grö…");
    }

    #[test]
    fn the_frame_maps_corners() {
        let svg = Svg::new("f", 760.0, 300.0, "", "");
        let (x, y) = (Scale::linear([0.0, 1.0]), Scale::linear([0.0, 10.0]));
        let frame = Frame::new(&svg, 20.0, 300.0, x, y);
        assert_eq!((frame.x.px(0.0), frame.x.px(1.0)), (62.0, 744.0));
        assert_eq!((frame.y.px(0.0), frame.y.px(10.0)), (258.0, 20.0));
    }
}
