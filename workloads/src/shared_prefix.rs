//! One system prompt, many questions: the workload in which a prefix cache matters.
//!
//! The same questions are asked twice. Cold, each stands behind a system prompt of its own that
//! the server has never seen; warm, behind one that it has just been primed with. Both sides have
//! the same lengths, so the pair differs in nothing but reuse, and the tokens that a warm request
//! must hit are known before it is sent.

use std::collections::BTreeSet;

use pb_contract::plan::{ClosedLoop, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId, Stream, TokenId};
use serde::{Deserialize, Serialize};

use crate::error::WorkloadError;
use crate::text::TextSource;

/// Parameters of the shared-prefix workload. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharedPrefixParams {
    /// System prompts.
    pub groups: usize,
    /// Questions behind each of them.
    pub questions_per_group: usize,
    /// System prompt.
    pub system_len: usize,
    /// Shortest question.
    pub question_len_min: usize,
    /// Longest question.
    pub question_len_max: usize,
    /// Output of every request.
    pub output_len: u32,
}

impl Default for SharedPrefixParams {
    fn default() -> Self {
        SharedPrefixParams {
            groups: 2,
            questions_per_group: 4,
            system_len: 512,
            question_len_min: 24,
            question_len_max: 64,
            output_len: 4,
        }
    }
}

/// The requests of a shared-prefix run. `warm[i]` and `cold[i]` ask the same question.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPrefix {
    /// One request a group that puts its system prompt into the cache (class `prime`).
    pub prime: Vec<PlannedBody>,
    /// Questions behind a primed system prompt (class `warm`), group after group.
    pub warm: Vec<PlannedBody>,
    /// The same questions, each behind a system prompt of its own (class `cold`).
    pub cold: Vec<PlannedBody>,
    /// Tokens that a warm prompt shares with its primed one: exactly the system prompt.
    pub system_len: usize,
}

impl SharedPrefix {
    /// Tokens that `warm[index]` must take from a cache of `block_size`-token blocks.
    pub fn planned_hit(&self, index: usize, block_size: usize) -> usize {
        let prompt_len = self.warm[index].planned_tokens as usize;
        planned_hit_tokens(self.system_len, prompt_len, block_size)
    }
}

/// Tokens that a prompt of `prompt_len` tokens takes from a block cache that holds its first
/// `shared_len` tokens: full blocks only, and never the prompt's last token, whose logits must be
/// computed. Panics when `block_size` is zero.
pub fn planned_hit_tokens(shared_len: usize, prompt_len: usize, block_size: usize) -> usize {
    assert!(block_size > 0, "a block holds at least one token");
    shared_len.min(prompt_len.saturating_sub(1)) / block_size * block_size
}

