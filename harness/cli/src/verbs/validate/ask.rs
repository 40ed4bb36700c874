//! Questions to a server: log-probabilities of a prompt's tokens and of a greedy continuation.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use pb_contract::wire::{CompletionChoice, CompletionLogprobs, CompletionResponse};
use pb_contract::{Nanos, TokenId};
use pb_judge::remote::TopRow;
use pb_load::control::{Control, Method};
use pb_load::{ControlLimits, Endpoint};
use serde_json::{Value, json};

use crate::args::ConnectArgs;
use crate::verbs::leak::tenants::key;

/// The route of every question.
const ROUTE: &str = "/v1/completions";

/// Longest part of a foreign message that is repeated.
const MESSAGE_CHARS: usize = 300;

/// A server that can be asked.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) control: Control,
    /// Address, for messages.
    pub(crate) url: String,
    model: String,
    /// Most likely tokens to ask for.
    pub(crate) listed: usize,
}

/// How the log-probabilities of a prompt are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// vLLM's field `prompt_logprobs`; tokens are named by their ids.
    PromptLogprobs,
    /// OpenAI's `echo` with `logprobs`; tokens are named by their texts.
    Echo,
}

impl Source {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::PromptLogprobs => "prompt_logprobs",
            Source::Echo => "echo with logprobs",
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Scored positions in ascending order.
    pub(crate) rows: Vec<TopRow>,
    /// Prompt tokens that came from the prefix cache; None when the server does not say.
    pub(crate) cached_tokens: Option<u32>,
    /// The generated text.
    pub(crate) text: String,
}

impl Asker {
    /// A server at `url`, whose flag is `flag`.
    ///
    /// # Errors
    /// A bad address or header, or a key that is not there.
    pub(crate) fn new(
        (flag, url): (&str, &str),
        model: &str,
        listed: usize,
        connect: &ConnectArgs,
    ) -> Result<Asker> {
        let mut endpoint = Endpoint::parse(url)
            .with_context(|| flag.to_owned())?
            .with_model(model);
        if let Some(variable) = &connect.api_key_env {
            let key = key("--api-key-env", variable)?;
            let place = || format!("--api-key-env {variable}");
            endpoint = endpoint.with_api_key(key).with_context(place)?;
        }
        for (name, value) in &connect.header {
            endpoint = endpoint.with_header(name, value).context("--header")?;
        }
        let endpoint = endpoint.with_control_limits(ControlLimits {
            total_ns: Nanos::from_secs_f64(connect.timeout),
            ..ControlLimits::default()
        });
        Ok(Asker {
            control: Control::new(&endpoint)?,
            url: endpoint.url(""),
            model: model.to_owned(),
            listed,
        })
    }

