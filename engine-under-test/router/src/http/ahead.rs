//! KV that is fetched while it is computed, and KV that nobody will fetch.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use axum::http::{HeaderMap, Method};
use bytes::Bytes;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::flow::Asked;
use super::join::TransferParams;
use super::peek;
use super::shell::{Shared, Ticket};
use crate::worker::WorkerId;

/// Tickets have 53 bits, so that every JSON reader takes them as they are.
const TICKET_SHIFT: u32 = 11;

/// A request to a decode worker to fetch KV that is still computed. What goes wrong with it costs
/// nothing but time: the request itself goes there when its prompt is computed. Dropping this
/// closes the connection, and the worker forgets what no request has taken over.
pub(crate) struct Ahead {
    transfer_id: u64,
    task: JoinHandle<()>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ahead {
    /// Asks `to` to fetch what `from` is about to compute; none when it is not known where that
    /// is.
    pub(crate) fn start(
        ticket: &Ticket,
        asked: &Asked,
        from: WorkerId,
        to: WorkerId,
    ) -> Option<Ahead> {
        let (host, port) = ticket.shared.remote(from)?;
        let transfer_id = fresh_ticket();
        let params = json!({
            "do_remote_prefill": true, "prefetch": true, "remote_host": host,
            "remote_port": port, "transfer_id": transfer_id,
        });
        let body = Bytes::from(peek::with_params(&asked.body.bytes, &params.to_string()));
        let (shared, path) = (Arc::clone(&ticket.shared), asked.path);
        let headers = asked.headers.clone();
        let task = tokio::spawn(async move {
            let sent = shared.send(to, Method::POST, path, &headers, body);
            if let Ok(leg) = sent.await {
                // The answer only says that it is over.
                drop(leg.whole().await);
            }
        });
        Some(Ahead { transfer_id, task })
    }

    /// What the prefill worker is told.
    pub(crate) fn prefill_params(&self) -> String {
        json!({ "do_remote_decode": true, "transfer_id": self.transfer_id }).to_string()
    }
}

/// A ticket that nobody else has: at random, as those of the workers.
fn fresh_ticket() -> u64 {
    loop {
        // The keys of the standard library's hasher are random.
        let ticket = RandomState::new().build_hasher().finish() >> TICKET_SHIFT;
        if ticket != 0 {
            return ticket;
        }
    }
}

/// KV that a prefill worker holds for a request. Unless it was fetched, the worker is told when
/// this is dropped that nobody will: it need not wait for the end of the lease.
pub(crate) struct Kept {
    shared: Arc<Shared>,
    headers: HeaderMap,
    at: WorkerId,
    transfer_id: u64,
}

impl Kept {
    /// What `params` says that `at` holds; none when it does not name it.
    pub(crate) fn of(
        ticket: &Ticket,
        asked: &Asked,
        at: WorkerId,
        params: &TransferParams,
    ) -> Option<Kept> {
        Some(Kept {
            shared: Arc::clone(&ticket.shared),
            headers: asked.headers.clone(),
            at,
            transfer_id: params.rest.get("transfer_id")?.as_u64()?,
        })
    }

    /// It has been fetched.
    pub(crate) fn fetched(mut self) {
        self.transfer_id = 0;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.transfer_id == 0 {
            return;
        }
        // Without a runtime the router has ended, and the lease does it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let path = format!("/kv_release?transfer_id={}", self.transfer_id);
        let (shared, at) = (Arc::clone(&self.shared), self.at);
        let headers = std::mem::take(&mut self.headers);
        runtime.spawn(async move {
            let sent = shared.send(at, Method::POST, &path, &headers, Bytes::new());
            if let Ok(leg) = sent.await {
                // A worker that cannot release waits for the end of the lease.
                drop(leg.whole().await);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_differ_and_are_small_enough() {
        let mut all: Vec<u64> = (0..100).map(|_| fresh_ticket()).collect();
        assert!(all.iter().all(|ticket| (1..1 << 53).contains(ticket)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 100);
    }
}
