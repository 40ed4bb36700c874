//! What is bought with what: first tokens against gaps, a front for each condition.

use super::front::{Point, Standing, standings};
use super::measure::Measure;
use super::settings::{Setting, Shown, conditions, few};
use crate::format::ABSENT;
use crate::plots::Figure;
use crate::sections::Section;
use crate::svg::scale::Scale;
use crate::table::Table;

/// Conditions whose fronts are drawn; the tables have all.
const DRAWN: usize = 6;

/// The points of one condition on two latencies.
pub(super) struct Front<'a> {
    pub(super) condition: &'a str,
    /// Horizontal latency.
    pub(super) x: Measure,
    /// Vertical latency.
    pub(super) y: Measure,
    pub(super) points: Vec<Point>,
    pub(super) standings: Vec<Option<Standing>>,
    /// What is to be known of the latencies' samples.
    few: String,
}

impl Front<'_> {
    /// What it shows.
    pub(super) fn title(&self) -> String {
        let at = match self.condition {
            "" => String::new(),
            name => format!(" at {name}"),
        };
        format!("{} against {}{at}", self.y.words(), self.x.words())
    }
}

/// The pairs of latencies: a p99 of gaps says how often they are long, the largest how long. A
/// stall that is rarer than one gap in a hundred is in the second alone.
fn axes(shown: &Shown) -> [(Measure, Measure); 2] {
    let gap = |figure: &str| Measure::of_class(figure, shown.gap_class.as_deref());
    let ttft = Measure::of_class("ttft_ms.p99", shown.ttft_class.as_deref());
    [
        (gap("itl_ms.p99"), ttft.clone()),
        (gap("event_gap_ms.max"), ttft),
    ]
}

/// The fronts of all conditions, for each pair of latencies; none of a pair when no condition has
/// two arms with both.
pub(super) fn fronts<'a>(settings: &'a [Setting<'_>], shown: &Shown) -> Vec<Front<'a>> {
    let mut all = Vec::new();
    for (x, y) in axes(shown) {
        let of = |condition: &'a str| {
            let own = || settings.iter().filter(|s| s.condition == condition);
            let point = |s: &Setting<'_>| Point {
                arm: s.arm.to_owned(),
                x: s.over(&x),
                y: s.over(&y),
            };
            let points: Vec<Point> = own().map(point).collect();
            Front {
                condition,
                standings: standings(&points),
                points,
                few: format!("{}{}", few(own(), &x), few(own(), &y)),
                x: x.clone(),
                y: y.clone(),
            }
        };
        let fronts: Vec<Front<'a>> = conditions(settings).into_iter().map(of).collect();
        let known = |front: &Front<'_>| front.standings.iter().flatten().count();
        if fronts.iter().any(|front| known(front) > 1) {
            all.extend(fronts);
        }
    }
    all
}

/// The section of the fronts.
pub(super) fn section(fronts: &[Front<'_>]) -> Option<Section> {
    if fronts.is_empty() {
        return None;
    }
    let mut section = Section::new("front", "What is bought with what");
    section.text.push(
        "A point is a setting. Whether it is on the front is said of the medians; how sure that \
         is, of the blocks one by one: all arms of a block had the same requests. ITL p99 does not \
         see stalls that are rarer than one gap in a hundred, so the longest gap stands beside it."
            .to_owned(),
    );
    section.tables.extend(fronts.iter().map(table));
    Some(section)
}

fn table(front: &Front<'_>) -> Table {
    let (x, y) = (&front.x, &front.y);
    let headers = [
        "#".to_owned(),
        "arm".to_owned(),
        "by the medians (in blocks)".to_owned(),
        format!("{}{}", x.words(), x.unit()),
        format!("{}{}", y.words(), y.unit()),
        "unbeaten in blocks".to_owned(),
    ];
    let mut table = Table::new(format!("{}{}", front.title(), front.few), 3, &headers);
    for (number, point) in front.points.iter().enumerate() {
        let standing = front.standings[number].as_ref();
        let words = standing.map_or_else(
            || "no value".to_owned(),
            |standing| match standing.dominated_by {
                None => "on the front".to_owned(),
                Some(by) => {
                    let (in_blocks, of) = standing.in_blocks;
                    format!("beaten by {} in {in_blocks} of {of}", by + 1).replace(' ', "\u{a0}")
                }
            },
        );
        let unbeaten = standing.map_or_else(
            || ABSENT.to_owned(),
            |standing| format!("{} of {}", standing.on_front.0, standing.on_front.1),
        );
        table.push(vec![
            (number + 1).to_string(),
            point.arm.clone(),
            words,
            point.x.text(x),
            point.y.text(y),
            unbeaten,
        ]);
    }
    table
}

/// The picture of each front, those of one pair of latencies on the same axes; beyond some there
/// are tables only.
pub(super) fn figures(fronts: &[Front<'_>]) -> Vec<Option<Figure>> {
    let mut figures = Vec::new();
    for (number, front) in fronts.iter().enumerate() {
        let alike = || fronts.iter().filter(|other| other.x == front.x);
        let before = fronts[..number].iter().filter(|other| other.x == front.x);
        if before.count() >= DRAWN {
            figures.push(None);
            continue;
        }
        let points = || alike().flat_map(|other| &other.points);
        let both = |range: Option<(f64, f64)>| {
            let ends = range.into_iter();
            ends.flat_map(|(low, high)| [low, high])
        };
        let x = Scale::log(points().flat_map(|point| both(point.x.range())));
        let y = Scale::log(points().flat_map(|point| both(point.y.range())));
        let id = format!("front{number}");
        figures.push(Some(super::pictures::front(&id, front, x, y)));
    }
    figures
}
