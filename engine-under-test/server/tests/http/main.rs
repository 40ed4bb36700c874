//! The server over real sockets, with a scripted core and a made-up vocabulary: what is tested
//! here is the protocol, not a model.

mod adapters;
mod auth;
mod choices;
mod client;
mod disagg;
mod disagg_router;
mod errors;
mod fake_core;
mod fake_text;
mod lifecycle;
mod limits;
mod metrics_page;
mod options;
mod real_engine;
mod recorded;
mod recordings;
mod setup;
mod stopping;
