//! What a generation request asks for.

use pb_contract::TokenId;
use serde_json::Value;

use crate::event::Head;
use crate::options::MockOptions;
use crate::tokens::{Tokenizer, chat_text};

/// Most choices of one request.
const MOST_CHOICES: u64 = 64;

/// A whole response that is known before anything is timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// A JSON document.
    pub(crate) fn json(status: u16, body: &Value) -> Reply {
        Reply {
            head: Head::new(status, "application/json"),
            body: body.to_string().into_bytes(),
        }
    }

    /// Text of a given type.
    pub(crate) fn text(status: u16, content_type: &str, body: String) -> Reply {
        Reply {
            head: Head::new(status, content_type),
            body: body.into_bytes(),
        }
    }

    /// An error as vLLM words it.
    pub(crate) fn error(status: u16, kind: &str, param: Option<&str>, message: &str) -> Reply {
        let error = serde_json::json!({
            "message": message, "type": kind, "param": param, "code": status,
        });
        Reply::json(status, &serde_json::json!({ "error": error }))
    }

    /// A request that is wrong in a field.
    fn bad(param: &str, message: &str) -> Reply {
        Reply::error(400, "BadRequestError", Some(param), message)
    }
}

/// The two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
}

impl Api {
    /// Its path.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }
}

/// A generation request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) prompt: Vec<TokenId>,
    /// Output tokens at most; none: not said.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) salt: Option<String>,
    /// Class for the script, from the body's `mock_class`.
    pub(crate) class: Option<String>,
    /// Choices to generate.
    pub(crate) choices: u32,
    /// The tokens' ids are wanted (`return_token_ids`), named by this tokenizer.
    pub(crate) token_ids: Option<Tokenizer>,
    /// The prompt may come from the cache (llama.cpp's `cache_prompt`).
    pub(crate) cache_prompt: bool,
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(crate) fn parse(api: Api, body: &[u8], options: &MockOptions) -> Result<Ask, Reply> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|e| Reply::bad("body", &format!("the body is no JSON: {e}")))?;
        if !body.is_object() {
            return Err(Reply::bad("body", "the body must be a JSON object"));
        }
        let model = body["model"].as_str().unwrap_or(&options.model).to_string();
        if model != options.model {
            let message = format!(
                "The model `{model}` does not exist. Valid aliases: {}.",
                options.model
            );
            return Err(Reply::error(404, "NotFoundError", Some("model"), &message));
        }
        let choices = match &body["n"] {
            Value::Null => 1,
            n => n.as_u64().unwrap_or(0),
        };
        if !(1..=MOST_CHOICES).contains(&choices) {
            let message = format!("n must be 1 to {MOST_CHOICES}, got {}.", body["n"]);
            return Err(Reply::bad("n", &message));
        }
        let token_ids = truth(&body["return_token_ids"], "return_token_ids", false)?;
        let prompt = match api {
            Api::Completions => completion_prompt(&body["prompt"], options)?,
            Api::Chat => options.tokenizer.encode(&chat_prompt(&body["messages"])?),
        };
        let ask = Ask {
            api,
            model,
            prompt,
            max_tokens: max_tokens(&body)?,
            ignore_eos: truth(&body["ignore_eos"], "ignore_eos", false)?,
            stream: truth(&body["stream"], "stream", false)?,
            include_usage: flag(&body, "include_usage")?,
            continuous_usage: flag(&body, "continuous_usage_stats")?,
            salt: body["cache_salt"].as_str().map(str::to_string),
            class: body["mock_class"].as_str().map(str::to_string),
            choices: choices as u32,
            token_ids: token_ids.then_some(options.tokenizer),
            cache_prompt: truth(&body["cache_prompt"], "cache_prompt", true)?,
        };
        let wanted = (ask.prompt.len()).saturating_add(ask.max_tokens.unwrap_or(1) as usize);
        if wanted > options.max_model_len {
            let message = format!(
                "This model's maximum context length is {} tokens; the prompt has {} and {} more \
                 were asked for.",
                options.max_model_len,
                ask.prompt.len(),
                ask.max_tokens.unwrap_or(1)
            );
            return Err(Reply::bad("prompt", &message));
        }
        Ok(ask)
    }
}

fn flag(body: &Value, name: &str) -> Result<bool, Reply> {
    truth(&body["stream_options"][name], name, false)
}

/// A field that is true, false or not there.
fn truth(value: &Value, name: &str, absent: bool) -> Result<bool, Reply> {
    match value {
        Value::Null => Ok(absent),
        Value::Bool(truth) => Ok(*truth),
        other => {
            let message = format!("{name}: Input should be a valid boolean, got {other}.");
            Err(Reply::bad(name, &message))
        }
    }
}

fn max_tokens(body: &Value) -> Result<Option<u32>, Reply> {
    let field = ["max_completion_tokens", "max_tokens"]
        .into_iter()
        .find(|name| !body[*name].is_null());
    let Some(name) = field else {
        return Ok(None);
    };
    let value = &body[name];
    match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
        Some(n @ 1..) => Ok(Some(n)),
        _ if !value.is_number() => {
            let message = format!("{name}: Input should be a valid integer, got {value}.");
            Err(Reply::bad(name, &message))
        }
        _ if value.as_u64().is_some_and(|n| n > 0) => {
            let message = format!("{name} must be at most {}, got {value}.", u32::MAX);
            Err(Reply::bad(name, &message))
        }
        _ => {
            let message = format!("{name} must be at least 1, got {}.", body[name]);
            Err(Reply::bad(name, &message))
        }
    }
}

