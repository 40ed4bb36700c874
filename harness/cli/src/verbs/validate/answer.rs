//! What servers answer to a completion, and the rows of log-probabilities that it holds.
//!
//! vLLM and this project's engine write OpenAI's parallel lists, llama.cpp the layout of chats
//! with ids in it. What is cached stands in the usage, or in the timings that llama.cpp adds.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use pb_contract::TokenId;
use pb_contract::wire::{CompletionLogprobs, PromptLogprobEntry, Usage};
use pb_judge::remote::TopRow;
use serde::Deserialize;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Scored positions in ascending order.
    pub(crate) rows: Vec<TopRow>,
    /// What was found of the prompt.
    pub(crate) found: Found,
    /// The generated text.
    pub(crate) text: String,
}

/// How the server came to the states of a prompt, as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Prompt tokens from the prefix cache; None when the server does not say.
    pub(crate) cached: Option<u32>,
    /// Prompt tokens that were computed, where the server counts them apart from the others.
    pub(crate) computed: Option<u32>,
}

/// The body of a completion.
#[derive(Debug, Deserialize)]
pub(super) struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(default)]
    timings: Option<Timings>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Choice {
    #[serde(default)]
    pub(super) text: String,
    #[serde(default)]
    pub(super) logprobs: Option<Logprobs>,
    #[serde(default)]
    prompt_logprobs: Option<Vec<PromptLogprobEntry>>,
}

/// The two layouts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    /// OpenAI's of completions.
    Lists(CompletionLogprobs),
    /// OpenAI's of chats, which llama.cpp writes for completions too.
    Content { content: Vec<Scored> },
}

/// A token and the most likely ones in its place.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Scored {
    #[serde(flatten)]
    own: Token,
    #[serde(default)]
    top_logprobs: Vec<Token>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Token {
    /// llama.cpp's own addition.
    id: Option<TokenId>,
    token: String,
    logprob: f64,
}

/// What llama.cpp tells beside the usage.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Timings {
    cache_n: Option<u32>,
    prompt_n: Option<u32>,
}

impl Completion {
    /// What it says of the prompt's states.
    pub(super) fn found(&self) -> Found {
        let usage = self.usage.and_then(|usage| usage.prompt_tokens_details);
        let timings = self.timings.unwrap_or_default();
        Found {
            cached: usage
                .and_then(|details| details.cached_tokens)
                .or(timings.cache_n),
            computed: timings.prompt_n,
        }
    }

    /// Its only choice.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn choice(self) -> Result<Choice> {
        let first = self.choices.into_iter().next();
        first.context("the answer has no choice")
    }
}

impl Token {
    /// The id where it is known: texts of several tokens may read alike.
    fn name(&self) -> String {
        match self.id {
            Some(id) => id.to_string(),
            None => self.token.clone(),
        }
    }

    /// Whether it can be told from others.
    fn is_named(&self) -> bool {
        self.id.is_some() || !self.token.contains('\u{fffd}')
    }
}

impl Scored {
    fn row(&self, position: u32) -> TopRow {
        let listed = self.top_logprobs.iter().filter(|token| token.is_named());
        let mut top: BTreeMap<String, f64> = listed.map(|t| (t.name(), t.logprob)).collect();
        top.insert(self.own.name(), self.own.logprob);
        TopRow::new(position, self.own.name(), top)
    }
}

/// Rows of a continuation whose first token is at `position`.
pub(super) fn generated_rows(logprobs: &Logprobs, position: u32) -> Vec<TopRow> {
    match logprobs {
        Logprobs::Lists(lists) => text_rows(lists, 0, position),
        Logprobs::Content { content } => {
            let rows = content.iter().zip(position..);
            rows.map(|(scored, position)| scored.row(position))
                .collect()
        }
    }
}

/// Rows of `prompt_logprobs`: one entry a prompt token, null for the first.
pub(super) fn id_rows(prompt: &[TokenId], choice: Choice) -> Result<Vec<TopRow>> {
    let entries = choice.prompt_logprobs.context("the answer has none")?;
    let (got, want) = (entries.len(), prompt.len());
    ensure!(got == want, "{got} positions for {want} prompt tokens");
    let mut rows = Vec::with_capacity(want);
    for (position, (entry, id)) in entries.into_iter().zip(prompt).enumerate().skip(1) {
        let entry = entry.with_context(|| format!("position {position} has no entry"))?;
        let top: BTreeMap<String, f64> = entry
            .into_iter()
            .map(|(token, one)| (token, one.logprob))
            .collect();
        let token = id.to_string();
        ensure!(
            top.contains_key(&token),
            "position {position} does not list the prompt's own token {token}"
        );
        rows.push(TopRow::new(position as u32, token, top));
    }
    Ok(rows)
}

/// Rows of an echoed prompt: the lists begin with the prompt's tokens.
pub(super) fn echo_rows(prompt: &[TokenId], choice: Choice) -> Result<Vec<TopRow>> {
    let logprobs = choice.logprobs.context("the answer has no `logprobs`")?;
    let want = prompt.len();
    let got = match &logprobs {
        Logprobs::Lists(lists) => lists.tokens.len(),
        Logprobs::Content { content } => content.len(),
    };
    // A server that does not echo lists the generated token alone.
    ensure!(got >= want, "{got} positions for {want} prompt tokens");
    let rows = match logprobs {
        Logprobs::Lists(mut lists) => {
            lists.tokens.truncate(want);
            text_rows(&lists, 1, 1)
        }
        Logprobs::Content { content } => {
            let scored = content.iter().zip(0..).take(want).skip(1);
            scored.map(|(one, position)| one.row(position)).collect()
        }
    };
    let scored = rows.len();
    ensure!(
        scored + 1 == want,
        "{scored} positions are scored for {want} prompt tokens"
    );
    Ok(rows)
}

