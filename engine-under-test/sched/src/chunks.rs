//! How a prompt is cut under a token budget, on paper.
//!
//! The same arithmetic as the policy's, for one prompt beside a constant number of decodes, so
//! that a user can see a budget's effect without running anything.

use crate::error::PlanError;

/// Longest schedule that is written out.
pub const MAX_CHUNKS: usize = 1 << 20;

/// Cuts a prompt of `prompt` tokens beside `decodes` active decodes under a budget of `budget`
/// tokens a step: each chunk has `min(budget - decodes, fixed_chunk, rest)` tokens.
///
/// # Errors
/// When no token is left for prefill, when `fixed_chunk` is 0, or when there would be more than
/// [`MAX_CHUNKS`] chunks.
pub fn chunk_schedule(
    budget: usize,
    decodes: usize,
    prompt: usize,
    fixed_chunk: Option<usize>,
) -> Result<Vec<usize>, PlanError> {
    if fixed_chunk == Some(0) {
        return Err(PlanError::Zero { key: "chunk" });
    }
    if budget <= decodes {
        return Err(PlanError::NoPrefillBudget { budget, decodes });
    }
    let chunk = (budget - decodes).min(fixed_chunk.unwrap_or(usize::MAX));
    let count = prompt.div_ceil(chunk);
    if count > MAX_CHUNKS {
        return Err(PlanError::TooManyChunks { prompt, chunk });
    }
    Ok((0..count)
        .map(|index| chunk.min(prompt - index * chunk))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_table_of_chunks() {
        assert_eq!(
            chunk_schedule(512, 4, 2048, None).unwrap(),
            [508, 508, 508, 508, 16]
        );
        assert_eq!(
            chunk_schedule(1024, 300, 3500, None).unwrap(),
            [724, 724, 724, 724, 604]
        );
        assert_eq!(chunk_schedule(2048, 0, 8192, Some(512)).unwrap(), [512; 16]);
        for (budget, prompt) in [(512, 100), (1024, 1)] {
            let error = chunk_schedule(budget, budget, prompt, None).unwrap_err();
            assert_eq!(
                error,
                PlanError::NoPrefillBudget {
                    budget,
                    decodes: budget
                }
            );
        }
        let cached: Vec<usize> = [508, 508, 508, 508, 16]
            .iter()
            .scan(0, |sum, chunk| {
                *sum += chunk;
                Some(*sum)
            })
            .collect();
        assert_eq!(cached, [508, 1016, 1524, 2032, 2048]);
    }

    #[test]
    fn a_prompt_that_divides_evenly_has_no_empty_last_chunk() {
        assert_eq!(chunk_schedule(8, 0, 16, None).unwrap(), [8, 8]);
        assert_eq!(chunk_schedule(8, 7, 3, None).unwrap(), [1, 1, 1]);
        assert!(chunk_schedule(8, 0, 0, None).unwrap().is_empty());
    }

    #[test]
    fn impossible_schedules_say_why() {
        let message = chunk_schedule(8, 12, 5, None).unwrap_err().to_string();
        assert!(
            message.contains("max_batched_tokens = 8 with 12 active decodes"),
            "{message}"
        );
        assert_eq!(
            chunk_schedule(8, 0, 5, Some(0)),
            Err(PlanError::Zero { key: "chunk" })
        );
        let huge = chunk_schedule(8, 7, usize::MAX, None);
        assert_eq!(
            huge,
            Err(PlanError::TooManyChunks {
                prompt: usize::MAX,
                chunk: 1
            })
        );
    }
}