fn completion_prompt(prompt: &Value, options: &MockOptions) -> Result<Vec<TokenId>, Reply> {
    let wrong = || Reply::bad("prompt", "prompt must be one text or one list of token ids");
    match prompt {
        Value::String(text) => Ok(options.tokenizer.encode(text)),
        // One prompt in a list is that prompt.
        Value::Array(list) => match list.as_slice() {
            [only @ (Value::String(_) | Value::Array(_))] => completion_prompt(only, options),
            ids => ids
                .iter()
                .map(|id| id.as_u64().and_then(|id| TokenId::try_from(id).ok()))
                .collect::<Option<_>>()
                .ok_or_else(wrong),
        },
        _ => Err(wrong()),
    }
}

/// The text of the messages; content may be text or a list of text parts.
fn chat_prompt(messages: &Value) -> Result<String, Reply> {
    let wrong = || {
        Reply::bad(
            "messages",
            "messages must be a list of {role, content} with text",
        )
    };
    let messages = messages
        .as_array()
        .filter(|m| !m.is_empty())
        .ok_or_else(wrong)?;
    let mut turns = Vec::with_capacity(messages.len());
    for message in messages {
        let role = message["role"].as_str().ok_or_else(wrong)?;
        let content = match &message["content"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
            _ => return Err(wrong()),
        };
        turns.push((role.to_string(), content));
    }
    Ok(chat_text(&turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(api: Api, body: &str) -> Result<Ask, Reply> {
        Ask::parse(api, body.as_bytes(), &MockOptions::default())
    }

    #[test]
    fn a_request_is_read_whatever_form_its_prompt_has() {
        let ask = parse(
            Api::Completions,
            r#"{"prompt":[1,2,3],"max_tokens":4,"stream":true,"ignore_eos":true,
                "stream_options":{"include_usage":true},"cache_salt":"s"}"#,
        )
        .unwrap();
        assert_eq!((ask.prompt, ask.max_tokens), (vec![1, 2, 3], Some(4)));
        assert!(ask.stream && ask.ignore_eos && ask.include_usage && !ask.continuous_usage);
        assert_eq!(ask.salt.as_deref(), Some("s"));
        for prompt in [r#""ab""#, r#"["ab"]"#, "[[97,98]]"] {
            let ask = parse(Api::Completions, &format!(r#"{{"prompt":{prompt}}}"#)).unwrap();
            assert_eq!(ask.prompt, [97, 98]);
        }
        let chat = r#"{"messages":[{"role":"u","content":[{"type":"text","text":"x"}]}]}"#;
        assert_eq!(
            parse(Api::Chat, chat).unwrap().prompt.len(),
            "u\nx\nassistant\n".len()
        );
    }

    fn refused(cases: &[(Api, &str, u16, &str)]) {
        for &(api, body, status, expected) in cases {
            let reply = parse(api, body).unwrap_err();
            let text = String::from_utf8(reply.body).unwrap();
            assert!(
                reply.head.status == status && text.contains(expected),
                "{body}: {text}"
            );
        }
    }

    #[test]
    fn numbers_and_truths_of_another_type_or_size_are_refused() {
        refused(&[
            (
                Api::Completions,
                r#"{"prompt":"x","max_tokens":"x"}"#,
                400,
                "valid integer, got \\\"x\\\"",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","max_tokens":1000000000}"#,
                400,
                "maximum context",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","max_tokens":5000000000}"#,
                400,
                "at most 4294967295",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","stream":"yes"}"#,
                400,
                "stream: Input should be a valid boolean",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","n":1000000}"#,
                400,
                "n must be 1 to 64",
            ),
        ]);
    }

    #[test]
    fn a_wrong_request_is_refused_with_the_field() {
        refused(&[
            (Api::Completions, "{", 400, "no JSON"),
            (Api::Completions, "[]", 400, "JSON object"),
            (
                Api::Completions,
                r#"{"prompt":"x","model":"nope"}"#,
                404,
                "`nope` does not exist",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","max_tokens":-5}"#,
                400,
                "at least 1, got -5",
            ),
            (
                Api::Completions,
                r#"{"prompt":["a","b"]}"#,
                400,
                "one text or one list",
            ),
            (
                Api::Completions,
                r#"{"prompt":[-1]}"#,
                400,
                "one text or one list",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","n":0}"#,
                400,
                "n must be 1 to 64, got 0",
            ),
            (
                Api::Completions,
                r#"{"prompt":"x","max_tokens":2000000}"#,
                400,
                "maximum context",
            ),
            (
                Api::Chat,
                r#"{"messages":[]}"#,
                400,
                "list of {role, content}",
            ),
            (
                Api::Chat,
                r#"{"messages":[{"content":"x"}]}"#,
                400,
                "list of {role, content}",
            ),
        ]);
    }
}
