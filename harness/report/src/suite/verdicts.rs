//! Every comparison with its statistics, and why its verdict is what it is.

use super::gains::{Hypothesis, Placed};
use super::pictures::{self, Row};
use super::read::{Comparison, SuiteDir};
use super::spoken::capital;
use crate::format::ABSENT;
use crate::plots::Figure;
use crate::sections::{Detail, Section, p_value};
use crate::table::Table;

/// The section of the verdicts.
pub(super) fn section(suite: &SuiteDir, hypotheses: &[Hypothesis<'_>], detail: Detail) -> Section {
    let mut section = Section::new("verdicts", "Verdicts");
    let comparisons = &suite.file.comparisons;
    if comparisons.is_empty() {
        let text = "The suite has no hypothesis, so nothing is compared and nothing is claimed.";
        section.text.push(text.to_owned());
        return section;
    }
    let (alpha, n) = (suite.file.alpha, comparisons.len());
    let confidence = 100.0 * (1.0 - alpha);
    let valid = match suite.file.stop.as_str() {
        "sequential" => " that are valid at every block",
        "spending" => " that are valid at its planned looks together",
        _ => "",
    };
    section.text.push(format!(
        "Better and worse need a Holm p below {alpha}, an interval without \"no change\" and a \
         change beyond the margin, and are by the figure's own good direction. Holm p is adjusted \
         for all {n} comparisons of the suite; the intervals ({confidence} %{valid}) are each \
         comparison's own, so that one can exclude no change while Holm over {n} does not: such a \
         change is seen, not claimed."
    ));
    section.text.push(
        "Baseline and candidate are medians over the paired blocks only, so the maps, which have \
         every valid block, may show others. The change is the mean over pairs of cells of one \
         block (geometric for ratios), and not the quotient of the medians."
            .to_owned(),
    );
    let groups = groups(hypotheses);
    section
        .tables
        .extend(groups.iter().map(|group| group.table(detail)));
    let few = if n == 1 {
        "1 comparison"
    } else {
        &format!("All {n} comparisons")
    };
    section.folded = Some(format!("{few}, with reasons and a mark for each block"));
    section
}

/// The pictures of the tables, in their order.
pub(super) fn figures(hypotheses: &[Hypothesis<'_>]) -> Vec<Vec<Figure>> {
    let groups = groups(hypotheses);
    let each = groups.iter().enumerate();
    each.map(|(number, group)| group.figures(number)).collect()
}

/// What makes one table: a hypothesis with its comparisons, or all that have only one.
enum Group<'a> {
    One(&'a Hypothesis<'a>),
    Singles(Vec<&'a Hypothesis<'a>>),
}

/// Hypotheses in their order; those with one comparison stand together where the first of them is.
fn groups<'a>(hypotheses: &'a [Hypothesis<'a>]) -> Vec<Group<'a>> {
    let single = |one: &&Hypothesis<'_>| one.placed.len() == 1;
    let singles: Vec<&Hypothesis<'_>> = hypotheses.iter().filter(single).collect();
    let mut groups = Vec::new();
    let mut taken = singles.len() < 2;
    for hypothesis in hypotheses {
        if singles.len() < 2 || !single(&hypothesis) {
            groups.push(Group::One(hypothesis));
        } else if !taken {
            groups.push(Group::Singles(singles.clone()));
            taken = true;
        }
    }
    groups
}

impl Group<'_> {
    fn comparisons(&self) -> Vec<&Comparison> {
        match self {
            Group::One(hypothesis) => hypothesis.placed.iter().map(|placed| placed.one).collect(),
            Group::Singles(all) => all.iter().map(|one| one.placed[0].one).collect(),
        }
    }

    fn caption(&self) -> String {
        match self {
            Group::One(hypothesis) => format!(
                "{}: {} ({})",
                capital(hypothesis.name),
                hypothesis.measure().words(),
                hypothesis.constant
            ),
            Group::Singles(_) => "Hypotheses with one comparison each".to_owned(),
        }
    }

    fn labels(&self) -> Vec<String> {
        let label = |placed: &Placed<'_>| match placed.whole_label() {
            label if label.is_empty() => placed.one.arms(),
            label => label,
        };
        match self {
            Group::One(hypothesis) => hypothesis.placed.iter().map(label).collect(),
            Group::Singles(all) => all
                .iter()
                .map(|one| {
                    let (name, figure) = (capital(one.name), one.measure().words());
                    format!("{name}: {figure} ({})", one.constant)
                })
                .collect(),
        }
    }

    fn table(&self, detail: Detail) -> Table {
        let all = self.comparisons();
        let reasons = Reasons::of(&all);
        let expected = all.iter().any(|one| expected(one) != ABSENT);
        let left_out = all.iter().any(|one| !one.left_out.is_empty());
        let columns = [
            (true, "setting"),
            (true, "verdict"),
            (expected, "expected"),
            (true, "pairs"),
            (left_out, "left out"),
            (true, "baseline"),
            (true, "candidate"),
            (true, "change [interval]"),
            (true, "Holm p"),
            (reasons.numbered(), "why"),
        ];
        let shown = columns.iter().filter(|(shown, _)| *shown);
        let headers: Vec<&str> = shown.map(|(_, header)| *header).collect();
        let mut table = Table::new(self.caption(), 2 + usize::from(expected), &headers);
        if matches!(self, Group::Singles(_)) {
            table.kind = "wide";
        }
        for (one, label) in all.iter().zip(self.labels()) {
            let mut row = row(one, label);
            if left_out {
                row.insert(3, one.left_out.len().to_string());
            }
            if expected {
                row.insert(2, self::expected(one));
            }
            if reasons.numbered() {
                row.push(reasons.number(one));
            }
            table.push(row);
        }
        let mut notes = reasons.notes();
        if detail == Detail::Full {
            notes.extend(left_out_notes(&all));
        }
        notes.iter().for_each(|note| table.note(note));
        table
    }

    fn figures(&self, number: usize) -> Vec<Figure> {
        let id = |part: usize| format!("forest{number}-{part}");
        match self {
            Group::One(hypothesis) => {
                let rows = hypothesis.placed.iter().map(|placed| Row {
                    group: placed.group.clone(),
                    label: match (placed.label.as_str(), placed.group.as_str()) {
                        ("", "") => placed.one.arms(),
                        ("", _) => "change".to_owned(),
                        (label, _) => label.to_owned(),
                    },
                    one: placed.one,
                });
                let title = format!("Change by block: {}", hypothesis.name);
                let rows: Vec<Row<'_>> = rows.collect();
                let picture = pictures::forest(&id(0), &title, &rows, &hypothesis.constant);
                picture.into_iter().collect()
            }
            // Ratios and differences have no axis in common.
            Group::Singles(all) => [("ratio", "ratios"), ("difference", "differences")]
                .iter()
                .enumerate()
                .filter_map(|(part, (scale, words))| {
                    let own = all.iter().filter(|one| one.placed[0].one.scale == *scale);
                    let mut rows: Vec<Row<'_>> = own.map(|one| single_row(one)).collect();
                    let order = first_places(&rows);
                    rows.sort_by_key(|row| order.iter().position(|group| *group == row.group));
                    let title = format!("Change by block, {words}");
                    let what = "of several figures; ↓ less is better, ↑ more is better";
                    pictures::forest(&id(part), &title, &rows, what)
                })
                .collect(),
        }
    }
}