    /// Fails unless the server answers.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) async fn greet(&self) -> Result<()> {
        let asked = self.control.exchange(Method::GET, "/v1/models", None).await;
        asked.map(|_| ()).with_context(|| self.url.clone())
    }

    /// Finds out how this server gives the log-probabilities of a prompt; None when it does not.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) async fn source(&self, prompt: &[TokenId]) -> Result<Option<Source>> {
        for source in [Source::PromptLogprobs, Source::Echo] {
            // A server that does not know a field may refuse it or pass it by.
            let (status, text) = self.post(&self.prompt_body(prompt, source)).await?;
            let answer = serde_json::from_str(&text).ok();
            let rows = answer.and_then(|answer| self.prompt_answer(prompt, source, answer).ok());
            if status == 200 && rows.is_some() {
                return Ok(Some(source));
            }
        }
        Ok(None)
    }

    /// Log-probabilities of every prompt token but the first.
    ///
    /// # Errors
    /// The server fails, or scores other positions than it was asked for.
    pub(crate) async fn prompt(&self, prompt: &[TokenId], source: Source) -> Result<Answer> {
        let answer = self.ask(&self.prompt_body(prompt, source)).await?;
        self.prompt_answer(prompt, source, answer)
    }

    /// A greedy continuation of `tokens` tokens with the log-probabilities of each. Prompts with
    /// one `salt` share the prefix cache.
    ///
    /// # Errors
    /// The server fails, or gives no log-probabilities.
    pub(crate) async fn generate(
        &self,
        prompt: &[TokenId],
        tokens: usize,
        salt: &str,
    ) -> Result<Answer> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true, "logprobs": self.listed, "cache_salt": salt,
            // Some tokens are no text by themselves and would all read alike.
            "return_tokens_as_token_ids": true,
        });
        let answer = self.ask(&body).await?;
        let cached_tokens = cached(&answer);
        let choice = first_choice(answer)?;
        let lists = choice.logprobs.with_context(|| {
            format!(
                "{}: the answer has no `logprobs`: nothing can be compared",
                self.url
            )
        })?;
        Ok(Answer {
            rows: text_rows(&lists, 0, prompt.len() as u32),
            cached_tokens,
            text: choice.text,
        })
    }

    /// A greedy continuation as text, up to one of `stop`.
    ///
    /// # Errors
    /// The server fails.
    pub(crate) async fn complete(
        &self,
        prompt: &str,
        tokens: usize,
        stop: &[&str],
    ) -> Result<String> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "stop": stop,
        });
        Ok(first_choice(self.ask(&body).await?)?.text)
    }

    /// A request that only keeps the server busy; its number of output tokens.
    ///
    /// # Errors
    /// The server fails.
    pub(crate) async fn keep_busy(&self, prompt: &[TokenId], tokens: usize) -> Result<u32> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true,
        });
        let usage = self.ask(&body).await?.usage;
        Ok(usage.map_or(0, |usage| usage.completion_tokens))
    }

    fn prompt_body(&self, prompt: &[TokenId], source: Source) -> Value {
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0,
        });
        match source {
            Source::PromptLogprobs => body["prompt_logprobs"] = self.listed.into(),
            Source::Echo => {
                body["echo"] = true.into();
                body["logprobs"] = self.listed.into();
            }
        }
        body
    }

    fn prompt_answer(
        &self,
        prompt: &[TokenId],
        source: Source,
        answer: CompletionResponse,
    ) -> Result<Answer> {
        let cached_tokens = cached(&answer);
        let choice = first_choice(answer)?;
        let text = choice.text.clone();
        let rows = match source {
            Source::PromptLogprobs => id_rows(prompt, choice),
            Source::Echo => echo_rows(prompt, choice),
        };
        Ok(Answer {
            rows: rows.with_context(|| format!("{}: {}", self.url, source.name()))?,
            cached_tokens,
            text,
        })
    }

    async fn post(&self, body: &Value) -> Result<(u16, String)> {
        let asked = self.control.exchange(Method::POST, ROUTE, Some(body)).await;
        let answer = asked.with_context(|| self.url.clone())?;
        Ok((answer.status, answer.body))
    }

    async fn ask(&self, body: &Value) -> Result<CompletionResponse> {
        let (status, text) = self.post(body).await?;
        if status != 200 {
            bail!(
                "{}: POST {ROUTE}: HTTP {status}: {}",
                self.url,
                message(&text)
            );
        }
        serde_json::from_str(&text)
            .with_context(|| format!("{}: POST {ROUTE}: the answer is no completion", self.url))
    }
}

/// What a server says in an error body, shortened.
fn message(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let said = parsed.pointer("/error/message").or(parsed.get("message"));
    let said = said.and_then(Value::as_str).unwrap_or(body);
    said.chars().take(MESSAGE_CHARS).collect()
}

fn cached(answer: &CompletionResponse) -> Option<u32> {
    answer.usage?.prompt_tokens_details?.cached_tokens
}

fn first_choice(answer: CompletionResponse) -> Result<CompletionChoice> {
    let first = answer.choices.into_iter().next();
    first.context("the answer has no choice")
}

/// Rows of `prompt_logprobs`: one entry a prompt token, null for the first.
fn id_rows(prompt: &[TokenId], choice: CompletionChoice) -> Result<Vec<TopRow>> {
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
fn echo_rows(prompt: &[TokenId], choice: CompletionChoice) -> Result<Vec<TopRow>> {
    let mut lists = choice.logprobs.context("the answer has no `logprobs`")?;
    let (got, want) = (lists.tokens.len(), prompt.len());
    ensure!(got >= want, "{got} positions for {want} prompt tokens");
    // A server that does not echo lists the generated token alone; with several it would not.
    lists.tokens.truncate(want);
    let mut rows = text_rows(&lists, 1, 1);
    let scored = rows.len();
    ensure!(
        scored + 1 == want,
        "{scored} positions are scored for {want} prompt tokens"
    );
    rows.iter_mut()
        .zip(1..)
        .for_each(|(row, at)| row.position = at);
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
    use super::*;

    fn answer(choice: Value) -> CompletionResponse {
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
        assert_eq!(cached(&whole), Some(16));
        let rows = id_rows(&[4, 5, 9], first_choice(whole).unwrap()).unwrap();
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
        let choice = || first_choice(answer(choice.clone())).unwrap();
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

    #[test]
    fn messages_are_found_and_cut() {
        assert_eq!(message(r#"{"error": {"message": "no"}}"#), "no");
        assert_eq!(message(r#"{"message": "old"}"#), "old");
        assert_eq!(message(&"x".repeat(900)).len(), MESSAGE_CHARS);
    }
}
