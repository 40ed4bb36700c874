//! Sets of settings in words: `policy=token_budget` under `chunk=64` to `chunk=512` as
//! "token_budget, chunk 64 to 512".

use super::grid::{AGAINST, Attributes, NONE, level, levels, names};

/// Letters from which on a level says by itself what it is: `monolithic`, and not `on`.
const TELLING: usize = 5;

/// A factor at a level, as it is said.
pub(super) fn spoken(name: &str, level: &str) -> String {
    let telling = level.len() >= TELLING && level.chars().all(|c| c.is_alphabetic() || c == '_');
    match name {
        "arm" | "condition" => level.to_owned(),
        _ if telling => level.to_owned(),
        name => format!("{name} {level}"),
    }
}

/// Things that were chosen among all, by what tells them from those that were not.
pub(super) struct Chosen<'a> {
    all: &'a [Attributes],
    chosen: Vec<&'a Attributes>,
}

impl<'a> Chosen<'a> {
    /// The things with these numbers.
    pub(super) fn of(all: &'a [Attributes], numbers: &[usize]) -> Chosen<'a> {
        Chosen {
            all,
            chosen: numbers.iter().map(|&i| &all[i]).collect(),
        }
    }

    /// Levels of a factor among the chosen, in the order of all; with whether these are all.
    fn levels(&self, name: &str) -> (Vec<&'a str>, bool) {
        let all = levels(self.all, name);
        let chosen = |l: &&str| self.chosen.iter().any(|thing| level(thing, name) == *l);
        let mine: Vec<&str> = all.iter().copied().filter(chosen).collect();
        let whole = mine.len() == all.len();
        (mine, whole)
    }

    /// Whether every thing whose levels all occur among the chosen is chosen: then the levels of
    /// each factor say which ones they are.
    fn is_product(&self) -> bool {
        let names = names(self.all);
        let inside = |thing: &&Attributes| {
            names.iter().all(|name| {
                let (mine, _) = self.levels(name);
                mine.contains(&level(thing, name))
            })
        };
        self.all.iter().filter(inside).count() == self.chosen.len()
    }

    /// A factor's part of the description: always when `always`, otherwise when not every level is
    /// chosen.
    fn factor(&self, name: &str, always: bool) -> Option<String> {
        let (mine, whole) = self.levels(name);
        if mine.is_empty() || (whole && !always) {
            return None;
        }
        let all = levels(self.all, name);
        let at = |level: &str| all.iter().position(|l| *l == level);
        let numbers = mine.iter().all(|level| level.parse::<f64>().is_ok());
        let run = at(mine[mine.len() - 1]).zip(at(mine[0]));
        let run = run.is_some_and(|(last, first)| last - first + 1 == mine.len());
        Some(match mine[..] {
            [one] => spoken(name, one),
            [first, .., last] if numbers && run && mine.len() > 2 => {
                format!("{} to {last}", spoken(name, first))
            }
            _ => {
                let each: Vec<String> = mine.iter().map(|level| spoken(name, level)).collect();
                let named = each.iter().all(|one| one.starts_with(&format!("{name} ")));
                match named {
                    true => format!("{name} {}", mine.join(", ")),
                    false => each.join(", "),
                }
            }
        })
    }

    /// In words, with what they are compared with where that tells them from others. `None` when
    /// levels do not tell the chosen from the others.
    pub(super) fn words(&self, loads: &[String]) -> Option<String> {
        let mut parts = vec![self.subject(loads, &[])?];
        let against = names(self.all)
            .into_iter()
            .filter(|n| n.starts_with(AGAINST));
        if against.into_iter().any(|name| !self.levels(name).1) {
            parts.push(self.against());
        }
        parts.retain(|part| !part.is_empty());
        Some(parts.join(", "))
    }

    /// What they are compared with: "against monolithic".
    pub(super) fn against(&self) -> String {
        let against = names(self.all)
            .into_iter()
            .filter(|n| n.starts_with(AGAINST));
        let each = against.filter_map(|name| {
            let plain = name.trim_start_matches(AGAINST);
            let (levels, _) = self.levels(name);
            let levels = levels.iter().filter(|level| **level != NONE);
            let said: Vec<String> = levels.map(|level| spoken(plain, level)).collect();
            (!said.is_empty()).then(|| said.join(" and "))
        });
        match each.collect::<Vec<String>>().join(", ") {
            none if none.is_empty() => none,
            all => format!("against {all}"),
        }
    }

    /// In words, the factors in `loads` at the end; `always` names those that are said even where
    /// nothing else was there to choose. `None` when levels do not tell the chosen from the
    /// others.
    pub(super) fn subject(&self, loads: &[String], always: &[String]) -> Option<String> {
        if !self.is_product() {
            return None;
        }
        let names = names(self.all);
        let is_load = |name: &&&str| loads.iter().any(|load| load == **name);
        let has = |name: &str| always.iter().any(|own| own == name);
        let own = names
            .iter()
            .filter(|name| !is_load(name) && !name.starts_with(AGAINST));
        let mut parts: Vec<String> = own.filter_map(|n| self.factor(n, has(n))).collect();
        // What is named comes before what is counted: "token_budget, chunk 64 to 512".
        parts.sort_by_key(|part| part.contains(|c: char| c.is_ascii_digit()));
        for name in names.iter().filter(is_load) {
            let (mine, whole) = self.levels(name);
            let what = if loads.len() == 1 { "loads" } else { name };
            match (whole, mine.len()) {
                (true, 0 | 1) => {}
                (true, 2) => parts.push(format!("at both {what}")),
                (true, n) => parts.push(format!("at all {n} {what}")),
                (false, _) => parts.extend(self.factor(name, true).map(|at| format!("at {at}"))),
            }
        }
        Some(parts.join(", "))
    }
}

/// With a capital letter in front, when it begins with a letter of a word.
pub(super) fn capital(text: &str) -> String {
    let first_word = text.split([' ', ':', ',']).next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // A name is written as it is.
        Some(first) if first_word.chars().all(char::is_alphabetic) => {
            first.to_uppercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::parts;
    use super::*;

    fn sweep() -> Vec<Attributes> {
        let mut all = Vec::new();
        for streams in [2, 6] {
            for policy in ["token_budget", "prefill_first"] {
                for chunk in ["64", "128", "256", "512", "whole"] {
                    let name = format!("policy={policy},chunk={chunk}");
                    let mut thing = parts("arm", &name);
                    thing.extend(parts("condition", &format!("streams={streams}")));
                    all.push(thing);
                }
            }
        }
        all
    }

    #[test]
    fn a_block_of_a_sweep_is_said_by_its_levels() {
        let all = sweep();
        let loads = ["streams".to_owned()];
        let words = |numbers: &[usize]| Chosen::of(&all, numbers).words(&loads);
        // token_budget with chunks 64 to 512, under both loads.
        let said = words(&[0, 1, 2, 3, 10, 11, 12, 13]).unwrap();
        assert_eq!(said, "token_budget, chunk 64 to 512, at both loads");
        assert_eq!(
            words(&[0, 2]).unwrap(),
            "token_budget, chunk 64, 256, at streams 2"
        );
        assert_eq!(
            words(&[4, 14]).unwrap(),
            "token_budget, whole, at both loads"
        );
        let everything: Vec<usize> = (0..20).collect();
        assert_eq!(words(&everything).unwrap(), "at both loads");
        // Not a block: one of one policy, another of the other.
        assert_eq!(words(&[0, 6]), None);
    }

    #[test]
    fn what_is_asked_for_is_said_always() {
        let all = [parts("arm", "budget=64"), parts("arm", "budget=256")];
        let chosen = Chosen::of(&all, &[0, 1]);
        assert_eq!(chosen.words(&[]).unwrap(), "");
        let always = ["budget".to_owned()];
        assert_eq!(chosen.subject(&[], &always).unwrap(), "budget 64, 256");
    }

    #[test]
    fn what_it_is_compared_with_is_said_where_it_tells() {
        let thing = |against: &str| {
            let mut thing = parts("arm", "split");
            thing.push(("against arm".to_owned(), against.to_owned()));
            thing
        };
        let all = [thing("whole"), thing("chunked")];
        let one = Chosen::of(&all, &[1]);
        assert_eq!(one.words(&[]).unwrap(), "against chunked");
        let both = Chosen::of(&all, &[0, 1]);
        assert_eq!(both.words(&[]).unwrap(), "");
        assert_eq!(both.against(), "against whole and chunked");
    }

    #[test]
    fn sentences_begin_with_a_capital_and_names_do_not_change() {
        assert_eq!(capital("the longest gap"), "The longest gap");
        assert_eq!(capital("token_budget, chunk 64"), "token_budget, chunk 64");
        assert_eq!(capital("64 of it"), "64 of it");
    }
}
