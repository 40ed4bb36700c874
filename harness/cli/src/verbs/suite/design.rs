//! From factors and a design to the combinations of levels that are run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use toml::Value;

use super::file::{Design, Side};

/// A level of each factor that the combination has.
pub(crate) type Combination = BTreeMap<String, String>;

/// A factor as the design sees it: what it varies, and its levels in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Levels {
    /// What it varies.
    pub(crate) side: Side,
    /// Names of its levels.
    pub(crate) names: Vec<String>,
}

/// Most combinations of one side: more is a mistake in the file, and would be run for weeks.
const MOST: usize = 256;

/// The combinations of the arms and of the conditions, one empty one where nothing is varied.
///
/// # Errors
/// A factor or level that does not exist, a factor that is used twice or never, one group with
/// factors of both sides, too many combinations.
pub(crate) fn combinations(
    factors: &BTreeMap<String, Levels>,
    design: &Design,
) -> Result<(Vec<Combination>, Vec<Combination>)> {
    let groups = groups(factors, design)?;
    let mut used = BTreeSet::new();
    let mut sides: BTreeMap<Side, Vec<Combination>> = BTreeMap::new();
    for group in groups {
        for factor in &group.factors {
            if !used.insert(factor.clone()) {
                bail!("design: {factor} is there twice; name each factor once");
            }
        }
        let varied: BTreeSet<Side> = group.factors.iter().map(|f| factors[f].side).collect();
        let mut varied = varied.into_iter();
        let side = varied.next().context("design: an empty group")?;
        if varied.next().is_some() {
            bail!(
                "design: {} vary servers and loads in one nest or list; every block has each arm \
                 under the same load, so keep factors of arms and of conditions apart",
                group.factors.into_iter().collect::<Vec<_>>().join(", ")
            );
        }
        let before = sides
            .remove(&side)
            .unwrap_or_else(|| vec![Combination::new()]);
        sides.insert(side, product(&before, &group.rows)?);
    }
    if let Some(factor) = factors.keys().find(|factor| !used.contains(*factor)) {
        bail!("design: {factor} is in no cross, nest or list; name it there, or take it out");
    }
    let mut take = |side| {
        let one = || vec![Combination::new()];
        sides.remove(&side).unwrap_or_else(one)
    };
    Ok((take(Side::Arm), take(Side::Condition)))
}

/// Factors that are combined among themselves in a way of their own.
struct Group {
    factors: BTreeSet<String>,
    rows: Vec<Combination>,
}

fn groups(factors: &BTreeMap<String, Levels>, design: &Design) -> Result<Vec<Group>> {
    let empty = design.cross.is_empty() && design.nest.is_empty() && design.list.is_empty();
    let all: Vec<String> = factors.keys().cloned().collect();
    let crossed = if empty { &all } else { &design.cross };
    let mut groups = Vec::new();
    for factor in crossed {
        groups.push(Group {
            rows: singles(factors, "design.cross", factor)?,
            factors: [factor.clone()].into(),
        });
    }
    for (outer, inner) in &design.nest {
        groups.push(nested(factors, outer, inner)?);
    }
    if !design.list.is_empty() {
        groups.push(listed(factors, &design.list)?);
    }
    Ok(groups)
}

/// One combination for each level of a factor.
fn singles(
    factors: &BTreeMap<String, Levels>,
    key: &str,
    factor: &str,
) -> Result<Vec<Combination>> {
    let levels = &known(factors, key, factor)?.names;
    let single = |level: &String| Combination::from([(factor.to_owned(), level.clone())]);
    Ok(levels.iter().map(single).collect())
}

fn nested(
    factors: &BTreeMap<String, Levels>,
    outer: &str,
    inner: &BTreeMap<String, Vec<String>>,
) -> Result<Group> {
    let key = format!("design.nest.{outer}");
    let levels = &known(factors, "design.nest", outer)?.names;
    if let Some(level) = inner.keys().find(|level| !levels.contains(level)) {
        bail!(
            "{key}: {outer} has no level {level}; it has {}",
            levels.join(", ")
        );
    }
    let (mut rows, mut group) = (Vec::new(), BTreeSet::from([outer.to_owned()]));
    for own in singles(factors, &key, outer)? {
        let mut under = vec![own.clone()];
        for factor in inner.get(&own[outer]).into_iter().flatten() {
            if factor == outer {
                bail!("{key}: {factor} cannot be nested in itself");
            }
            group.insert(factor.clone());
            under = product(&under, &singles(factors, &key, factor)?)?;
        }
        rows.extend(under);
    }
    Ok(Group {
        factors: group,
        rows,
    })
}

