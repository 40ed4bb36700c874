//! Log-probabilities in the layouts of the two interfaces.

use std::collections::BTreeMap;

use pb_contract::chat::{ChatLogprobs, ChatTokenLogprob, ChatTopLogprob};
use pb_contract::wire::{CompletionLogprobs, PromptLogprob, PromptLogprobEntry};
use pb_contract::{TokenId, TokenLogprobs};

use crate::text::TextModel;

/// JSON has no infinity; vLLM writes this instead.
const LOWEST: f64 = -9999.0;

fn finite(logprob: f64) -> f64 {
    // `max` also turns a NaN into the bound.
    logprob.max(LOWEST)
}

/// How the lists of a completion name tokens: by their texts, or by their ids, which differ where
/// texts may not.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) text: &'a dyn TextModel,
    pub(crate) as_ids: bool,
}

impl Names<'_> {
    fn of(self, id: TokenId) -> String {
        if self.as_ids {
            format!("token_id:{id}")
        } else {
            self.text.token_text(id)
        }
    }
}

/// Adds a position to a completion's parallel lists. `offset` is where the token starts, in
/// characters, and moves on by its length.
fn push(
    lists: &mut CompletionLogprobs,
    offset: &mut usize,
    token: String,
    logprob: Option<f64>,
    top: Option<BTreeMap<String, f64>>,
) {
    lists.text_offset.push(*offset);
    *offset += token.chars().count();
    lists.tokens.push(token);
    lists.token_logprobs.push(logprob);
    lists.top_logprobs.push(top);
}

/// Adds generated or prompt tokens. The candidates are the `count` best and the token itself.
pub(crate) fn push_completion(
    names: Names<'_>,
    lists: &mut CompletionLogprobs,
    offset: &mut usize,
    entries: &[TokenLogprobs],
    count: u32,
) {
    for entry in entries {
        let mut top: BTreeMap<String, f64> = BTreeMap::new();
        for &(id, logprob) in entry.top.iter().take(count as usize) {
            // Two tokens may read the same; the more likely one is kept.
            top.entry(names.of(id)).or_insert(finite(logprob));
        }
        let token = names.of(entry.token);
        let logprob = finite(entry.logprob);
        top.insert(token.clone(), logprob);
        push(lists, offset, token, Some(logprob), Some(top));
    }
}

/// Adds the first prompt token, which nothing predicts.
pub(crate) fn push_unpredicted(
    names: Names<'_>,
    lists: &mut CompletionLogprobs,
    offset: &mut usize,
    token: TokenId,
) {
    push(lists, offset, names.of(token), None, None);
}

/// The list of `prompt_logprobs`: null for position 0, then candidates by token id.
pub(crate) fn prompt_list(
    text: &dyn TextModel,
    entries: &[TokenLogprobs],
) -> Vec<PromptLogprobEntry> {
    let candidate = |id: TokenId, logprob: f64, rank: u32| {
        let decoded_token = text.token_text(id);
        (
            id.to_string(),
            PromptLogprob {
                logprob: finite(logprob),
                rank,
                decoded_token,
            },
        )
    };
    let mut list = Vec::with_capacity(entries.len() + 1);
    list.push(None);
    for entry in entries {
        let ranked = entry.top.iter().zip(1..);
        let mut candidates: BTreeMap<String, PromptLogprob> = ranked
            .map(|(&(id, logprob), rank)| candidate(id, logprob, rank))
            .collect();
        candidates.extend([candidate(entry.token, entry.logprob, entry.rank)]);
        list.push(Some(candidates));
    }
    list
}

/// Log-probabilities of generated tokens in the chat layout.
pub(crate) fn chat(text: &dyn TextModel, entries: &[TokenLogprobs], count: u32) -> ChatLogprobs {
    let top_of = |entry: &TokenLogprobs| {
        let best = entry.top.iter().take(count as usize);
        best.map(|&(id, logprob)| ChatTopLogprob {
            token: text.token_text(id),
            logprob: finite(logprob),
            bytes: Some(text.token_bytes(id)),
        })
        .collect()
    };
    let content = entries.iter().map(|entry| ChatTokenLogprob {
        token: text.token_text(entry.token),
        logprob: finite(entry.logprob),
        bytes: Some(text.token_bytes(entry.token)),
        top_logprobs: top_of(entry),
    });
    ChatLogprobs {
        content: content.collect(),
    }
}
