//! Naming arms and conditions by what they are made of.
//!
//! An arm is a set of parts: the name it has under `[arms]`, and `factor=level` for each factor.
//! A selector is some of these parts, with commas, and means everything that has all of them.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

/// Parts of an arm or a condition.
pub(crate) type Parts = BTreeSet<String>;

/// Some parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    parts: Parts,
}

impl Selector {
    /// Reads `part,part`; `*` is no part at all, which everything has.
    ///
    /// # Errors
    /// A part that is none of `known`; `key` says where it was written.
    pub(crate) fn parse(key: &str, text: &str, known: &Parts) -> Result<Selector> {
        if text.trim() == "*" {
            return Ok(Selector::default());
        }
        let mut parts = Parts::new();
        for part in text.split(',').map(str::trim) {
            if !known.contains(part) {
                let all: Vec<&str> = known.iter().map(String::as_str).collect();
                bail!(
                    "{key} = \"{}\": there is no \"{}\" here; there are: {}",
                    pb_record::visible(text),
                    pb_record::visible(part),
                    all.join(" ")
                );
            }
            parts.insert(part.to_owned());
        }
        Ok(Selector { parts })
    }

    /// Whether `parts` has all of the selector's.
    pub(crate) fn matches(&self, parts: &Parts) -> bool {
        self.parts.is_subset(parts)
    }

    /// What its parts speak of: factors by name, and `""` for the names of arms.
    pub(crate) fn speaks_of(&self) -> BTreeSet<&str> {
        self.parts.iter().map(|part| subject(part)).collect()
    }
}

/// What a part speaks of.
pub(crate) fn subject(part: &str) -> &str {
    part.split_once('=').map_or("", |(factor, _)| factor)
}
