//! What each path answers.

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::ask::{Api, Ask, Reply};
use crate::options::{Persona, ResetStyle};
use crate::slots::Slot;
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
    if let Persona::LlamaCpp { .. } = shared.options.persona {
        let mut reply = llama_reply(shared, method, path)
            .unwrap_or_else(|| common_reply(shared, method, path, body));
        reply
            .head
            .fields
            .push(("Server".into(), "llama.cpp".into()));
        return reply;
    }
    common_reply(shared, method, path, body)
}

/// What llama.cpp's server answers otherwise than vLLM.
fn llama_reply(shared: &Shared, method: &str, path: &str) -> Option<Reply> {
    let erased = path.strip_prefix("/slots/");
    match (method, path) {
        ("GET", "/slots") => {
            let slot = |(id, slot): (usize, &Slot)| {
                json!({
                    "id": id, "n_ctx": shared.options.max_model_len,
                    "is_processing": slot.busy, "id_task": slot.task.map_or(-1, |n| n as i64),
                    "n_prompt_tokens": slot.prompt.0, "n_prompt_tokens_cache": slot.prompt.1,
                })
            };
            let slots = shared.slots();
            let list: Vec<Value> = slots.iter().enumerate().map(slot).collect();
            Some(Reply::json(200, &Value::Array(list)))
        }
        ("POST", _) if erased.is_some() => {
            let index = erased.and_then(|index| index.parse().ok());
            let forgotten = index.and_then(|index| shared.erase_slot(index));
            Some(match forgotten {
                Some(tokens) => Reply::json(200, &json!({"id_slot": index, "n_erased": tokens})),
                None => Reply::error(400, "invalid_request_error", None, "Invalid slot ID"),
            })
        }
        ("GET", "/props") => Some(Reply::json(
            200,
            &json!({
                "total_slots": shared.slots().len(), "model_path": shared.options.model,
                "default_generation_settings": { "n_ctx": shared.options.max_model_len },
            }),
        )),
        (_, "/metrics") => {
            let message =
                "This server does not support metrics endpoint. Start it with `--metrics`";
            Some(Reply::error(501, "not_supported_error", None, message))
        }
        (_, "/reset_prefix_cache" | "/flush_cache") => {
            Some(Reply::error(404, "not_found_error", None, "File Not Found"))
        }
        _ => None,
    }
}

fn common_reply(shared: &Shared, method: &str, path: &str, body: &[u8]) -> Reply {
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
            if let Some(late) = log.lateness.percentile(99) {
                let late = ("x-mock-late-p99-ns".into(), late.0.to_string());
                reply.head.fields.push(late);
            }
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

/// Owner of the model, by which this server is known as what it is.
const OWNER: &str = "prefillbench-mock";

fn models(shared: &Shared) -> Reply {
    let options = &shared.options;
    Reply::json(
        200,
        &json!({
            "object": "list",
            "data": [{
                "id": options.model, "object": "model", "created": 0, "owned_by": OWNER,
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
