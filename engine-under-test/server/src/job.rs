//! A request after its fields are checked: what to generate and how to answer.

use std::sync::Arc;

use pb_contract::SamplingParams;
use pb_contract::wire::{Prompt, SamplingFields};
use serde_json::{Map, Value};

use crate::body;
use crate::error::ApiError;
use crate::fields;
use crate::kv::KvRequest;
use crate::stop::StopSet;
use crate::text::ChatTurn;

/// What both request types have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    /// What the model's name stands for; set once that is known.
    pub(crate) adapter: Option<String>,
    /// Lower is served first.
    pub(crate) priority: i64,
    /// Choices a prompt.
    pub(crate) n: usize,
    /// Everything but `max_tokens`, `seed` of each choice and stop strings.
    pub(crate) params: SamplingParams,
    pub(crate) max_tokens: Option<u32>,
    /// Shared by the choices.
    pub(crate) stop: Arc<StopSet>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) cache_salt: Option<String>,
    pub(crate) return_token_ids: bool,
    pub(crate) add_special_tokens: Option<bool>,
    /// Who computes what.
    pub(crate) kv: KvRequest,
}

/// A completion to make.
#[derive(Debug)]
pub(crate) struct CompletionJob {
    pub(crate) common: Common,
    pub(crate) prompt: Prompt,
    pub(crate) echo: bool,
    /// `echo` with `max_tokens` 0: only the prompt comes back.
    pub(crate) echo_only: bool,
    /// Lists of log-probabilities name tokens by their ids, not by their texts.
    pub(crate) tokens_as_ids: bool,
}

/// A chat completion to make.
#[derive(Debug)]
pub(crate) struct ChatJob {
    pub(crate) common: Common,
    pub(crate) turns: Vec<ChatTurn>,
    pub(crate) add_generation_prompt: bool,
}

impl CompletionJob {
    /// Reads a body; `max_logprobs` bounds every kind of log-probabilities.
    pub(crate) fn parse(bytes: &[u8], max_logprobs: u32) -> Result<Self, ApiError> {
        let known = |name: &str| fields::completion_rule(name).is_some();
        let mut raw = body::parse(bytes, Some("prompt"), &known)?;
        let echo_only = raw.fields.get("echo") == Some(&Value::Bool(true))
            && raw.fields.get("max_tokens").and_then(Value::as_f64) == Some(0.0);
        if echo_only {
            // One token is computed, as in vLLM, and then left out.
            raw.fields.insert("max_tokens".to_owned(), Value::from(1));
        }
        let mut fields = fields::check(raw.fields, fields::completion_rule)?;
        let prompt = raw
            .prompt
            .ok_or_else(|| ApiError::field("prompt", "prompt is required"))?;
        let echo = flag(&mut fields, "echo").unwrap_or(false);
        let tokens_as_ids = flag(&mut fields, "return_tokens_as_token_ids").unwrap_or(false);
        let logprobs = fields
            .remove("logprobs")
            .and_then(|v| v.as_u64())
            .map(|v| v as u32);
        let mut common = Common::parse(fields)?;
        common.params.logprobs = logprobs;
        if echo && common.params.prompt_logprobs.is_none() {
            common.params.prompt_logprobs = logprobs;
        } else if common.stream && common.params.prompt_logprobs.is_some() {
            let message = "`prompt_logprobs` are not available when `stream=True`.";
            return Err(ApiError::field("prompt_logprobs", message));
        }
        common.check_logprobs(max_logprobs)?;
        Ok(CompletionJob {
            common,
            prompt,
            echo,
            echo_only,
            tokens_as_ids,
        })
    }
}

impl ChatJob {
    /// Reads a body; `max_logprobs` bounds every kind of log-probabilities.
    pub(crate) fn parse(bytes: &[u8], max_logprobs: u32) -> Result<Self, ApiError> {
        let raw = body::parse(bytes, None, &|name| fields::chat_rule(name).is_some())?;
        let mut fields = fields::check(raw.fields, fields::chat_rule)?;
        let messages = fields.remove("messages");
        let turns = parse_turns(messages.as_ref().and_then(Value::as_array))?;
        let add_generation_prompt = flag(&mut fields, "add_generation_prompt").unwrap_or(true);
        let logprobs = flag(&mut fields, "logprobs").unwrap_or(false);
        let top = fields
            .remove("top_logprobs")
            .and_then(|v| v.as_u64())
            .map(|v| v as u32);
        if top.is_some_and(|top| top > 0) && !logprobs {
            let message = "when using `top_logprobs`, `logprobs` must be set to true.";
            return Err(ApiError::field("top_logprobs", message));
        }
        if let Some(newer) = fields.remove("max_completion_tokens") {
            fields.insert("max_tokens".to_owned(), newer);
        }
        let mut common = Common::parse(fields)?;
        common.params.logprobs = logprobs.then_some(top.unwrap_or(0));
        if common.stream && common.params.prompt_logprobs.is_some() {
            let message = "`prompt_logprobs` are not available when `stream=True`.";
            return Err(ApiError::field("prompt_logprobs", message));
        }
        common.check_logprobs(max_logprobs)?;
        Ok(ChatJob {
            common,
            turns,
            add_generation_prompt,
        })
    }
}