/// The requests of a shared-prefix run, decided by `(params, text, seed)`.
///
/// # Errors
/// Parameters out of range, or a text that cannot give that many distinct prompts.
pub fn shared_prefix(
    params: &SharedPrefixParams,
    text: &mut TextSource,
    seed: u64,
) -> Result<SharedPrefix, WorkloadError> {
    validate(params)?;
    let mut lengths = Stream::new(seed, "shared prefix question lengths");
    let mut prompts = Stream::new(seed, "shared prefix text");
    let spread = (params.question_len_max - params.question_len_min) as u64 + 1;
    let body = |class: &str, system: &[TokenId], question: &[TokenId]| {
        PlannedBody::of_ids(class, [system, question].concat(), params.output_len)
    };
    let (mut prime, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..params.groups {
        let system = text.prompt(params.system_len, &mut prompts)?;
        let opener = text.prompt(params.question_len_min, &mut prompts)?;
        prime.push(body("prime", &system, &opener));
        let mut starts = BTreeSet::from([opener[0]]);
        for _ in 0..params.questions_per_group {
            let len = params.question_len_min + lengths.below(spread) as usize;
            // A question starts with a nonce of its own. Its first token must differ from those of
            // its group's other questions, or they would share more than the system prompt.
            let question = text.prompt(len, &mut prompts)?;
            if !starts.insert(question[0]) {
                let fix = "the text has too few distinct tokens to tell the questions apart";
                return Err(WorkloadError::parameter("questions", starts.len() + 1, fix));
            }
            let unseen = text.prompt(params.system_len, &mut prompts)?;
            warm.push(body("warm", &system, &question));
            cold.push(body("cold", &unseen, &question));
        }
    }
    Ok(SharedPrefix {
        prime,
        warm,
        cold,
        system_len: params.system_len,
    })
}

fn validate(params: &SharedPrefixParams) -> Result<(), WorkloadError> {
    if params.groups == 0 || params.questions_per_group == 0 {
        let value = format!("{} x {}", params.groups, params.questions_per_group);
        return Err(WorkloadError::parameter(
            "groups x questions_per_group",
            value,
            "both must be at least 1",
        ));
    }
    if params.question_len_max < params.question_len_min {
        let fix = format!(
            "must be at least question_len_min = {}",
            params.question_len_min
        );
        return Err(WorkloadError::parameter(
            "question_len_max",
            params.question_len_max,
            fix,
        ));
    }
    if params.output_len == 0 {
        return Err(WorkloadError::parameter(
            "output_len",
            0,
            "ask for at least one token",
        ));
    }
    Ok(())
}

/// A plan that sends `bodies` one after the other, each when the one before has ended.
pub fn sequential(
    bodies: Vec<PlannedBody>,
    first_id: RequestId,
    horizon_ns: Nanos,
    drain_ns: Nanos,
) -> Plan {
    let part = ClosedLoop {
        streams: 1,
        first_id,
        bodies,
    };
    Plan {
        closed: vec![part],
        horizon_ns,
        drain_ns,
        ..Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> SharedPrefix {
        let tokens = (0..9_000u32).map(|i| (i * 13 + i * i) % 977).collect();
        let mut text = TextSource::new(tokens, 5).unwrap();
        shared_prefix(&SharedPrefixParams::default(), &mut text, 3).unwrap()
    }

    fn ids(body: &PlannedBody) -> &[TokenId] {
        body.prompt.ids().unwrap()
    }

    fn shared(a: &[TokenId], b: &[TokenId]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count()
    }

    #[test]
    fn warm_prompts_share_exactly_their_groups_system_prompt() {
        let run = made();
        for (index, warm) in run.warm.iter().enumerate() {
            for (group, prime) in run.prime.iter().enumerate() {
                let common = shared(ids(warm), ids(prime));
                let own_group = index / 4 == group;
                assert_eq!(
                    common == 512,
                    own_group,
                    "warm {index}, group {group}: {common}"
                );
                assert!(own_group || common < 4);
            }
        }
    }

    #[test]
    fn cold_prompts_ask_the_same_behind_an_unseen_start() {
        let run = made();
        assert_eq!(run.cold.len(), run.warm.len());
        for (cold, warm) in run.cold.iter().zip(&run.warm) {
            assert_eq!(ids(cold).len(), ids(warm).len());
            assert_eq!(ids(cold)[512..], ids(warm)[512..]);
        }
        let all: Vec<&PlannedBody> = run.prime.iter().chain(&run.cold).collect();
        crate::repeats::first_blocks_unique(&all, 8).unwrap();
    }

    #[test]
    fn planned_hits_by_hand() {
        // (shared, prompt, block) -> full shared blocks without the last prompt token.
        for (shared_len, prompt_len, block, hit) in [
            (512, 550, 16, 512),
            (500, 550, 16, 496),
            (64, 64, 16, 48),
            (65, 65, 16, 64),
            (15, 40, 16, 0),
            (0, 0, 16, 0),
            (7, 9, 1, 7),
        ] {
            assert_eq!(planned_hit_tokens(shared_len, prompt_len, block), hit);
        }
        assert_eq!(made().planned_hit(0, 16), 512);
    }

    #[test]
    fn a_sequential_plan_has_one_stream() {
        let plan = sequential(made().cold, RequestId(9), Nanos(5), Nanos(6));
        assert_eq!(
            (plan.closed[0].streams, plan.closed[0].first_id),
            (1, RequestId(9))
        );
        assert_eq!((plan.horizon_ns, plan.drain_ns), (Nanos(5), Nanos(6)));
    }
}
