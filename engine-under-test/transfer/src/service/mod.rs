//! Exporting and importing KV between engines whose requests meet through a router.
//!
//! The prefill engine does not know who will decode. It *holds* a request's KV under a ticket, and
//! tells the ticket to whoever asked; the decode engine that gets it *claims* the ticket over a
//! connection of its own. A claim names the digest of what it takes the KV for, so that a wrong
//! ticket, another tokenizer or another adapter is declined and never decoded.
//!
//! ```text
//! prefill                                   decode
//!   hold(ticket) ....... by way of the router .... claim(ticket, digest)
//!        <-------------------- Claim ---------------------
//!        --------------------- Offer -------------------->   Room, and Reserved when there is some
//!        <------- Want, Renew;  cells ------------------->   each verified
//!   Freed <--------------------- Ack ---------------------   Started
//! ```
//!
//! What is held may still be computed ([`Progress`]): it is offered when it is claimed, and sent as
//! it comes, layer by layer within a step if the granularity says so. A claim that is *early* waits
//! for its ticket, as it may be sooner there than the prompt.
//!
//! Nobody claims: the hold ends when its lease is over. Whatever else happens, every hold ends in
//! one [`ExportEvent::Freed`], and every claim in one [`ImportEvent::Started`] or
//! [`ImportEvent::Failed`]. The threads here own the agents; an engine's thread never waits for a
//! peer.

mod connect;
mod connection;
mod export;
mod growing;
mod import;
mod parked;

use std::sync::Arc;

pub use connect::{Dial, KvListener, Remote};
pub use export::{ExportEvent, ExportOptions, Exporter, Held};
pub use growing::Progress;
pub use import::{Claim, ImportEvent, ImportOptions, Importer};

/// Where a thread tells what happened; called from several threads.
pub type Tell<E> = Arc<dyn Fn(E) + Send + Sync>;
