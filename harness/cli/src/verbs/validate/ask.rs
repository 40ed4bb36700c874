//! Questions to a server: log-probabilities of a prompt's tokens and of a greedy continuation.

use anyhow::{Context, Result, bail};
use pb_contract::{Nanos, TokenId};
use pb_load::control::{Control, Method};
use pb_load::{ControlLimits, Endpoint};
use pb_target::{Adapter, Detection, ServerKind};
use serde_json::{Value, json};

use super::answer::{Answer, Completion, echo_rows, generated_rows, id_rows};
use crate::args::ConnectArgs;
use crate::verbs::leak::tenants::key;

/// The route of every question.
const ROUTE: &str = "/v1/completions";

/// Longest part of a foreign message that is repeated.
const MESSAGE_CHARS: usize = 300;

/// How long one route may take when it is found out what a server is.
const ASK_LIMIT: Nanos = Nanos::from_secs(5);

/// A server that can be asked.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) control: Control,
    /// Address, for messages.
    pub(crate) url: String,
    model: String,
    /// Most likely tokens to ask for.
    pub(crate) listed: usize,
    /// What it is, as far as it is known.
    pub(crate) detection: Option<Detection>,
}

/// What a request may find in the prefix cache. Requests with one salt share it, where the server
/// knows salts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cache<'a> {
    /// Nothing: the salt is new, or the request leaves the cache alone.
    Cold(&'a str),
    /// What a request with this salt left there.
    Warm(&'a str),
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

/// Whether and how a server gives the log-probabilities of a prompt.
pub(crate) struct Sources {
    /// The first way that works.
    pub(crate) found: Option<Source>,
    /// What it said to the others.
    pub(crate) refusals: Vec<String>,
}

impl Sources {
    /// Why there is none.
    pub(crate) fn why_not(&self) -> String {
        let said = self.refusals.join("; ");
        format!("this server gives no log-probabilities of prompts ({said})")
    }
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
            detection: None,
        })
    }

    /// Fails unless the server answers, and finds out what it is.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) async fn greet(&mut self) -> Result<()> {
        let asked = self.control.exchange(Method::GET, "/v1/models", None).await;
        asked.with_context(|| self.url.clone())?;
        self.detection = Some(Detection::of(&self.control, None, ASK_LIMIT).await);
        Ok(())
    }

    /// Kind and version, as far as they are known.
    pub(crate) fn server(&self) -> String {
        let Some(found) = &self.detection else {
            return ServerKind::Unknown.to_string();
        };
        let version = found.version.iter().map(String::as_str);
        let words: Vec<&str> = std::iter::once(found.kind.name()).chain(version).collect();
        words.join(" ")
    }

    /// The field by which a request leaves the cache alone, for servers that do not know salts.
    /// Such a server remembers for each slot the prompt that it served last, whatever that
    /// request said.
    pub(crate) fn cache_off_field(&self) -> Option<&'static str> {
        let kind = self.detection.as_ref()?.kind;
        Adapter::of(kind).cache_off_field
    }

    /// Finds out how this server gives the log-probabilities of a prompt, if it does.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(crate) async fn sources(&self, prompt: &[TokenId]) -> Result<Sources> {
        let mut refusals = Vec::new();
        for source in [Source::PromptLogprobs, Source::Echo] {
            // A server that does not know a field may refuse it or pass it by.
            let (status, text) = self.post(&self.prompt_body(prompt, source)).await?;
            let said = match serde_json::from_str(&text) {
                _ if status != 200 => format!("HTTP {status}: {}", message(&text)),
                Err(_) => "no completion".to_owned(),
                Ok(answer) => match self.prompt_answer(prompt, source, answer) {
                    Ok(_) => {
                        let found = Some(source);
                        return Ok(Sources { found, refusals });
                    }
                    Err(error) => error.root_cause().to_string(),
                },
            };
            refusals.push(format!("{}: {said}", source.name()));
        }
        let found = None;
        Ok(Sources { found, refusals })
    }

    /// Log-probabilities of every prompt token but the first.
    ///
    /// # Errors
    /// The server fails, or scores other positions than it was asked for.
    pub(crate) async fn prompt(&self, prompt: &[TokenId], source: Source) -> Result<Answer> {
        let answer = self.ask(&self.prompt_body(prompt, source)).await?;
        self.prompt_answer(prompt, source, answer)
    }

    /// A greedy continuation of `tokens` tokens with the log-probabilities of each.
    ///
    /// # Errors
    /// The server fails, or gives no log-probabilities.
    pub(crate) async fn generate(
        &self,
        prompt: &[TokenId],
        tokens: usize,
        cache: Cache<'_>,
    ) -> Result<Answer> {
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true, "logprobs": self.listed,
            // Some tokens are no text by themselves and would all read alike.
            "return_tokens_as_token_ids": true,
        });
        let (Cache::Cold(salt) | Cache::Warm(salt)) = cache;
        match self.cache_off_field() {
            Some(field) => body[field] = matches!(cache, Cache::Warm(_)).into(),
            None => body["cache_salt"] = salt.into(),
        }
        let answer = self.ask(&body).await?;
        let found = answer.found();
        let choice = answer.choice()?;
        let logprobs = choice.logprobs.with_context(|| {
            format!(
                "{}: the answer has no `logprobs`: nothing can be compared",
                self.url
            )
        })?;
        let rows = generated_rows(&logprobs, prompt.len() as u32);
        let text = choice.text;
        Ok(Answer { rows, found, text })
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
        Ok(self.ask(&body).await?.choice()?.text)
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
        answer: Completion,
    ) -> Result<Answer> {
        let found = answer.found();
        let choice = answer.choice()?;
        let text = choice.text.clone();
        let rows = match source {
            Source::PromptLogprobs => id_rows(prompt, choice),
            Source::Echo => echo_rows(prompt, choice),
        };
        Ok(Answer {
            rows: rows.with_context(|| format!("{}: {}", self.url, source.name()))?,
            found,
            text,
        })
    }

    async fn post(&self, body: &Value) -> Result<(u16, String)> {
        let asked = self.control.exchange(Method::POST, ROUTE, Some(body)).await;
        let answer = asked.with_context(|| self.url.clone())?;
        Ok((answer.status, answer.body))
    }

    async fn ask(&self, body: &Value) -> Result<Completion> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_and_cut() {
        assert_eq!(message(r#"{"error": {"message": "no"}}"#), "no");
        assert_eq!(message(r#"{"message": "old"}"#), "old");
        assert_eq!(message(&"x".repeat(900)).len(), MESSAGE_CHARS);
    }
}