fn listed(factors: &BTreeMap<String, Levels>, list: &[BTreeMap<String, Value>]) -> Result<Group> {
    let group: BTreeSet<String> = list.iter().flat_map(|row| row.keys().cloned()).collect();
    let mut rows: Vec<Combination> = Vec::new();
    for (i, row) in list.iter().enumerate() {
        let key = format!("design.list, row {}", i + 1);
        let mut combination = Combination::new();
        for factor in &group {
            let levels = &known(factors, &key, factor)?.names;
            let value = row.get(factor);
            let level = value.map(level_name).transpose()?;
            let Some(level) = level.filter(|level| levels.contains(level)) else {
                bail!(
                    "{key}: give {factor} one of its levels: {}",
                    levels.join(", ")
                );
            };
            combination.insert(factor.clone(), level);
        }
        if rows.contains(&combination) {
            bail!("{key}: it is there already; take it out");
        }
        rows.push(combination);
    }
    if rows.len() > MOST {
        bail!(
            "design.list has {} rows; at most {MOST} can be run",
            rows.len()
        );
    }
    Ok(Group {
        factors: group,
        rows,
    })
}

fn known<'a>(factors: &'a BTreeMap<String, Levels>, key: &str, factor: &str) -> Result<&'a Levels> {
    let names: Vec<&str> = factors.keys().map(String::as_str).collect();
    factors
        .get(factor)
        .with_context(|| format!("{key}: no factor {factor}; there are: {}", names.join(", ")))
}

/// Every one of `left` with every one of `right`.
fn product(left: &[Combination], right: &[Combination]) -> Result<Vec<Combination>> {
    let size = left.len().saturating_mul(right.len());
    if size > MOST {
        bail!("design: {size} combinations; at most {MOST} can be run: nest or list fewer");
    }
    let with = |l: &Combination, r: &Combination| {
        let both = l.iter().chain(r);
        both.map(|(factor, level)| (factor.clone(), level.clone()))
            .collect()
    };
    Ok(left
        .iter()
        .flat_map(|l| right.iter().map(move |r| with(l, r)))
        .collect())
}

