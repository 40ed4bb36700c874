//! What is bought with what: first tokens against gaps, a front for each condition.

use super::front::{Point, Standing, standings};
use super::grid::{Attributes, Grid, parts};
use super::measure::Measure;
use super::settings::{Over, Setting, Shown, conditions, few, samples};
use super::unfit::{unfit, warnings};
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
    /// How the points are called and coloured.
    pub(super) legend: Legend,
    /// What is to be known of the latencies' samples.
    few: String,
    /// Why some of them are not judged.
    warnings: Vec<String>,
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

/// How the points of a picture are told apart: those of one group have one colour, and each has a
/// short label.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Legend {
    /// Label of each point.
    pub(super) labels: Vec<String>,
    /// Group of each point.
    pub(super) groups: Vec<usize>,
    /// What each group is; empty when there is one only.
    pub(super) names: Vec<String>,
}

impl Legend {
    /// Of arms: the attribute with most levels makes the labels, all others that vary the groups,
    /// whose initials stand before a label.
    fn of(arms: &[&str]) -> Legend {
        let things: Vec<Attributes> = arms.iter().map(|arm| parts("arm", arm)).collect();
        let grid = Grid::of(&things);
        let groups: Vec<usize> = grid.places.iter().map(|(row, _)| *row).collect();
        let short: Vec<String> = grid.rows.iter().map(|row| initials(row)).collect();
        let alone = grid.rows.len() < 2;
        let label = |&(row, column): &(usize, usize)| {
            let column = &grid.columns[column];
            let level = column.rsplit('=').next().unwrap_or_default();
            match alone {
                true => level.to_owned(),
                false => format!("{} {level}", short[row]),
            }
        };
        let named = grid.rows.iter().zip(&short);
        let names = named.map(|(row, short)| format!("{short}: {row}"));
        Legend {
            labels: grid.places.iter().map(label).collect(),
            groups,
            names: if alone { Vec::new() } else { names.collect() },
        }
    }
}

/// First letters of the words of all levels: "policy=token_budget" is "tb".
fn initials(row: &str) -> String {
    let levels = row
        .split(", ")
        .map(|part| part.rsplit('=').next().unwrap_or(part));
    let words = levels.flat_map(|level| level.split(['_', '-', ' ']));
    words.filter_map(|word| word.chars().next()).collect()
}

/// The pairs of latencies: a p99 of gaps says how often they are long, the largest how long. A
/// stall that is rarer than one gap in a hundred is in the largest alone, so that comes first. Of
/// first tokens the median is taken where a cell has too few for a p99.
fn axes(settings: &[Setting<'_>], shown: &Shown) -> [(Measure, Measure); 2] {
    let gap = |figure: &str| Measure::of_class(figure, shown.gap_class.as_deref());
    let of_ttft = |figure: &str| Measure::of_class(figure, shown.ttft_class.as_deref());
    let p99 = of_ttft("ttft_ms.p99");
    let enough = samples(settings.iter(), &p99).zip(p99.samples_needed());
    let ttft = match enough {
        Some(((least, _), needed)) if least >= needed => p99,
        _ => of_ttft("ttft_ms.p50"),
    };
    [
        (gap("event_gap_ms.max"), ttft.clone()),
        (gap("itl_ms.p99"), ttft),
    ]
}

/// The fronts of all conditions, for each pair of latencies; none of a pair when no condition has
/// two arms with both.
pub(super) fn fronts<'a>(settings: &'a [Setting<'_>], shown: &Shown) -> Vec<Front<'a>> {
    let mut all = Vec::new();
    for (x, y) in axes(settings, shown) {
        let of = |condition: &'a str| {
            let own = || settings.iter().filter(|s| s.condition == condition);
            let point = |s: &Setting<'_>| {
                let (over_x, over_y) = (s.over(&x), s.over(&y));
                Point {
                    arm: s.arm.to_owned(),
                    unfit: unfit(s, &x).or_else(|| unfit(s, &y)),
                    x: over_x,
                    y: over_y,
                }
            };
            let points: Vec<Point> = own().map(point).collect();
            let arms: Vec<&str> = points.iter().map(|point| point.arm.as_str()).collect();
            Front {
                condition,
                standings: standings(&points),
                legend: Legend::of(&arms),
                points,
                few: format!("{}{}", few(own(), &x), few(own(), &y)),
                warnings: [&x, &y].iter().flat_map(|m| warnings(own(), m)).collect(),
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
        "A row is a setting. \"By the medians\" says whether it is on the front, that is whether \
         no other setting is at least as good in both latencies and better in one; if one is, it \
         is named by its number, with in how many blocks it is so. \"Unbeaten in blocks\" counts \
         the blocks in which no other setting beats it: all arms of a block had the same requests."
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
        "by the medians".to_owned(),
        format!("{}{}", x.words(), x.unit()),
        format!("{}{}", y.words(), y.unit()),
        "unbeaten in blocks".to_owned(),
    ];
    let mut table = Table::new(format!("{}{}", front.title(), front.few), 3, &headers);
    for (number, point) in front.points.iter().enumerate() {
        let standing = front.standings[number].as_ref();
        let words = match standing {
            None => "no value".to_owned(),
            Some(standing) => match (standing.unfit, standing.dominated_by) {
                (Some(unfit), _) => unfit.words().to_owned(),
                (None, None) => "on the front".to_owned(),
                (None, Some(by)) => {
                    let (in_blocks, of) = standing.in_blocks;
                    let though = if in_blocks == 0 { "though " } else { "" };
                    format!(
                        "beaten by\u{a0}#{} ({though}in {in_blocks} of {of} blocks)",
                        by + 1
                    )
                }
            },
        };
        let judged = standing.filter(|standing| standing.unfit.is_none());
        let unbeaten = judged.map_or_else(
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
    for warning in &front.warnings {
        table.note(warning);
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
        // Of points that are beaten only the middle is drawn.
        let ends = |of: &dyn Fn(&Point) -> (&Over, f64)| -> Vec<f64> {
            let each = alike().flat_map(|other| other.points.iter().zip(&other.standings));
            each.filter_map(|(point, standing)| Some((point, standing.as_ref()?)))
                .flat_map(|(point, standing)| {
                    let (over, middle) = of(point);
                    let range = over.range().filter(|_| standing.is_on_front());
                    let (low, high) = range.unwrap_or((middle, middle));
                    [low, high]
                })
                .collect()
        };
        let middle = |point: &Point| point.middle().unwrap_or((0.0, 0.0));
        let x = Scale::log(ends(&|point| (&point.x, middle(point).0)));
        let y = Scale::log(ends(&|point| (&point.y, middle(point).1)));
        let id = format!("front{number}");
        figures.push(Some(super::scatter::front(&id, front, x, y)));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_levels_and_colours_the_other_factor() {
        let arms = [
            "chunk=64,policy=token_budget",
            "chunk=128,policy=token_budget",
            "chunk=64,policy=prefill_first",
            "chunk=128,policy=prefill_first",
        ];
        let legend = Legend::of(&arms);
        assert_eq!(legend.labels, ["tb 64", "tb 128", "pf 64", "pf 128"]);
        assert_eq!(legend.groups, [0, 0, 1, 1]);
        let names = ["tb: policy=token_budget", "pf: policy=prefill_first"];
        assert_eq!(legend.names, names);
        let one = Legend::of(&["own,budget=64", "own,budget=128"]);
        assert_eq!(
            (one.labels, one.names),
            (vec!["64".into(), "128".into()], vec![])
        );
        assert_eq!(Legend::of(&["on", "off"]).labels, ["on", "off"]);
    }
}
