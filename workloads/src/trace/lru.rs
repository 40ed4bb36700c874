//! A set of keys by recency.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    older: u32,
    newer: u32,
}

/// Keys that were touched last, at most `capacity` of them. Keys must be well mixed: they are
/// their own hashes.
#[derive(Debug)]
pub(crate) struct LruSet {
    capacity: usize,
    table: HashTable<u32>,
    nodes: Vec<Node>,
    oldest: u32,
    newest: u32,
}

impl LruSet {
    /// An empty set; `None` has no limit.
    pub(crate) fn new(capacity: Option<usize>) -> Self {
        LruSet {
            capacity: capacity.unwrap_or(usize::MAX).min(NIL as usize - 1),
            table: HashTable::new(),
            nodes: Vec::new(),
            oldest: NIL,
            newest: NIL,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        let nodes = &self.nodes;
        self.table
            .find(key, |&at| nodes[at as usize].key == key)
            .is_some()
    }

    /// Makes `key` the newest, and drops the oldest where there is no room.
    pub(crate) fn touch(&mut self, key: u64) {
        if self.capacity == 0 {
            return;
        }
        let nodes = &self.nodes;
        let found = self.table.find(key, |&at| nodes[at as usize].key == key);
        if let Some(&at) = found {
            self.unlink(at);
            self.link_newest(at);
            return;
        }
        let at = self.slot_for(key);
        let nodes = &self.nodes;
        let entry = self.table.entry(
            key,
            |&at| nodes[at as usize].key == key,
            |&at| nodes[at as usize].key,
        );
        if let Entry::Vacant(vacant) = entry {
            vacant.insert(at);
        }
        self.link_newest(at);
    }

    /// A node for a new key: the oldest one's when the set is full.
    fn slot_for(&mut self, key: u64) -> u32 {
        if self.nodes.len() < self.capacity {
            self.nodes.push(Node {
                key,
                older: NIL,
                newer: NIL,
            });
            return (self.nodes.len() - 1) as u32;
        }
        let at = self.oldest;
        let old = self.nodes[at as usize].key;
        self.unlink(at);
        if let Ok(entry) = self.table.find_entry(old, |&other| other == at) {
            entry.remove();
        }
        self.nodes[at as usize].key = key;
        at
    }

    fn unlink(&mut self, at: u32) {
        let Node { older, newer, .. } = self.nodes[at as usize];
        match older {
            NIL => self.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let last = self.newest;
        self.nodes[at as usize].older = last;
        self.nodes[at as usize].newer = NIL;
        match last {
            NIL => self.oldest = at,
            _ => self.nodes[last as usize].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::prompt::mix;
    use pb_contract::Stream;

    #[test]
    fn it_keeps_what_a_list_keeps() {
        let mut stream = Stream::new(4, "lru");
        for capacity in [0, 1, 2, 7, 40] {
            let mut set = LruSet::new(Some(capacity));
            let mut list: Vec<u64> = Vec::new();
            for _ in 0..3_000 {
                let key = mix(stream.below(60));
                assert_eq!(set.contains(key), list.contains(&key));
                set.touch(key);
                list.retain(|&other| other != key);
                list.push(key);
                let extra = list.len().saturating_sub(capacity);
                list.drain(..extra);
                assert_eq!(set.len(), list.len());
            }
        }
    }
}