impl Common {
    fn parse(mut fields: Map<String, Value>) -> Result<Self, ApiError> {
        let model = fields
            .remove("model")
            .and_then(|v| v.as_str().map(str::to_owned));
        let options = fields.remove("stream_options");
        let option = |name: &str| {
            let flag = options.as_ref().and_then(|options| options.get(name));
            flag.and_then(Value::as_bool).unwrap_or(false)
        };
        let (include_usage, continuous) =
            (option("include_usage"), option("continuous_usage_stats"));
        let kv = KvRequest::parse(fields.remove("kv_transfer_params"))?;
        let best_of = fields.remove("best_of");
        let priority = fields.remove("priority").and_then(|v| v.as_i64());
        let wire: SamplingFields = serde_json::from_value(Value::Object(fields))
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let stream = wire.stream.unwrap_or(false);
        let stop = wire.stop.map(|stop| stop.into_vec()).unwrap_or_default();
        let n = wire.n.unwrap_or(1);
        check_best_of(best_of.as_ref(), n)?;
        if options.is_some() && !stream {
            let message = "Stream options can only be defined when `stream=True`.";
            return Err(ApiError::field("stream_options", message));
        }
        let params = SamplingParams {
            temperature: wire.temperature.unwrap_or(1.0),
            top_p: wire.top_p.unwrap_or(1.0),
            top_k: u32::try_from(wire.top_k.unwrap_or(0)).unwrap_or(0),
            seed: wire.seed.map(|seed| seed as u64),
            max_tokens: 0,
            min_tokens: wire.min_tokens.unwrap_or(0),
            ignore_eos: wire.ignore_eos.unwrap_or(false),
            // Stop strings are this side's work: the core sees tokens only.
            stop: Vec::new(),
            stop_token_ids: wire.stop_token_ids.unwrap_or_default(),
            logprobs: None,
            prompt_logprobs: wire.prompt_logprobs,
        };
        Ok(Common {
            model,
            adapter: None,
            priority: priority.unwrap_or(0),
            n: n as usize,
            params,
            max_tokens: wire.max_tokens,
            stop: Arc::new(StopSet::new(stop)),
            stream,
            include_usage,
            // Without the usage event vLLM sends no usage at all.
            continuous_usage: include_usage && continuous,
            cache_salt: wire.cache_salt,
            return_token_ids: wire.return_token_ids.unwrap_or(false),
            add_special_tokens: wire.add_special_tokens,
            kv,
        })
    }

    /// Whether the request goes on after a first token of another engine, which then has told
    /// everything about the prompt.
    pub(crate) fn go_on(&mut self) -> bool {
        let taken = matches!(self.kv, KvRequest::Take(_));
        if taken {
            self.params.prompt_logprobs = None;
        }
        taken
    }

    /// The name that the answer carries: the adapter's, or the model's.
    pub(crate) fn answering<'a>(&'a self, model: &'a str) -> &'a str {
        self.adapter.as_deref().unwrap_or(model)
    }

    fn check_logprobs(&self, most: u32) -> Result<(), ApiError> {
        let asked = [
            ("logprobs", "sample", self.params.logprobs),
            ("prompt_logprobs", "prompt", self.params.prompt_logprobs),
        ];
        for (name, kind, count) in asked {
            if let Some(count) = count.filter(|&count| count > most) {
                let message = format!(
                    "Requested {kind} logprobs of {count}, which is greater than max allowed: \
                     {most}"
                );
                return Err(ApiError::field(name, message));
            }
        }
        Ok(())
    }
}

/// More candidates than answers would have to be ranked, which is not implemented.
fn check_best_of(best_of: Option<&Value>, n: u32) -> Result<(), ApiError> {
    match best_of {
        Some(value) if value.as_u64() != Some(u64::from(n)) => {
            let sentence = "best_of is not supported by this server unless it equals n";
            Err(ApiError::value("best_of", sentence, value))
        }
        _ => Ok(()),
    }
}

fn flag(fields: &mut Map<String, Value>, name: &str) -> Option<bool> {
    fields.remove(name).and_then(|value| value.as_bool())
}

