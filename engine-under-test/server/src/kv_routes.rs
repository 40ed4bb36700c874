//! What a router asks: who a worker is, what its cache holds, and how its transfers went.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use pb_contract::TransferLine;
use pb_kv::{BlockHash, CacheEvent};
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::engine::Shared;
use crate::error::ApiError;
use crate::phase::Phase;
use crate::steps::{Numbered, Ring};

impl Numbered for TransferLine {
    fn number(&self) -> u64 {
        self.seq
    }
}

/// Whose rows these are.
const ENGINE_HEADER: &str = "x-prefillbench-engine";

/// A change of the cache with its number.
#[derive(Clone, Debug)]
pub(crate) struct CacheLine {
    pub(crate) seq: u64,
    pub(crate) event: CacheEvent,
}

impl Numbered for CacheLine {
    fn number(&self) -> u64 {
        self.seq
    }
}

impl CacheLine {
    fn json(&self, block_size: usize) -> Value {
        let (kind, hashes, parent) = match &self.event {
            CacheEvent::Stored { hashes, parent } => ("stored", &hashes[..], *parent),
            CacheEvent::Removed { hashes } => ("removed", &hashes[..], None),
            CacheEvent::Cleared => ("cleared", &[][..], None),
        };
        json!({
            "seq": self.seq,
            "kind": kind,
            "hashes": hashes.iter().map(hex).collect::<Vec<_>>(),
            "parent": parent.as_ref().map(hex),
            "tokens": hashes.len() * block_size,
        })
    }
}

fn hex(hash: &BlockHash) -> String {
    hex_of(&hash.0)
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Changes of the prefix cache from number `since` on. Whoever asked for an older one than
/// `oldest_seq` has missed some, and knows nothing any more.
pub(crate) async fn kv_events(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let since = number(request.uri().query(), "since")?;
    let ring = &app.engine.shared().cache_events;
    let read = ring.read(since);
    let block_size = app.config.block_size;
    // Nothing was ever stored, or nobody has pushed anything out yet.
    let oldest = ring.oldest().unwrap_or(0);
    Ok(Json(json!({
        "engine_id": app.engine_id(),
        "block_size": block_size,
        "next_seq": read.next,
        "oldest_seq": oldest,
        "events": read.rows.iter().map(|line| line.json(block_size)).collect::<Vec<_>>(),
    })))
}

/// Who this worker is and how busy.
pub(crate) async fn worker(State(app): State<Arc<App>>) -> Json<Value> {
    let status = app.engine.shared().status();
    let (buckets, counters) = (status.buckets, status.counters);
    let kv = app.options.kv.as_ref();
    Json(json!({
        "engine_id": app.engine_id(),
        "role": kv.map_or("none", |kv| kv.role.as_str()),
        "block_size": app.config.block_size,
        "blocks_total": buckets.total(),
        // All that can be handed out: the free ones and the reclaimable ones.
        "blocks_free": buckets.free_including_reclaimable(),
        "blocks_reclaimable": buckets.reclaimable,
        "blocks_in_transfer": counters.in_transfer_blocks,
        "running": counters.running,
        "waiting": counters.waiting,
        "kv_transport": kv.map(|kv| kv.transport),
        "kv_host": kv.and_then(|kv| kv.remote.as_ref()).map(|remote| remote.host.as_str()),
        "kv_port": kv.and_then(|kv| kv.remote.as_ref()).map(|remote| remote.port),
        "kv_stream_min_tokens": kv.and_then(|kv| kv.stream_min_tokens),
        "hash": {
            "algorithm": app.config.cache.hash,
            "seed": hex_of(&app.identity),
            "prefix_cache": app.config.prefix_cache,
        },
    }))
}

/// Takes back KV that is held under `transfer_id` and that nobody will claim. `released` is false
/// when none is held, or it has been claimed and ends by itself.
pub(crate) async fn release(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let id = number_if_told(request.uri().query(), "transfer_id")?;
    let id = id.ok_or_else(|| {
        ApiError::field("transfer_id", "transfer_id is missing: say ?transfer_id=N")
    })?;
    let released = app.engine.release(id).await?;
    Ok(Json(json!({ "released": released })))
}

/// Rows of transfers from this server as they end, one JSON object a line, from row `from` on. A
/// line `{"dropped":k}` stands where `k` rows were gone before they could be read. A header names
/// the engine: another one has numbers of its own.
pub(crate) async fn transfers(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let from = number(request.uri().query(), "from")?;
    let engine = app.engine_id();
    let mut answer = stream_rows(app, from, |shared| &shared.transfers);
    // A name that no header can carry is nobody's.
    if let Ok(name) = HeaderValue::from_str(&engine) {
        answer.headers_mut().insert(ENGINE_HEADER, name);
    }
    Ok(answer)
}

/// The answer that gives the rows of a ring as they come.
pub(crate) fn stream_rows<R: Numbered + Serialize + Send + 'static>(
    app: Arc<App>,
    from: u64,
    ring: fn(&Shared) -> &Ring<R>,
) -> Response {
    let rows = ring(app.engine.shared()).watch();
    let state = (app.phase.clone(), rows, from, app);
    let chunks = stream::unfold(state, move |(mut phase, mut rows, from, app)| async move {
        loop {
            rows.borrow_and_update();
            let read = ring(app.engine.shared()).read(from);
            if !read.rows.is_empty() {
                let bytes = Bytes::from(lines(read.dropped, &read.rows));
                return Some((
                    Ok::<Bytes, Infallible>(bytes),
                    (phase, rows, read.next, app),
                ));
            }
            if *phase.borrow_and_update() >= Phase::Draining || app.engine.dead().is_some() {
                return None;
            }
            tokio::select! {
                changed = rows.changed() => changed.ok()?,
                changed = phase.changed() => changed.ok()?,
            }
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(chunks)).into_response()
}

fn lines<R: Serialize>(dropped: u64, rows: &[R]) -> Vec<u8> {
    let mut lines = Vec::new();
    if dropped > 0 {
        lines.extend_from_slice(format!("{{\"dropped\":{dropped}}}\n").as_bytes());
    }
    for row in rows {
        // OK because a Vec takes every write and a row has string keys only.
        serde_json::to_writer(&mut lines, row).unwrap();
        lines.push(b'\n');
    }
    lines
}

/// A number of the query; 0 when it is not there.
pub(crate) fn number(query: Option<&str>, name: &str) -> Result<u64, ApiError> {
    Ok(number_if_told(query, name)?.unwrap_or(0))
}

fn number_if_told(query: Option<&str>, name: &str) -> Result<Option<u64>, ApiError> {
    let pairs = query.unwrap_or_default().split('&');
    let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let number = value.parse().map_err(|_| {
        let sentence = format!("{name} must be a whole number, as in ?{name}=0");
        ApiError::value(name, &sentence, &Value::from(value))
    });
    number.map(Some)
}
