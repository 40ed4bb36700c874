//! How things with several attributes lie in a table: which attribute makes the columns, which
//! make the rows, and which are the same for all.

/// Attributes of one thing, by name.
pub(super) type Attributes = Vec<(String, String)>;

/// A table's shape, and where in it each thing lies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Grid {
    /// What the columns are levels of; empty when nothing varies.
    pub(super) column: String,
    /// Headings of the columns.
    pub(super) columns: Vec<String>,
    /// Headings of the rows; one that is empty when only the columns vary.
    pub(super) rows: Vec<String>,
    /// What is the same for all.
    pub(super) constant: String,
    /// Row and column of each thing.
    pub(super) places: Vec<(usize, usize)>,
}

/// What stands for an attribute that a thing has not.
pub(super) const NONE: &str = "–";

/// What the name of a factor begins with whose level is that of the baseline.
pub(super) const AGAINST: &str = "against ";

/// Parts of a name: `own,budget=64` is an arm `own` with the budget 64. `what` is the attribute of
/// parts without a name of their own.
pub(super) fn parts(what: &str, name: &str) -> Attributes {
    let parts = name.split(',').filter(|part| !part.is_empty());
    let part = |part: &str| match part.split_once('=') {
        Some((factor, level)) => (factor.to_owned(), level.to_owned()),
        None => (what.to_owned(), part.to_owned()),
    };
    parts.map(part).collect()
}

impl Grid {
    /// Of things in the order that rows and columns shall have; levels that are numbers are
    /// ordered by size. The attribute with most levels makes the columns, the first of several.
    pub(super) fn of(things: &[Attributes]) -> Grid {
        let names = names(things);
        let levels: Vec<(&str, Vec<&str>)> = names
            .iter()
            .map(|name| (*name, levels(things, name)))
            .collect();
        let constant = levels.iter().filter(|(_, levels)| levels.len() == 1);
        let constant: Vec<String> = constant.map(|(name, l)| written(name, l[0])).collect();
        let mut varied: Vec<&(&str, Vec<&str>)> = levels
            .iter()
            .filter(|(_, levels)| levels.len() > 1)
            .collect();
        // The first of the longest.
        let longest = varied.iter().map(|(_, levels)| levels.len()).max();
        let column = varied
            .iter()
            .position(|(_, levels)| Some(levels.len()) == longest)
            .map(|at| varied.remove(at));
        let mut keys: Vec<(Vec<usize>, String)> = Vec::new();
        let of_row = |thing: &Attributes| {
            let rank = |(name, levels): &&(&str, Vec<&str>)| {
                let level = level(thing, name);
                levels.iter().position(|l| *l == level).unwrap_or(0)
            };
            let written = |(name, _): &&(&str, Vec<&str>)| written(name, level(thing, name));
            let label: Vec<String> = varied.iter().map(written).collect();
            (varied.iter().map(rank).collect(), label.join(", "))
        };
        for thing in things {
            let row = of_row(thing);
            if !keys.contains(&row) {
                keys.push(row);
            }
        }
        keys.sort();
        let place = |thing: &Attributes| {
            let row = of_row(thing);
            let row = keys.iter().position(|key| *key == row).unwrap_or(0);
            let column = column.map_or(0, |(name, levels)| {
                let level = level(thing, name);
                levels.iter().position(|l| *l == level).unwrap_or(0)
            });
            (row, column)
        };
        Grid {
            column: column.map_or_else(String::new, |(name, _)| (*name).to_owned()),
            columns: column.map_or_else(
                || vec![String::new()],
                |(name, levels)| levels.iter().map(|level| written(name, level)).collect(),
            ),
            constant: constant.join(", "),
            places: things.iter().map(place).collect(),
            rows: keys.into_iter().map(|(_, label)| label).collect(),
        }
    }

    /// What the heading of the rows is called, when only the columns vary.
    pub(super) fn row_heading(&self, row: usize, otherwise: &str) -> String {
        match self.rows.get(row).map(String::as_str) {
            None | Some("") => otherwise.to_owned(),
            Some(label) => label.to_owned(),
        }
    }
}

/// An attribute as it is written in a name.
pub(super) fn written(name: &str, level: &str) -> String {
    match name {
        "arm" | "condition" => level.to_owned(),
        name => format!("{name}={level}"),
    }
}

