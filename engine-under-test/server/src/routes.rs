//! Paths, authorisation, and the small endpoints.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use pb_contract::TokenId;
use pb_contract::wire::{DetokenizeResponse, Prompt};
use pb_core::KernelTotal;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body::RawBody;
use crate::budget::Share;
use crate::error::ApiError;
use crate::exposition::Exposition;
use crate::{body, chat, completions, job, kv_routes};

/// Fields of `/tokenize` and `/detokenize` beside the text or the tokens.
const SMALL_FIELDS: [&str; 5] = [
    "model",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "return_token_strs",
];

/// Every path of the server.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::handle))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/server_info", get(server_info))
        .route("/steps/stream", get(steps))
        .route("/kernel_times", get(kernel_times))
        .route("/kv_events", get(kv_routes::kv_events))
        .route("/worker", get(kv_routes::worker))
        .route("/transfers", get(kv_routes::transfers))
        .route("/kv_release", post(kv_routes::release))
        .fallback(async || ApiError::no_such_path())
        .method_not_allowed_fallback(async || ApiError::wrong_method())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), authorize))
        .with_state(app)
}

async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Some(key) = &app.options.api_key
        && request.uri().path() != "/health"
    {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        if !given.is_some_and(|given| same(given, key.as_bytes())) {
            return ApiError::unauthorized().into_response();
        }
    }
    next.run(request).await
}

/// Equality that takes as long for a nearly right key as for a wrong one.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a
        .iter()
        .zip(b)
        .fold(0, |differences, (x, y)| differences | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// The model and, after it, the adapters.
async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let model = &app.options.model_name;
    let context = app.config.max_model_len;
    let mut cards = vec![model_card(
        &app,
        model,
        &app.assets.root,
        None,
        Some(context),
    )];
    for adapter in &app.assets.adapters {
        cards.push(model_card(
            &app,
            &adapter.name,
            &adapter.root,
            Some(model),
            None,
        ));
    }
    Json(json!({ "object": "list", "data": cards }))
}

/// As vLLM writes it: an adapter has a parent and no context length of its own.
fn model_card(
    app: &App,
    id: &str,
    root: &str,
    parent: Option<&str>,
    max_model_len: Option<usize>,
) -> Value {
    let created = app.created();
    json!({
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "prefillbench",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [{
            "id": app.new_id("modelperm"),
            "object": "model_permission",
            "created": created,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    })
}

async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.dead() {
        Some(reason) => ApiError::unavailable(reason).into_response(),
        None => StatusCode::OK.into_response(),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let shared = app.engine.shared();
    let device = app.engine.device_memory().await;
    let status = shared.status();
    let metrics = shared.metrics().clone();
    let page = Exposition {
        model_name: &app.options.model_name,
        config: &app.config,
        kv_pool_bytes: app.kv_pool_bytes,
        adapters: &app.assets.adapters,
        created: app.created(),
        metrics: &metrics,
        status: &status,
        device: device.as_ref(),
    };
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=1.0.0; charset=utf-8",
    )];
    (kind, page.render()).into_response()
}

async fn reset_prefix_cache(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let success = app.engine.reset_prefix_cache().await?;
    Ok(Json(json!({ "success": success })))
}

async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "name": "prefillbench",
        "version": env!("CARGO_PKG_VERSION"),
        "model_name": app.options.model_name,
        "max_model_len": app.config.max_model_len,
        "config": app.config,
        "kv_pool_bytes": app.kv_pool_bytes,
        "model": app.assets.receipt,
        "adapters": app.assets.adapters,
    }))
}

/// Reads a body whose field `prompt` is a text or tokens, and its share of the memory.
async fn small_body(
    app: &App,
    request: Request,
    prompt: &str,
) -> Result<(RawBody, Share), ApiError> {
    let options = &app.options;
    let limit_bytes = options.text_limit_bytes.min(options.body_limit_bytes);
    let body::Whole { bytes, share } = body::read(app, request, limit_bytes).await?;
    let raw = body::parse(&bytes, Some(prompt), &|name| SMALL_FIELDS.contains(&name))?;
    match raw.fields.get("model") {
        None | Some(Value::Null) => {}
        Some(Value::String(model)) => drop(app.adapter(Some(model))?),
        Some(other) => return Err(ApiError::value("model", "model must be a string", other)),
    }
    Ok((raw, share))
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(ApiError::value(
            name,
            &format!("{name} must be true or false"),
            other,
        )),
    }
}

/// Tokens of a text, or of a conversation through the chat template.
async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Tokenized>, ApiError> {
    let (RawBody { prompt, fields }, share) = small_body(&app, request, "prompt").await?;
    let add_special = flag(&fields, "add_special_tokens")?;
    let add_generation_prompt = flag(&fields, "add_generation_prompt")?.unwrap_or(true);
    let with_strings = flag(&fields, "return_token_strs")?.unwrap_or(false);
    let shared = Arc::clone(&app);
    let length = share.bytes();
    let work = move || {
        // Kept as long as the work lasts, also when the client has gone.
        let _share = share;
        let model = shared.text();
        let (text, special) = match (prompt, fields.get("messages")) {
            (Some(Prompt::Text(text)), _) => (text, add_special.unwrap_or(true)),
            (None, Some(messages)) => {
                let turns = job::parse_turns(messages.as_array())?;
                let text = model.render_chat(&turns, add_generation_prompt);
                let text = text.map_err(|e| ApiError::field("messages", e.to_string()))?;
                (text, add_special.unwrap_or(false))
            }
            _ => return Err(ApiError::field("prompt", "prompt must be a string")),
        };
        let tokens = model.encode(&text, special);
        let tokens = tokens.map_err(|e| ApiError::field("prompt", e.to_string()))?;
        let strings: Option<Vec<String>> =
            with_strings.then(|| tokens.iter().map(|&id| model.token_text(id)).collect());
        Ok((tokens, strings))
    };
    let (tokens, token_strs) = app.side_texts.run(length, work).await?;
    Ok(Json(Tokenized {
        count: tokens.len(),
        max_model_len: app.config.max_model_len,
        tokens,
        token_strs,
    }))
}

/// The answer of `/tokenize`.
#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let (raw, share) = small_body(&app, request, "tokens").await?;
    let Some(Prompt::Ids(ids)) = raw.prompt else {
        let message = "tokens must be a list of token ids";
        return Err(ApiError::field("tokens", message));
    };
    app.check_vocabulary("tokens", &ids)?;
    let shared = Arc::clone(&app);
    let work = move || {
        let _share = share;
        let text = shared.text().decode(&ids);
        text.map_err(|error| ApiError::field("tokens", error.to_string()))
    };
    let prompt = app.side_texts.run(0, work).await?;
    Ok(Json(DetokenizeResponse { prompt }))
}

/// Sums by kernel over the steps that were timed.
async fn kernel_times(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let kernels = app.engine.shared().status().kernels;
    if kernels.is_empty() {
        return Err(ApiError::not_timed());
    }
    let row = |total: &KernelTotal| {
        json!({
            "kernel": total.kernel,
            "launches": total.launches,
            "time_ns": total.time,
            "overhead_ns": total.overhead,
        })
    };
    let rows: Vec<Value> = kernels.iter().map(row).collect();
    Ok(Json(json!({ "kernels": rows })))
}

/// Step rows as they come, one JSON object a line, from step `from` on. A line
/// `{"dropped":k}` stands where `k` rows were gone before they could be read.
async fn steps(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let from = kv_routes::number(request.uri().query(), "from")?;
    Ok(kv_routes::stream_rows(app, from, |shared| &shared.ring))
}
