//! Prompts for warm-ups and probes, of the plan's kind and yet none of its own.

use std::collections::BTreeSet;

use pb_contract::plan::PlannedBody;

use super::Planned;
use crate::error::{DatasetError, WorkloadError};
use crate::realise::{Name, Slice, fnv1a};
use crate::trace::prompt::mix;

/// Times that a prompt is made anew because it starts like one of the plan by chance.
const ATTEMPTS: u64 = 256;

impl Planned {
    /// `count` prompts of `len` tokens or words that share no block with any prompt of the plan,
    /// with one another, or with those of another purpose. A warm-up made of the run's own prompts
    /// would put them into the cache that the run is going to measure.
    ///
    /// # Errors
    /// A length that has no full block, or so small a vocabulary that no other prompt is left.
    pub fn spare(
        &self,
        purpose: &str,
        count: usize,
        len: u32,
    ) -> Result<Vec<PlannedBody>, DatasetError> {
        let key = mix(self.key ^ fnv1a(format!("spare/{purpose}").as_bytes()));
        let speaker = self.speaker.clone().with_key(key);
        let mut own = BTreeSet::new();
        let mut spare = Vec::with_capacity(count);
        for index in 0..count as u64 {
            let mut fresh = None;
            for attempt in 0..ATTEMPTS {
                let slice = Slice {
                    name: Name::Own(index * ATTEMPTS + attempt),
                    tokens: len,
                };
                let realised = speaker.rendered(speaker.tokens_of(&[slice]), None);
                let Some(start) = realised.start else {
                    let fix = "a prompt of the plan's kind must have a whole block to differ in";
                    return Err(WorkloadError::parameter("len", len, fix).into());
                };
                if !self.starts.contains(&start) && own.insert(start) {
                    fresh = Some(realised);
                    break;
                }
            }
            let Some(realised) = fresh else {
                let fix = "the vocabulary is too small for another prompt: give more token ids";
                return Err(WorkloadError::parameter("count", count, fix).into());
            };
            let class = format!("spare/{purpose}");
            spare.push(PlannedBody::of(class, realised.prompt, realised.tokens, 1));
        }
        Ok(spare)
    }
}
