//! What a router must know of a cache: which prefixes it holds.
//!
//! Names, not blocks: two blocks of one name are one entry, stored with the first and removed with
//! the last, so that a reader who only keeps a set is right.

use std::collections::BTreeMap;

use crate::digest::BlockHash;

/// A change of what the cache holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// These blocks can be found now, each the child of the one before.
    Stored {
        /// Names, in the order of the tokens.
        hashes: Vec<BlockHash>,
        /// Name of the block before the first; none at the start of a sequence.
        parent: Option<BlockHash>,
    },
    /// These cannot be found any more.
    Removed {
        /// Names.
        hashes: Vec<BlockHash>,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// Collects events from the moment on at which somebody asks for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    /// Blocks by name; none while nobody listens.
    blocks: Option<BTreeMap<BlockHash, u32>>,
    events: Vec<CacheEvent>,
}

impl EventLog {
    /// Starts to collect.
    pub(crate) fn start(&mut self) {
        self.blocks.get_or_insert_default();
    }

    /// What happened since the last call.
    pub(crate) fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// A block was named.
    pub(crate) fn stored(&mut self, name: BlockHash, parent: Option<BlockHash>) {
        let Some(blocks) = &mut self.blocks else {
            return;
        };
        let count = blocks.entry(name).or_insert(0);
        *count += 1;
        if *count > 1 {
            return;
        }
        if let Some(CacheEvent::Stored { hashes, .. }) = self.events.last_mut()
            && hashes.last().copied() == parent
        {
            hashes.push(name);
            return;
        }
        self.events.push(CacheEvent::Stored {
            hashes: vec![name],
            parent,
        });
    }

    /// A block lost its name.
    pub(crate) fn removed(&mut self, name: BlockHash) {
        let Some(blocks) = &mut self.blocks else {
            return;
        };
        let Some(count) = blocks.get_mut(&name) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        blocks.remove(&name);
        match self.events.last_mut() {
            Some(CacheEvent::Removed { hashes }) => hashes.push(name),
            _ => self.events.push(CacheEvent::Removed { hashes: vec![name] }),
        }
    }

    /// All names are gone.
    pub(crate) fn cleared(&mut self) {
        if let Some(blocks) = &mut self.blocks {
            blocks.clear();
            self.events.push(CacheEvent::Cleared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(byte: u8) -> BlockHash {
        BlockHash([byte; 32])
    }

    #[test]
    fn chains_are_one_event_and_twins_count_once() {
        let mut log = EventLog::default();
        log.stored(name(1), None);
        assert_eq!(log.take(), [], "nobody listens");
        log.start();
        log.stored(name(1), None);
        log.stored(name(2), Some(name(1)));
        log.stored(name(1), None);
        log.stored(name(9), Some(name(1)));
        log.removed(name(1));
        log.removed(name(2));
        log.removed(name(1));
        log.removed(name(7));
        log.cleared();
        let chain = CacheEvent::Stored {
            hashes: vec![name(1), name(2)],
            parent: None,
        };
        let branch = CacheEvent::Stored {
            hashes: vec![name(9)],
            parent: Some(name(1)),
        };
        let removed = CacheEvent::Removed {
            hashes: vec![name(2), name(1)],
        };
        assert_eq!(log.take(), [chain, branch, removed, CacheEvent::Cleared]);
        log.stored(name(1), None);
        assert_eq!(log.take().len(), 1, "it can be stored again");
    }
}