/// Messages with their content as text.
pub(crate) fn parse_turns(messages: Option<&Vec<Value>>) -> Result<Vec<ChatTurn>, ApiError> {
    let messages = messages.ok_or_else(|| ApiError::field("messages", "messages is required"))?;
    if messages.is_empty() {
        return Err(ApiError::field(
            "messages",
            "messages must hold at least one message",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(i, message)| parse_turn(i, message))
        .collect()
}

fn parse_turn(number: usize, message: &Value) -> Result<ChatTurn, ApiError> {
    let wrong = |what: &str| {
        Err(ApiError::field(
            "messages",
            format!("messages[{number}].{what}"),
        ))
    };
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return wrong("role must be a string");
    };
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        // An assistant's turn may have no text.
        Some(Value::Null) => String::new(),
        Some(Value::Array(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                let is_text = part.get("type").and_then(Value::as_str) == Some("text");
                match part.get("text").and_then(Value::as_str) {
                    Some(text) if is_text => texts.push(text),
                    _ => return wrong("content may hold parts of type text only"),
                }
            }
            texts.join("\n")
        }
        _ => return wrong("content must be a string or a list of text parts"),
    };
    Ok(ChatTurn {
        role: role.to_owned(),
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: ApiError) -> String {
        error.body().error.message
    }

    #[test]
    fn defaults_are_vllms() {
        let job = CompletionJob::parse(b"{\"prompt\": \"x\"}", 20).unwrap();
        let c = &job.common;
        assert_eq!(
            (c.n, c.stream, c.max_tokens, c.params.temperature),
            (1, false, None, 1.0)
        );
        assert!(!job.echo && !job.echo_only && c.params.logprobs.is_none());
    }

    #[test]
    fn echo_with_logprobs_asks_for_the_prompts_too_even_in_a_stream() {
        let body = b"{\"prompt\": [1], \"echo\": true, \"logprobs\": 3, \"stream\": true}";
        let job = CompletionJob::parse(body, 20).unwrap();
        assert_eq!(job.common.params.prompt_logprobs, Some(3));
        let body = b"{\"prompt\": [1], \"echo\": true, \"max_tokens\": 0}";
        let job = CompletionJob::parse(body, 20).unwrap();
        assert!(job.echo_only && job.common.max_tokens == Some(1));
        let body = b"{\"prompt\": [1], \"echo\": true, \"max_tokens\": 0.0}";
        assert!(CompletionJob::parse(body, 20).unwrap().echo_only);
        assert!(CompletionJob::parse(b"{\"prompt\": [1], \"max_tokens\": 0}", 20).is_err());
    }

    #[test]
    fn combinations_that_make_no_sense_are_refused() {
        let prompt_logprobs = b"{\"prompt\": \"x\", \"prompt_logprobs\": 1, \"stream\": true}";
        let error = CompletionJob::parse(prompt_logprobs, 20).unwrap_err();
        assert!(message(error).contains("not available when `stream=True`"));
        let options = b"{\"prompt\": \"x\", \"stream_options\": {\"include_usage\": true}}";
        let error = CompletionJob::parse(options, 20).unwrap_err();
        assert!(message(error).contains("only be defined when `stream=True`"));
        let error = CompletionJob::parse(b"{\"prompt\": \"x\", \"logprobs\": 21}", 20).unwrap_err();
        assert!(message(error).contains("logprobs of 21, which is greater than max allowed: 20"));
        assert!(CompletionJob::parse(b"{}", 20).is_err());
        for (fields, fine) in [
            ("\"best_of\": 1", true),
            ("\"best_of\": 2.0, \"n\": 2", true),
            ("\"best_of\": 2", false),
            ("\"best_of\": 2, \"n\": 1", false),
            ("\"best_of\": 1, \"n\": 2", false),
        ] {
            let body = format!("{{\"prompt\": \"x\", {fields}}}");
            let parsed = CompletionJob::parse(body.as_bytes(), 20);
            assert_eq!(parsed.is_ok(), fine, "{fields}");
        }
    }

    #[test]
    fn chat_content_may_be_parts_and_the_newer_limit_wins() {
        let body = br#"{"messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null}],
            "max_tokens": 3, "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2}"#;
        let job = ChatJob::parse(body, 20).unwrap();
        assert_eq!(job.turns[0].content, "a\nb");
        assert_eq!(job.turns[1].content, "");
        assert_eq!(
            (job.common.max_tokens, job.common.params.logprobs),
            (Some(5), Some(2))
        );
        let image = br#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
        assert!(message(ChatJob::parse(image, 20).unwrap_err()).starts_with("messages[0].content"));
        assert!(ChatJob::parse(b"{\"messages\": []}", 20).is_err());
    }
}
