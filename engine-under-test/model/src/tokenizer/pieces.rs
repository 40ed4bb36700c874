//! The bytes behind every token id, in one buffer.

/// A table from id to bytes.
///
/// Ids come from a file and may have gaps, so the table is sorted by id rather than indexed by
/// it: a single absurd id must not size an allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// Ids in ascending order.
    ids: Vec<u32>,
    /// End of each id's bytes in `bytes`.
    ends: Vec<usize>,
    /// Whether each id is a control token.
    special: Vec<bool>,
    bytes: Vec<u8>,
}

impl Pieces {
    /// Builds the table from (id, bytes, control token) in any order; ids must not repeat.
    pub(super) fn new(mut entries: Vec<(u32, Vec<u8>, bool)>) -> Pieces {
        entries.sort();
        let mut pieces = Pieces::default();
        for (id, bytes, special) in entries {
            pieces.ids.push(id);
            pieces.bytes.extend_from_slice(&bytes);
            pieces.ends.push(pieces.bytes.len());
            pieces.special.push(special);
        }
        pieces
    }

    /// Where `id` is in the table.
    fn index(&self, id: u32) -> Option<usize> {
        // Vocabularies without gaps, nearly all of them, need no search.
        match self.ids.get(id as usize) {
            Some(found) if *found == id => Some(id as usize),
            _ => self.ids.binary_search(&id).ok(),
        }
    }

    /// The bytes of `id`, empty when unknown.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let Some(index) = self.index(id) else {
            return &[];
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// Whether `id` is a control token.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.index(id).is_some_and(|index| self.special[index])
    }

    /// Length of the longest token's bytes.
    pub(super) fn longest_bytes(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(0)
    }

    /// One more than the highest id.
    pub(super) fn id_bound(&self) -> usize {
        self.ids.last().map_or(0, |id| *id as usize + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_unknown_ids() {
        let entry = |id, text: &str, special| (id, text.as_bytes().to_vec(), special);
        let pieces = Pieces::new(vec![
            entry(u32::MAX, "far", true),
            entry(0, "a", false),
            entry(2, "ccc", false),
        ]);
        assert_eq!(pieces.bytes(0), b"a");
        assert_eq!(pieces.bytes(1), b"");
        assert_eq!(pieces.bytes(2), b"ccc");
        assert_eq!(pieces.bytes(u32::MAX), b"far");
        assert!(pieces.is_special(u32::MAX) && !pieces.is_special(2) && !pieces.is_special(7));
        assert_eq!(pieces.id_bound(), u32::MAX as usize + 1);
        assert_eq!(pieces.longest_bytes(), 3);
        assert_eq!(Pieces::default().longest_bytes(), 0);
    }
}