/// The name of a level that is written as a value.
///
/// # Errors
/// A list or a table.
pub(crate) fn level_name(value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(on) => on.to_string(),
        other => bail!("{other}: a level is a text, a number, true or false"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors a, b, c ... with so many levels 0, 1, ... each; the last one varies the load.
    fn factors(sizes: &[usize]) -> BTreeMap<String, Levels> {
        let last = sizes.len() - 1;
        let one = |(i, &n): (usize, &usize)| {
            let side = if i == last {
                Side::Condition
            } else {
                Side::Arm
            };
            let names = (0..n).map(|level| level.to_string()).collect();
            (
                char::from(b'a' + i as u8).to_string(),
                Levels { side, names },
            )
        };
        sizes.iter().enumerate().map(one).collect()
    }

    fn design(text: &str) -> Design {
        toml::from_str(text).unwrap()
    }

    /// Every assignment of a level or of nothing to every factor, one after the other, of which
    /// `keep` takes those that a design means.
    fn searched(
        factors: &BTreeMap<String, Levels>,
        side: Side,
        keep: impl Fn(&Combination) -> bool,
    ) -> BTreeSet<Combination> {
        let own: Vec<_> = factors
            .iter()
            .filter(|(_, levels)| levels.side == side)
            .collect();
        let total: usize = own
            .iter()
            .map(|(_, levels)| levels.names.len() + 1)
            .product();
        let mut found = BTreeSet::new();
        for mut code in 0..total {
            let mut combination = Combination::new();
            for (name, levels) in &own {
                let digit = code % (levels.names.len() + 1);
                code /= levels.names.len() + 1;
                if digit > 0 {
                    combination.insert((*name).clone(), levels.names[digit - 1].clone());
                }
            }
            if keep(&combination) {
                found.insert(combination);
            }
        }
        found
    }

    fn found(factors: &BTreeMap<String, Levels>, text: &str) -> [Vec<Combination>; 2] {
        let (arms, conditions) = combinations(factors, &design(text)).unwrap();
        [arms, conditions]
    }

    fn same(found: &[Combination], searched: &BTreeSet<Combination>) {
        assert_eq!(found.len(), searched.len());
        assert_eq!(&found.iter().cloned().collect::<BTreeSet<_>>(), searched);
    }

    #[test]
    fn a_cross_is_every_level_with_every_other() {
        for sizes in [&[1, 1, 1][..], &[2, 3, 2], &[4, 1, 3], &[3, 2, 2, 2]] {
            let factors = factors(sizes);
            let [arms, conditions] = found(&factors, "");
            let full = sizes.len() - 1;
            same(&arms, &searched(&factors, Side::Arm, |c| c.len() == full));
            same(
                &conditions,
                &searched(&factors, Side::Condition, |c| c.len() == 1),
            );
        }
    }

    #[test]
    fn a_nested_factor_exists_under_its_level_only() {
        let factors = factors(&[2, 3, 2, 2]);
        let text = "cross = [\"c\", \"d\"]\nnest = { a = { 1 = [\"b\"] } }";
        let [arms, conditions] = found(&factors, text);
        let meant = |c: &Combination| {
            c.contains_key("a")
                && c.contains_key("c")
                && c.contains_key("b") == (c.get("a").map(String::as_str) == Some("1"))
        };
        same(&arms, &searched(&factors, Side::Arm, meant));
        assert_eq!((arms.len(), conditions.len()), ((1 + 3) * 2, 2));
    }

    #[test]
    fn a_list_is_its_rows_with_what_is_crossed() {
        let factors = factors(&[3, 3, 2, 2]);
        let text = "cross = [\"c\", \"d\"]\nlist = [{ a = 0, b = 2 }, { a = 1, b = \"1\" }]";
        let [arms, _] = found(&factors, text);
        let meant = |c: &Combination| {
            let at = |f: &str| c.get(f).map_or("", String::as_str);
            c.contains_key("c") && [("0", "2"), ("1", "1")].contains(&(at("a"), at("b")))
        };
        same(&arms, &searched(&factors, Side::Arm, meant));
        assert_eq!(arms.len(), 4);
    }

    #[test]
    fn a_design_that_makes_no_sense_is_told_with_its_fix() {
        let factors = factors(&[2, 2, 2]);
        for (text, parts) in [
            (
                "cross = [\"a\", \"c\"]",
                &["b is in no cross", "take it out"][..],
            ),
            (
                "cross = [\"a\", \"b\", \"c\", \"a\"]",
                &["a is there twice"],
            ),
            ("cross = [\"a\", \"b\", \"x\"]", &["no factor x", "a, b, c"]),
            (
                "cross = [\"c\"]\nnest = { a = { 7 = [\"b\"] } }",
                &["no level 7", "0, 1"],
            ),
            (
                "cross = [\"b\"]\nnest = { a = { 1 = [\"c\"] } }",
                &["a, c", "apart"],
            ),
            (
                "cross = [\"c\"]\nlist = [{ a = 0 }, { b = 1 }]",
                &["row 1", "give b one of"],
            ),
            (
                "cross = [\"c\"]\nlist = [{ a = 0, b = 1 }, { a = 0, b = 1 }]",
                &["row 2", "there already"],
            ),
            (
                "cross = [\"b\", \"c\"]\nnest = { a = { 1 = [\"a\"] } }",
                &["nested in itself"],
            ),
        ] {
            let error = combinations(&factors, &design(text))
                .unwrap_err()
                .to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
        }
    }

    #[test]
    fn too_many_are_refused_before_they_are_made() {
        let factors = factors(&[1_000, 1_000, 1_000, 1_000, 2]);
        let error = combinations(&factors, &Design::default()).unwrap_err();
        assert!(error.to_string().contains("at most 256"), "{error}");
    }
}
