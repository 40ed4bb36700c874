//! Paths, and answers.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};

use super::ahead::{Ahead, Kept};
use super::ask;
use super::body::{self, HeldBody};
use super::error::ApiError;
use super::flow::{self, Asked, Flow, Start, Stop};
use super::join;
use super::page;
use super::peek::Peek;
use super::shell::{Phase, Shared, Ticket};
use super::transfers;
use crate::machine::Command;
use crate::stats::Outcome;
use crate::worker::WorkerId;

/// How often the request was started again before this answer.
const RETRIES: &str = "x-prefillbench-retries";
/// Whether two workers made the answer (`split`) or one (`whole`).
const ROUTE: &str = "x-prefillbench-route";

/// Every path of the router.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/transfers", get(transfers::transfers))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", "Not Found"))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            authorize,
        ))
        .with_state(shared)
}

async fn authorize(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if let Some(key) = &shared.options.api_key
        && request.uri().path() != "/health"
    {
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        if !given.is_some_and(|given| same(given, key.as_bytes())) {
            let status = StatusCode::UNAUTHORIZED;
            return ApiError::new(status, "AuthenticationError", "Unauthorized").into_response();
        }
    }
    next.run(request).await
}

/// Equality that takes as long for a nearly right key as for a wrong one.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    generate(shared, request, "/v1/completions").await
}

async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    generate(shared, request, "/v1/chat/completions").await
}

async fn read(shared: &Arc<Shared>, request: Request) -> Result<(HeaderMap, HeldBody), ApiError> {
    if *shared.phase.borrow() >= Phase::Draining {
        return Err(ApiError::unavailable("The router is shutting down."));
    }
    let headers = shared.headers(Some(request.headers()), true);
    let body = body::read(&shared.bodies, &shared.options, request.into_body()).await?;
    Ok((headers, body))
}