pub(super) fn level<'a>(thing: &'a Attributes, name: &str) -> &'a str {
    let found = thing.iter().find(|(own, _)| own == name);
    found.map_or(NONE, |(_, level)| level)
}

/// The levels of an attribute: numbers by size, then others as they come; that a thing has none
/// comes first.
pub(super) fn levels<'a>(things: &'a [Attributes], name: &str) -> Vec<&'a str> {
    let mut levels: Vec<&str> = Vec::new();
    for thing in things {
        let level = level(thing, name);
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    let rank = |level: &&str| match level.parse::<f64>() {
        _ if *level == NONE => (0, 0.0),
        Ok(value) if value.is_finite() => (1, value),
        _ => (2, 0.0),
    };
    levels.sort_by(|a, b| {
        let ((kind, value), (other_kind, other)) = (rank(a), rank(b));
        kind.cmp(&other_kind).then(value.total_cmp(&other))
    });
    levels
}

/// Numbers of the things in the order of their levels, the attribute that comes first deciding
/// first.
pub(super) fn ordered(things: &[Attributes]) -> Vec<usize> {
    let names = names(things);
    let levels: Vec<Vec<&str>> = names.iter().map(|name| levels(things, name)).collect();
    let key = |thing: &Attributes| -> Vec<Option<usize>> {
        let each = names.iter().zip(&levels);
        let rank = |(name, levels): (&&str, &Vec<&str>)| {
            let level = level(thing, name);
            levels.iter().position(|own| *own == level)
        };
        each.map(rank).collect()
    };
    let mut order: Vec<usize> = (0..things.len()).collect();
    order.sort_by_key(|&i| key(&things[i]));
    order
}

/// Names of the attributes as they come.
pub(super) fn names(things: &[Attributes]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in things.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing(arm: &str, condition: &str) -> Attributes {
        let mut all = parts("arm", arm);
        all.extend(parts("condition", condition));
        all
    }

    #[test]
    fn the_attribute_with_most_levels_makes_the_columns_in_the_order_of_numbers() {
        let mut things = Vec::new();
        for load in ["rate=8", "rate=2"] {
            for budget in [1024, 64, 256] {
                things.push(thing(&format!("own,budget={budget}"), load));
            }
        }
        let grid = Grid::of(&things);
        assert_eq!(grid.column, "budget");
        assert_eq!(grid.columns, ["budget=64", "budget=256", "budget=1024"]);
        assert_eq!(grid.rows, ["rate=2", "rate=8"]);
        assert_eq!(grid.constant, "own");
        let expected = [(1, 2), (1, 0), (1, 1), (0, 2), (0, 0), (0, 1)];
        assert_eq!(grid.places, expected);
    }

    #[test]
    fn numbers_come_by_size_and_words_behind_them() {
        let arms = [
            "chunk=whole,p=b",
            "chunk=128,p=b",
            "chunk=64,p=a",
            "chunk=64,p=b",
        ];
        let things: Vec<Attributes> = arms.map(|arm| parts("arm", arm)).to_vec();
        // Policies as they come: b before a.
        assert_eq!(ordered(&things), [3, 2, 1, 0]);
        let grid = Grid::of(&things);
        assert_eq!(grid.columns, ["chunk=64", "chunk=128", "chunk=whole"]);
        assert_eq!(grid.rows, ["p=b", "p=a"]);
    }

    #[test]
    fn one_factor_nested_factors_and_none() {
        let grid = Grid::of(&[thing("on", ""), thing("off", "")]);
        assert_eq!(
            (&grid.columns[..], &grid.rows[..]),
            (
                &["on".to_owned(), "off".to_owned()][..],
                &[String::new()][..]
            )
        );
        assert_eq!(grid.row_heading(0, "all"), "all");
        // A block size exists only where the cache is on.
        let nested = [
            thing("cache=off", ""),
            thing("cache=on,size=16", ""),
            thing("cache=on,size=32", ""),
        ];
        let grid = Grid::of(&nested);
        assert_eq!(grid.columns, ["size=–", "size=16", "size=32"]);
        assert_eq!(grid.rows, ["cache=off", "cache=on"]);
        assert_eq!(grid.places, [(0, 0), (1, 1), (1, 2)]);
        let single = Grid::of(&[thing("own", "")]);
        assert_eq!((single.columns.len(), single.rows.len()), (1, 1));
        assert_eq!(single.places, [(0, 0)]);
        assert_eq!(Grid::of(&[]).places, []);
    }
}
