//! The pretended cache of llama.cpp's server: each slot remembers the tokens of its last request.

use pb_contract::TokenId;

/// One slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    /// Prompt and output of the last request.
    tokens: Vec<TokenId>,
    /// A request is being served.
    pub(crate) busy: bool,
    /// Number of the last request, `None` before the first.
    pub(crate) task: Option<u64>,
    /// Prompt tokens of the last request, and those that were remembered.
    pub(crate) prompt: (usize, usize),
}

/// All slots.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    list: Vec<Slot>,
}

impl Slots {
    /// So many empty slots.
    pub(crate) fn new(count: usize) -> Slots {
        Slots {
            list: vec![Slot::default(); count],
        }
    }

    /// The slots in order.
    pub(crate) fn list(&self) -> &[Slot] {
        &self.list
    }

    /// Gives a request a free slot: the one whose tokens begin most like the prompt, else the one
    /// unused for longest. Its number and the prompt tokens that it has: never the last one,
    /// because one must be computed.
    pub(crate) fn take(
        &mut self,
        prompt: &[TokenId],
        reuse: bool,
        task: u64,
    ) -> Option<(usize, usize)> {
        let common = |slot: &Slot| {
            let pairs = slot.tokens.iter().zip(prompt);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let free = self.list.iter().enumerate().filter(|(_, slot)| !slot.busy);
        let best = free.max_by_key(|(index, slot)| {
            let oldest = std::cmp::Reverse((slot.task.map_or(0, |task| task + 1), *index));
            (common(slot), oldest)
        });
        let index = best?.0;
        let slot = &mut self.list[index];
        let cached = match reuse {
            true => common(slot).min(prompt.len().saturating_sub(1)),
            false => 0,
        };
        slot.busy = true;
        slot.task = Some(task);
        slot.prompt = (prompt.len(), cached);
        slot.tokens = prompt.to_vec();
        Some((index, cached))
    }

    /// A request has ended; the slot remembers its output too.
    pub(crate) fn release(&mut self, index: usize, output: &[TokenId]) {
        let slot = &mut self.list[index];
        slot.busy = false;
        slot.tokens.extend_from_slice(output);
    }

    /// Forgets what a slot holds; tokens forgotten, or `None` for a slot that is none.
    pub(crate) fn erase(&mut self, index: usize) -> Option<usize> {
        let slot = self.list.get_mut(index)?;
        Some(std::mem::take(&mut slot.tokens).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_73_a_prompt_goes_to_the_slot_that_begins_like_it() {
        let mut slots = Slots::new(2);
        let (a, b): (Vec<TokenId>, Vec<TokenId>) = ((0..10).collect(), (50..60).collect());
        assert_eq!(slots.take(&a, true, 0), Some((0, 0)));
        assert_eq!(slots.take(&b, true, 1), Some((1, 0)));
        assert_eq!(slots.take(&a, true, 2), None, "both are busy");
        slots.release(1, &[60]);
        slots.release(0, &[]);
        // Nine of ten: the last token is computed. With the output all of an extended prompt.
        assert_eq!(slots.take(&a, true, 3), Some((0, 9)));
        let longer: Vec<TokenId> = (50..62).collect();
        assert_eq!(slots.take(&longer, true, 4), Some((1, 11)));
        slots.release(0, &[]);
        slots.release(1, &[]);
        // Off for one request; what it leaves is remembered all the same.
        assert_eq!(slots.take(&a, false, 5), Some((0, 0)));
        slots.release(0, &[]);
        assert_eq!(slots.erase(0), Some(10));
        assert_eq!(slots.take(&a, true, 6), Some((1, 0)), "unused for longest");
        assert_eq!(slots.erase(2), None);
    }
}