fn single_row<'a>(hypothesis: &'a Hypothesis<'a>) -> Row<'a> {
    let measure = hypothesis.measure();
    let arrow = if measure.more_is_better() {
        "↑"
    } else {
        "↓"
    };
    let one = hypothesis.placed[0].one;
    let at = match one.condition.as_str() {
        "" => String::new(),
        condition => format!(" at {condition}"),
    };
    Row {
        group: format!("{}{at}", one.arms()),
        label: format!("{} {arrow}", measure.words()),
        one,
    }
}

fn first_places(rows: &[Row<'_>]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for row in rows {
        if !groups.contains(&row.group) {
            groups.push(row.group.clone());
        }
    }
    groups
}

fn expected(one: &Comparison) -> String {
    match (one.as_expected, one.expect.as_deref()) {
        (_, None) => ABSENT.to_owned(),
        (Some(true), Some(expect)) => format!("{expect}: yes"),
        (Some(false), Some(expect)) => format!("{expect}: NO"),
        (None, Some(expect)) => format!("{expect}: open"),
    }
}

/// The columns that every table has.
fn row(one: &Comparison, label: String) -> Vec<String> {
    let measure = one.measure();
    let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| measure.shown(v));
    let p = one.p.map(|_| p_value(one.holm_p));
    vec![
        label,
        match one.seen {
            true => "seen, not claimed".to_owned(),
            false => one.verdict.clone(),
        },
        one.pairs.to_string(),
        value(one.baseline_median),
        value(one.candidate_median),
        one.change_text(),
        p.unwrap_or_else(|| ABSENT.to_owned()),
    ]
}

