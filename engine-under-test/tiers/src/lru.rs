//! Recency of keys by a logical tick, so that the order of eviction can be replayed.

use std::collections::BTreeMap;

use crate::key::TierKey;

/// Keys with a value, ordered by last use.
#[derive(Debug)]
pub(crate) struct Lru<V> {
    entries: BTreeMap<TierKey, Entry<V>>,
    /// Ticks are unique, so this is a total order.
    by_tick: BTreeMap<u64, TierKey>,
    tick: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Entry<V> {
    tick: u64,
    bytes: u64,
    value: V,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Lru {
            entries: BTreeMap::new(),
            by_tick: BTreeMap::new(),
            tick: 0,
            bytes: 0,
        }
    }
}

impl<V> Lru<V> {
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Sum of the sizes given at [`Lru::insert`].
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn contains(&self, key: &TierKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Makes `key` the most recent one; `None` when it is not held.
    pub(crate) fn touch(&mut self, key: &TierKey) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.by_tick.remove(&entry.tick);
        entry.tick = self.tick;
        self.by_tick.insert(entry.tick, *key);
        self.tick += 1;
        Some(&entry.value)
    }

    /// Adds `key` as the most recent one. A former entry under it is replaced.
    pub(crate) fn insert(&mut self, key: TierKey, bytes: u64, value: V) {
        self.remove(&key);
        let entry = Entry {
            tick: self.tick,
            bytes,
            value,
        };
        self.entries.insert(key, entry);
        self.by_tick.insert(self.tick, key);
        self.tick += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, key: &TierKey) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.by_tick.remove(&entry.tick);
        self.bytes -= entry.bytes;
        Some(entry.value)
    }

    /// The key whose last use is longest ago.
    pub(crate) fn oldest(&self) -> Option<TierKey> {
        self.by_tick.first_key_value().map(|(_, key)| *key)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.by_tick.clear();
        self.bytes = 0;
    }

    /// Checks that both orders hold the same keys and that the bytes add up.
    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes: u64 = self.entries.values().map(|entry| entry.bytes).sum();
        if bytes != self.bytes {
            return Err(format!(
                "{bytes} bytes are held; the counter says {}",
                self.bytes
            ));
        }
        let agree =
            |(key, entry): (&TierKey, &Entry<V>)| self.by_tick.get(&entry.tick) == Some(key);
        if self.by_tick.len() != self.entries.len() || !self.entries.iter().all(agree) {
            return Err("keys and their order of use do not agree".to_owned());
        }
        Ok(())
    }
}