/// The id alone of a token that vLLM names as `token_id:7`.
fn id_or_text(name: String) -> String {
    match name.strip_prefix("token_id:") {
        Some(id) => id.to_owned(),
        None => name,
    }
}

/// Rows of parallel lists from index `from` on, whose first is at `position`. Tokens that are no
/// text by themselves read alike; of those only the row's own is kept.
fn text_rows(lists: &CompletionLogprobs, from: usize, position: u32) -> Vec<TopRow> {
    let mut rows = Vec::new();
    let all = lists.tokens.iter().enumerate().skip(from);
    for ((index, token), position) in all.zip(position..) {
        let own = lists.token_logprobs.get(index).copied().flatten();
        let top = lists.top_logprobs.get(index).cloned().flatten();
        let (Some(own), Some(mut top)) = (own, top) else {
            break;
        };
        top.retain(|text, _| !text.contains('\u{fffd}'));
        top.insert(token.clone(), own);
        let top = top.into_iter().map(|(name, lp)| (id_or_text(name), lp));
        rows.push(TopRow::new(
            position,
            id_or_text(token.clone()),
            top.collect(),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(choice: Value) -> Completion {
        let whole = json!({
            "id": "x", "object": "text_completion", "created": 0, "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}},
        });
        serde_json::from_value(whole).expect("a completion")
    }

    #[test]
    fn prompt_logprobs_as_vllm_writes_them() {
        let one = |lp: f64, rank: u32| json!({"logprob": lp, "rank": rank, "decoded_token": "t"});
        let choice = json!({
            "index": 0, "text": "x", "logprobs": null, "finish_reason": "length",
            "prompt_logprobs": [null, {"5": one(-1.5, 2), "7": one(-0.3, 1)},
                                {"9": one(-0.1, 1)}],
        });
        let whole = answer(choice);
        assert_eq!(whole.found().cached, Some(16));
        let rows = id_rows(&[4, 5, 9], whole.choice().unwrap()).unwrap();
        assert_eq!((rows.len(), rows[0].position), (2, 1));
        assert_eq!((&rows[0].token[..], rows[0].logprob()), ("5", Some(-1.5)));
        assert_eq!(rows[1].token, "9");
    }

    #[test]
    fn a_server_that_scores_other_tokens_is_refused() {
        let entry = json!({"7": {"logprob": -0.3, "rank": 1, "decoded_token": "t"}});
        let choice = json!({
            "index": 0, "text": "", "logprobs": null, "finish_reason": null,
            "prompt_logprobs": [null, entry],
        });
        let choice = || answer(choice.clone()).choice().unwrap();
        let wrong = id_rows(&[4, 5], choice()).unwrap_err().to_string();
        assert!(wrong.contains("own token 5"), "{wrong}");
        let short = id_rows(&[4, 7, 8], choice()).unwrap_err().to_string();
        assert!(short.contains("2 positions for 3"), "{short}");
    }

    #[test]
    fn parallel_lists_and_unreadable_tokens() {
        let lists = CompletionLogprobs {
            text_offset: vec![0, 1],
            token_logprobs: vec![Some(-0.5), Some(-0.7)],
            tokens: vec![" a".into(), "\u{fffd}".into()],
            top_logprobs: vec![
                Some([(" a".into(), -0.5), ("\u{fffd}".into(), -3.0)].into()),
                Some([("b".into(), -1.0)].into()),
            ],
        };
        let rows = text_rows(&lists, 0, 40);
        assert_eq!((rows[0].position, rows[1].position), (40, 41));
        assert_eq!(rows[0].top.len(), 1);
        assert_eq!(rows[1].top["\u{fffd}"], -0.7);
        assert_eq!(id_or_text("token_id:42".into()), "42");
    }

    /// The first event of `golden/streams/llamacpp_completion_stream_logprobs.json`, shortened.
    #[test]
    fn lists_in_the_layout_of_chats_name_tokens_by_their_ids() {
        let one = |id: u32, token: &str, lp: f64| json!({"id": id, "token": token, "logprob": lp});
        let mut scored = one(7042, " Paris", -0.248);
        scored["top_logprobs"] = json!([one(7042, " Paris", -0.248), one(260, " the", -2.785)]);
        let choice = json!({"text": " Paris", "logprobs": {"content": [scored]}});
        let choice = answer(choice).choice().unwrap();
        let rows = generated_rows(choice.logprobs.as_ref().unwrap(), 5);
        let top = [("7042".to_owned(), -0.248), ("260".to_owned(), -2.785)];
        assert_eq!(rows, [TopRow::new(5, "7042", top.into())]);
        // One scored position is no echo of five tokens.
        let echo = echo_rows(&[1, 2, 3, 4, 5], choice).unwrap_err().to_string();
        assert_eq!(echo, "1 positions for 5 prompt tokens");
    }

    #[test]
    fn timings_speak_where_the_usage_does_not() {
        let found = |body: Value| serde_json::from_value::<Completion>(body).unwrap().found();
        let timings = json!({"cache_n": 4, "prompt_n": 1});
        let both = json!({"choices": [], "timings": timings, "usage": {"prompt_tokens": 5}});
        let (cached, computed) = (Some(4), Some(1));
        assert_eq!(found(both), Found { cached, computed });
        assert_eq!(found(json!({"choices": []})), Found::default());
    }
}