/// Why the verdicts of a table are what they are; a reason that repeats stands once.
struct Reasons(Vec<String>);

impl Reasons {
    fn of(all: &[&Comparison]) -> Reasons {
        let mut reasons: Vec<String> = Vec::new();
        for one in all {
            let why = why(one);
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        Reasons(reasons)
    }

    /// Whether rows have to say which reason is theirs.
    fn numbered(&self) -> bool {
        self.0.len() > 1
    }

    fn number(&self, one: &Comparison) -> String {
        let own = why(one);
        let at = self.0.iter().position(|reason| *reason == own);
        at.map_or_else(|| ABSENT.to_owned(), |at| (at + 1).to_string())
    }

    fn notes(&self) -> Vec<String> {
        let each = self.0.iter().enumerate();
        each.map(|(i, reason)| match self.numbered() {
            true => format!("Why {}: {reason}.", i + 1),
            false => format!("Why: {reason}."),
        })
        .collect()
    }
}

/// The reason of a verdict: what is seen and not claimed is so for one reason only.
fn why(one: &Comparison) -> String {
    match one.seen {
        true => "the interval excludes no change and the change is beyond the margin, but the \
                 Holm p over all comparisons of the suite does not confirm it"
            .to_owned(),
        false => one.why.clone(),
    }
}

/// Pairs that were left out, those together that differ in numbers only: which arm, in which
/// blocks, why.
fn left_out_notes(all: &[&Comparison]) -> Vec<String> {
    let kind = |reason: &str| reason.replace(|c: char| c.is_ascii_digit(), "");
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for one in all {
        for left_out in &one.left_out {
            let (block, reason) = left_out.split_once(": ").unwrap_or(("", left_out));
            let reason = reason.replacen("the baseline", &one.baseline, 1).replacen(
                "the candidate",
                &one.candidate,
                1,
            );
            let at = match one.condition.as_str() {
                "" => block.to_owned(),
                condition => format!("{block} at {condition}"),
            };
            let own = |(known, _): &&mut (String, Vec<String>)| kind(known) == kind(&reason);
            match kinds.iter_mut().find(own) {
                Some((_, blocks)) if blocks.contains(&at) => {}
                Some((_, blocks)) => blocks.push(at),
                None => kinds.push((reason, vec![at])),
            }
        }
    }
    let told = |(reason, blocks): &(String, Vec<String>)| {
        let first = if blocks.len() > 1 { " (the first)" } else { "" };
        format!("Left out, {}: {reason}{first}.", blocks.join(", "))
    };
    kinds.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_pairs_that_are_alike_stand_once() {
        let one = |blocks: [usize; 2]| Comparison {
            candidate: "split".to_owned(),
            left_out: blocks
                .map(|block| format!("block {block}: the candidate is not valid: lag {block} ms"))
                .to_vec(),
            ..Comparison::default()
        };
        let (first, second) = (one([0, 3]), one([0, 4]));
        let notes = left_out_notes(&[&first, &second]);
        let expected =
            "Left out, block 0, block 3, block 4: split is not valid: lag 0 ms (the first).";
        assert_eq!(notes, [expected]);
    }

    #[test]
    fn a_reason_that_all_share_needs_no_number() {
        let one = |why: &str| Comparison {
            why: why.to_owned(),
            ..Comparison::default()
        };
        let (a, b) = (one("x"), one("y"));
        assert_eq!(Reasons::of(&[&a, &a]).notes(), ["Why: x."]);
        let both = Reasons::of(&[&a, &b, &a]);
        assert_eq!(both.notes(), ["Why 1: x.", "Why 2: y."]);
        assert_eq!(both.number(&b), "2");
    }
}
