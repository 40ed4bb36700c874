//! What each path answers.

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::ask::{Api, Ask, Reply};
use crate::options::ResetStyle;
use crate::state::Shared;
use crate::tokens::chat_text;

/// What to do with a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// Answer at once.
    Reply(Reply),
    /// Replay a recording.
    Recording(Answer),
    /// Generate.
    Generate(Ask),
}

/// Decides by method, path and body.
pub(crate) fn route(shared: &Shared, method: &str, path: &str, body: &[u8]) -> Route {
    if let Some(answer) = shared.recording(path) {
        return Route::Recording(answer);
    }
    let api = match path {
        "/v1/completions" => Api::Completions,
        "/v1/chat/completions" => Api::Chat,
        _ => return Route::Reply(reply(shared, method, path, body)),
    };
    if method != "POST" {
        return Route::Reply(wrong_method(method, path));
    }
    match Ask::parse(api, body, &shared.options) {
        Ok(ask) => Route::Generate(ask),
        Err(reply) => Route::Reply(reply),
    }
}

fn wrong_method(method: &str, path: &str) -> Reply {
    let message = format!("{path} does not take {method}");
    Reply::error(405, "MethodNotAllowed", None, &message)
}

fn reply(shared: &Shared, method: &str, path: &str, body: &[u8]) -> Reply {
    let resets = shared.options.cache.reset != ResetStyle::Absent;
    match (method, path) {
        ("GET", "/health") => Reply::text(200, "text/plain", String::new()),
        ("GET", "/v1/models") => models(shared),
        ("POST", "/tokenize") => tokenize(shared, body),
        ("POST", "/detokenize") => detokenize(shared, body),
        ("GET", "/metrics") => {
            let content_type = "text/plain; version=0.0.4; charset=utf-8";
            Reply::text(200, content_type, shared.metrics())
        }
        ("POST", "/reset_prefix_cache") if resets => {
            Reply::json(200, &json!({ "success": shared.reset_cache() }))
        }
        ("GET" | "POST", "/flush_cache") if resets => match shared.reset_cache() {
            true => Reply::text(200, "text/plain", "Cache flushed.\n".into()),
            false => Reply::text(400, "text/plain", "Requests are running.\n".into()),
        },
        ("GET", "/mock/log") => {
            let log = shared.log();
            let mut reply = Reply::text(200, "text/csv; charset=utf-8", log.to_csv());
            let dropped = ("x-mock-dropped".into(), log.dropped.to_string());
            reply.head.fields.push(dropped);
            reply
        }
        ("DELETE", "/mock/log") => {
            shared.clear_log();
            Reply::json(200, &json!({ "success": true }))
        }
        (_, "/health" | "/v1/models" | "/tokenize" | "/detokenize" | "/metrics" | "/mock/log") => {
            wrong_method(method, path)
        }
        (_, "/reset_prefix_cache" | "/flush_cache") if resets => wrong_method(method, path),
        _ => Reply::error(404, "NotFoundError", None, "there is nothing at this path"),
    }
}

fn models(shared: &Shared) -> Reply {
    let options = &shared.options;
    Reply::json(
        200,
        &json!({
            "object": "list",
            "data": [{
                "id": options.model, "object": "model", "created": 0, "owned_by": "prefillbench",
                "root": options.model, "max_model_len": options.max_model_len,
            }],
        }),
    )
}

fn tokenize(shared: &Shared, body: &[u8]) -> Reply {
    let options = &shared.options;
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = match (body["prompt"].as_str(), body["messages"].as_array()) {
        (Some(text), _) => text.to_string(),
        (None, Some(messages)) => {
            let part = |m: &Value, name: &str| m[name].as_str().unwrap_or("").to_string();
            let turns = messages
                .iter()
                .map(|m| (part(m, "role"), part(m, "content")));
            chat_text(&turns.collect::<Vec<_>>())
        }
        (None, None) => {
            let message = "the body must have a text `prompt` or a list `messages`";
            return Reply::error(400, "BadRequestError", Some("prompt"), message);
        }
    };
    let tokens = options.tokenizer.encode(&text);
    Reply::json(
        200,
        &json!({
            "count": tokens.len(), "max_model_len": options.max_model_len, "tokens": tokens,
        }),
    )
}

fn detokenize(shared: &Shared, body: &[u8]) -> Reply {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let tokens: Option<Vec<u32>> = serde_json::from_value(body["tokens"].clone()).ok();
    match tokens.and_then(|tokens| shared.options.tokenizer.decode(&tokens)) {
        Some(prompt) => Reply::json(200, &json!({ "prompt": prompt })),
        None => {
            let message = "`tokens` must be a list of bytes that are UTF-8 (words cannot be told)";
            Reply::error(400, "BadRequestError", Some("tokens"), message)
        }
    }
}
