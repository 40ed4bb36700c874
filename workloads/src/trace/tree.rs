//! Whether names are those of a prefix tree: one depth and one parent for each, and a partial
//! block never under the name of a full one.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::trace::TraceRow;
use crate::trace::prompt::mix;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    id: u64,
    parent: Option<u64>,
    depth: u32,
    tokens: u32,
}

/// Names seen so far.
#[derive(Debug, Default)]
pub struct PrefixTree {
    names: HashTable<Known>,
    misplaced: u64,
    resized: u64,
    first_misplaced: Option<String>,
    first_resized: Option<String>,
}

/// What broke a rule: how often, and the first time in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaks<'a> {
    /// Blocks that broke it.
    pub count: u64,
    /// The first one.
    pub first: Option<&'a str>,
}

impl PrefixTree {
    /// Looks at the names of one more row.
    pub fn add(&mut self, row: &TraceRow) {
        let mut parent = None;
        for (depth, &id) in row.block_ids.iter().enumerate() {
            let here = Known {
                id,
                parent,
                depth: depth as u32,
                tokens: row.tokens_in_block(depth) as u32,
            };
            parent = Some(id);
            let hash = |known: &Known| mix(known.id);
            match self.names.entry(mix(id), |known| known.id == id, hash) {
                Entry::Vacant(vacant) => {
                    vacant.insert(here);
                }
                Entry::Occupied(entry) => {
                    let before = *entry.get();
                    self.compare(before, here, row.number);
                }
            }
        }
    }

    fn compare(&mut self, before: Known, here: Known, row: u64) {
        let place = |known: &Known| match known.parent {
            Some(parent) => format!("at depth {} under {parent}", known.depth),
            None => "at the start".to_owned(),
        };
        if (before.depth, before.parent) != (here.depth, here.parent) {
            self.misplaced += 1;
            self.first_misplaced.get_or_insert_with(|| {
                let (now, then) = (place(&here), place(&before));
                format!("row {row}: id {} is {now} and was {then}", here.id)
            });
        }
        if before.tokens != here.tokens {
            self.resized += 1;
            self.first_resized.get_or_insert_with(|| {
                format!(
                    "row {row}: id {} stands for {} tokens and stood for {}",
                    here.id, here.tokens, before.tokens
                )
            });
        }
    }

    /// Different names.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Names with more than one place: equal names then do not mean equal prefixes.
    pub fn misplaced(&self) -> Breaks<'_> {
        Breaks {
            count: self.misplaced,
            first: self.first_misplaced.as_deref(),
        }
    }

    /// Names with more than one length.
    pub fn resized(&self) -> Breaks<'_> {
        Breaks {
            count: self.resized,
            first: self.first_resized.as_deref(),
        }
    }
}
