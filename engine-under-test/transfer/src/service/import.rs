//! The decode side: claims, one connection for each exporter, and what arrives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pb_contract::{BlockId, Clock, Nanos, RequestId, Stream};

use super::connection::Connection;
use super::{Dial, Remote, Tell};
use crate::agent::SinkOptions;
use crate::handshake::Peer;
use crate::memory::{Memory, Region};
use crate::message::Cause;

/// How KV is fetched.
#[derive(Clone)]
pub struct ImportOptions {
    /// The connections'.
    pub sink: SinkOptions,
    /// How exporters are reached.
    pub dial: Dial,
    /// How long a claim may stay without an answer.
    pub claim: Nanos,
    /// Exporters at a time.
    pub peers: usize,
}

/// KV that a request needs.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The request, as this engine calls it.
    pub request: RequestId,
    /// Who holds the KV.
    pub remote: Remote,
    /// Under which name.
    pub ticket: u64,
    /// What it must be the KV of.
    pub digest: [u8; 32],
    /// The prompt may not have begun yet: while nothing is held under the ticket, it is asked for
    /// again.
    pub early: bool,
}

/// What happened to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportEvent {
    /// Find room for so many tokens and call [`Importer::reserved`], now or later: until then the
    /// exporter holds the KV.
    Room {
        /// The request.
        request: RequestId,
        /// Tokens.
        tokens: u64,
        /// Whether blocks arrive as they are, so that those that are here already can be left out.
        direct: bool,
    },
    /// All of the KV is in the blocks.
    Started {
        /// The request.
        request: RequestId,
        /// From the claim to here, ns.
        total_ns: u64,
        /// From the room to here, ns.
        transfer_ns: u64,
        /// Bytes that were to arrive.
        bytes: u64,
    },
    /// There will be no KV, and nothing writes to the blocks any more.
    Failed {
        /// The request.
        request: RequestId,
        /// Why.
        cause: Cause,
        /// In words.
        reason: String,
    },
}

/// What a connection is told to do.
pub(super) enum Order {
    Claim(Claim),
    Reserved {
        request: RequestId,
        blocks: Vec<BlockId>,
        have: u32,
    },
    Cancel(RequestId),
}

/// The ways to the threads.
#[derive(Default)]
pub(super) struct Peers {
    pub(super) orders: BTreeMap<Remote, Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
}

/// What every connection of an importer needs.
pub(super) struct Common {
    pub(super) me: Peer,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) region: Region,
    pub(super) options: ImportOptions,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) sessions: Mutex<Stream>,
    peers: Mutex<Peers>,
    pub(super) stopped: AtomicBool,
    pub(super) tell: Tell<ImportEvent>,
}

impl Common {
    pub(super) fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, request: RequestId, cause: Cause, reason: impl Into<String>) {
        let reason = reason.into();
        (self.tell)(ImportEvent::Failed {
            request,
            cause,
            reason,
        });
    }
}

/// Fetches what other engines hold.
pub struct Importer {
    common: Arc<Common>,
    /// Who has each request's KV.
    remotes: BTreeMap<RequestId, Remote>,
}

impl Importer {
    /// An importer without connections; they are made as they are needed. `sessions` must be
    /// another stream after each start of the process.
    pub fn new(
        me: Peer,
        (memory, region): (Arc<dyn Memory>, Region),
        options: ImportOptions,
        clock: Arc<dyn Clock>,
        sessions: Stream,
        tell: Tell<ImportEvent>,
    ) -> Importer {
        Importer {
            common: Arc::new(Common {
                me,
                memory,
                region,
                options,
                clock,
                sessions: Mutex::new(sessions),
                peers: Mutex::new(Peers::default()),
                stopped: AtomicBool::new(false),
                tell,
            }),
            remotes: BTreeMap::new(),
        }
    }

    /// Claims KV. Exactly one [`ImportEvent::Started`] or [`ImportEvent::Failed`] follows.
    pub fn claim(&mut self, claim: Claim) {
        self.remotes.insert(claim.request, claim.remote.clone());
        let (request, remote) = (claim.request, claim.remote.clone());
        let mut peers = self.common.peers();
        if !peers.orders.contains_key(&remote) {
            peers.threads.retain(|thread| !thread.is_finished());
            let most = self.common.options.peers;
            if peers.orders.len() >= most {
                drop(peers);
                let reason = format!("KV is fetched from {most} engines already");
                self.common.fail(request, Cause::NoRoom, reason);
                return;
            }
            let (sender, orders) = channel();
            let (common, to) = (Arc::clone(&self.common), remote.clone());
            let thread = std::thread::Builder::new().name("kv-sink".to_owned());
            match thread.spawn(move || Connection::new(common, to, orders).run()) {
                Ok(thread) => peers.threads.push(thread),
                Err(error) => {
                    drop(peers);
                    let reason = format!("no thread: {error}");
                    self.common.fail(request, Cause::NoRoom, reason);
                    return;
                }
            }
            peers.orders.insert(remote.clone(), sender);
        }
        // Whoever takes the entry out empties the queue under the same lock.
        if let Some(orders) = peers.orders.get(&remote) {
            let _ = orders.send(Order::Claim(claim));
        }
    }

    /// There is room: the KV goes to `blocks` of the importer's memory, of which the first `have`
    /// hold it already.
    pub fn reserved(&self, request: RequestId, blocks: Vec<BlockId>, have: u32) {
        self.order(
            request,
            Order::Reserved {
                request,
                blocks,
                have,
            },
        );
    }

    /// The request is not wanted any more.
    pub fn cancel(&self, request: RequestId) {
        self.order(request, Order::Cancel(request));
    }

    /// Forgets a request that has started or failed.
    pub fn forget(&mut self, request: RequestId) {
        self.remotes.remove(&request);
    }

    fn order(&self, request: RequestId, order: Order) {
        let peers = self.common.peers();
        let remote = self.remotes.get(&request);
        if let Some(orders) = remote.and_then(|remote| peers.orders.get(remote)) {
            // A connection that is gone has told that the request failed.
            let _ = orders.send(order);
        }
    }

    /// Exporters that are connected, or about to be.
    pub fn connections(&self) -> usize {
        self.common.peers().orders.len()
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        self.common.stopped.store(true, Ordering::Relaxed);
        let threads = {
            let mut peers = self.common.peers();
            // Wakes those that wait for orders.
            peers.orders.clear();
            std::mem::take(&mut peers.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}