async fn generate(shared: Arc<Shared>, request: Request, path: &'static str) -> Response {
    let (headers, body) = match read(&shared, request).await {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    let peek = match Peek::of(&body.bytes) {
        Ok(peek) => peek,
        Err(message) => return ApiError::bad_request(message).into_response(),
    };
    let told = ask::of(&shared, &peek, &body.bytes, &headers).await;
    let mut ticket = Ticket::new(&shared, told);
    let mut asked = Asked {
        path,
        headers,
        body,
    };
    loop {
        let (at, whole, ahead) = match ticket.next().await {
            Command::Start {
                at, whole, ahead, ..
            } => (at, whole, ahead),
            Command::Refuse { why, .. } => return ApiError::from(why).into_response(),
            // A hand-over of an attempt that failed meanwhile.
            Command::Hand { .. } => continue,
        };
        let ahead = ahead.and_then(|to| Ahead::start(&ticket, &asked, at, to));
        let start = Start { at, whole, ahead };
        let failed = if peek.stream {
            match streamed(ticket, asked, start).await {
                Ok(response) => return response,
                Err((back, asked_back, stop)) => {
                    (ticket, asked) = (back, asked_back);
                    stop
                }
            }
        } else {
            match complete(&mut ticket, &asked, start).await {
                Ok(response) => {
                    ticket.set_outcome(Outcome::Completed);
                    return labelled(response, whole, ticket.retries());
                }
                Err(stop) => stop,
            }
        };
        match failed {
            Stop::Worker { at, error, .. } => {
                if !ticket.retry(at) {
                    return error.into_response();
                }
            }
            Stop::Router(error) => return error.into_response(),
            Stop::Refused { status, kind, body } => {
                ticket.set_outcome(Outcome::Failed);
                let response = passed_on(status, kind, body);
                return labelled(response, whole, ticket.retries());
            }
        }
    }
}

fn passed_on(status: StatusCode, kind: Option<HeaderValue>, body: Vec<u8>) -> Response {
    let kind = kind.unwrap_or(HeaderValue::from_static("application/json"));
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}

fn labelled(mut response: Response, whole: bool, retries: u32) -> Response {
    let headers = response.headers_mut();
    let route = if whole { "whole" } else { "split" };
    headers.insert(ROUTE, HeaderValue::from_static(route));
    headers.insert(RETRIES, HeaderValue::from(retries));
    response
}

/// A streamed answer, once its first event is there.
async fn streamed(
    ticket: Ticket,
    asked: Asked,
    start: Start,
) -> Result<Response, (Ticket, Asked, Stop)> {
    let whole = start.whole;
    let mut flow = Flow::start(ticket, asked, start).await?;
    let first = match flow.next().await {
        Ok(first) => first,
        Err(stop) => {
            let (ticket, asked) = flow.into_parts();
            return Err((ticket, asked, stop));
        }
    };
    let retries = flow.retries();
    let first = first.map_or_else(done, |event| framed(&event));
    let ended = first == done();
    let head = (!ended).then_some(flow);
    let chunks = stream::unfold((Some(first), head), |(first, flow)| async move {
        if let Some(first) = first {
            return Some((Ok::<Bytes, Infallible>(first), (None, flow)));
        }
        let mut flow = flow?;
        let (bytes, flow) = match flow.next().await {
            Ok(Some(event)) => (framed(&event), Some(flow)),
            Ok(None) => (done(), None),
            Err(stop) => {
                let event = flow.fail(&stop);
                (Bytes::from([framed(&event), done()].concat()), None)
            }
        };
        Some((Ok(bytes), (None, flow)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let response = (headers, Body::from_stream(chunks)).into_response();
    Ok(labelled(response, whole, retries))
}

fn framed(event: &[u8]) -> Bytes {
    // An event of several lines has as many fields.
    let mut out = Vec::with_capacity(event.len() + 8);
    for line in event.split(|&byte| byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    Bytes::from(out)
}

fn done() -> Bytes {
    framed(b"[DONE]")
}

/// An answer that is not streamed.
async fn complete(ticket: &mut Ticket, asked: &Asked, start: Start) -> Result<Response, Stop> {
    let (at, params) = (start.at, start.params());
    let leg = flow::ask(ticket, asked, at, params.as_deref()).await?;
    let answer = leg.whole().await.map_err(|error| Stop::leg(at, error))?;
    let ok = |answer: Vec<u8>| passed_on(StatusCode::OK, None, answer);
    if start.whole {
        return Ok(ok(answer));
    }
    let (first, params) = join::take_params(&answer).map_err(|error| Stop::join(at, error))?;
    if params.finished {
        let answer = serde_json::to_vec(&Value::Object(first));
        // OK because the keys of a JSON object are strings.
        return Ok(ok(answer.unwrap()));
    }
    let kept = Kept::of(ticket, asked, at, &params);
    ticket.prefilled();
    let (to, leg) = flow::hand_over(ticket, asked, &params).await?;
    let rest = leg.whole().await.map_err(|error| Stop::leg(to, error))?;
    ticket.fetched();
    if let Some(kept) = kept {
        kept.fetched();
    }
    let joined = join::join_whole(first, &rest).map_err(|error| Stop::join(to, error))?;
    Ok(ok(joined))
}

/// Asks one worker and passes its answer on.
async fn pass(
    shared: &Arc<Shared>,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let Some(to) = shared.any_worker() else {
        return ApiError::unavailable("No worker answers.").into_response();
    };
    let sent = shared.send(to, method, path, headers, body).await;
    let answer = match sent {
        Ok(leg) => {
            let (status, kind) = (leg.status, leg.kind.clone());
            leg.whole().await.map(|body| passed_on(status, kind, body))
        }
        Err(error) => Err(error),
    };
    answer.unwrap_or_else(|error| match Stop::leg(to, error) {
        Stop::Worker { error, .. } | Stop::Router(error) => error.into_response(),
        Stop::Refused { status, kind, body } => passed_on(status, kind, body),
    })
}

async fn models(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let headers = shared.headers(Some(request.headers()), false);
    pass(&shared, Method::GET, "/v1/models", &headers, Bytes::new()).await
}

async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    pass_body(shared, request, "/tokenize").await
}

async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    pass_body(shared, request, "/detokenize").await
}

async fn pass_body(shared: Arc<Shared>, request: Request, path: &str) -> Response {
    match read(&shared, request).await {
        Ok((headers, body)) => {
            pass(&shared, Method::POST, path, &headers, body.bytes.clone()).await
        }
        Err(error) => error.into_response(),
    }
}

/// Resets every worker's cache; a success is one of all. All are asked, whatever one answers.
async fn reset_prefix_cache(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let headers = shared.headers(Some(request.headers()), false);
    let (mut all, mut error) = (true, None);
    for worker in shared.with(|router, _| router.workers()) {
        match reset(&shared, worker.id, &headers).await {
            Ok(done) => all &= done,
            Err(failed) => error = error.or(Some(failed)),
        }
    }
    error.map_or_else(
        || Json(json!({ "success": all })).into_response(),
        IntoResponse::into_response,
    )
}

/// Whether a worker says that it has reset its cache.
async fn reset(shared: &Shared, id: WorkerId, headers: &HeaderMap) -> Result<bool, ApiError> {
    let path = "/reset_prefix_cache";
    let failed = |why: String| ApiError::bad_gateway(format!("worker {id} was not reset: {why}"));
    let sent = shared.send(id, Method::POST, path, headers, Bytes::new());
    let leg = sent.await.map_err(|error| failed(error.message))?;
    let status = leg.status;
    if status == StatusCode::NOT_FOUND {
        // As a server that has no such path says it: vLLM's is for development only.
        let message = format!("worker {id} has no {path}");
        return Err(ApiError::new(status, "NotFoundError", message));
    }
    if status != StatusCode::OK {
        return Err(failed(format!("it answers {}", status.as_u16())));
    }
    let body = leg.whole().await.map_err(|error| failed(error.message))?;
    // vLLM answers without a body.
    let answer = serde_json::from_slice::<Value>(&body).ok();
    Ok(answer.is_none_or(|answer| answer["success"] != Value::Bool(false)))
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (serves, workers) = shared.with(|router, _| (router.can_serve(), router.workers()));
    if !serves {
        return ApiError::unavailable("Too few workers answer.").into_response();
    }
    let up = workers.iter().filter(|worker| worker.up).count();
    Json(json!({ "workers": workers.len(), "up": up })).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.with(|router, _| page::render(router));
    let kind = "text/plain; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
