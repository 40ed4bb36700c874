//! The HTTP front of the engine: OpenAI's completions and chat completions as vLLM serves them.
//!
//! A benchmark that drives this engine and a remote server with one client can compare them only
//! when both speak the same protocol down to its details, so the bodies here follow recordings of
//! a real server. One thread owns the engine core and steps it; every response has a collector
//! between that thread and its connection, so a slow client never slows a step and a client that
//! hangs up frees its blocks.
//!
//! Paths: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`, `/metrics`
//! (Prometheus), `/tokenize`, `/detokenize`, `/reset_prefix_cache`, `/server_info` and
//! `/steps/stream?from=N` (step rows as they happen, one JSON object a line), `/kernel_times` (sums
//! by kernel of a device's timed steps). For routers and for
//! disaggregation: `/worker`, `/kv_events?since=SEQ`, `/transfers?from=N`, and the field
//! `kv_transfer_params` of a request (`docs/TRANSFER.md`).
//!
//! The name of a LoRA adapter in `model` chooses that adapter, `n` gives several choices of one
//! computed prompt, and `priority` is heeded where the engine's queue is ordered by it.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use pb_contract::WallClock;
//! # use pb_server::{Core, ModelAssets, ServerOptions, ServeError, serve};
//! # async fn start(core: Box<dyn Core>, assets: ModelAssets) -> Result<(), ServeError> {
//! let options = ServerOptions { model_name: "smollm2".to_owned(), ..ServerOptions::default() };
//! let ready = |address| eprintln!("listening on http://{address}");
//! let shutdown = async { drop(tokio::signal::ctrl_c().await) };
//! let abort = std::future::pending();
//! serve(core, assets, Arc::new(WallClock), options, ready, shutdown, abort).await
//! # }
//! ```

mod accept;
mod adapters;
mod app;
mod body;
mod budget;
mod chat;
mod collector;
mod completions;
mod core_api;
mod device_metrics;
mod engine;
mod error;
mod exposition;
mod fields;
mod generation;
mod job;
mod kv;
mod kv_metrics;
mod kv_routes;
mod live;
mod logprobs;
mod metrics;
mod options;
mod output;
mod page;
mod phase;
mod room;
mod routes;
mod serve;
mod shape;
mod sse;
mod steps;
mod stop;
mod text;
mod text_work;
mod value;
mod waits;

pub use adapters::TokenizerText;
pub use core_api::{Core, CoreFailure, CoreStatus, CoreStep, Refusal};
pub use kv::{KvFacts, KvRole, KvTransferParams};
pub use options::ServerOptions;
pub use serve::{ServeError, serve};
pub use text::{ChatTurn, Detokenizer, ModelAssets, ServedAdapter, TextError, TextModel};
