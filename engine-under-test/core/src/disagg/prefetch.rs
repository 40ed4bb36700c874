//! KV that is fetched before the request comes that needs it.
//!
//! While a prompt is computed elsewhere its KV comes here, under a ticket that a later request
//! names. It comes into copies beside the pool: a prefetch has no block of the pool and no place,
//! so a prompt that takes long elsewhere keeps nobody waiting here. Without room for copies it
//! waits, and the other engine holds what there is. The request that names the ticket takes the
//! copies over when they are complete and there is room in the pool; before it has any copies it
//! becomes an import like any other.

use pb_contract::{BlockId, EngineRequest, RequestId};
use pb_transfer::service::{Claim, ImportEvent, Remote};

use super::imports::Import;
use super::{EarlySource, KvEngine};
use crate::error::AdmitError;

/// How far a prefetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits to be offered.
    Claimed,
    /// It waits for copies; whether blocks come as they are.
    Offered { direct: bool },
    /// It comes.
    Coming { direct: bool },
    /// All is here; what that took, from the claim and from the room, ns, and bytes.
    Here { direct: bool, took: [u64; 3] },
}

/// KV on its way for a request that is still to come.
pub(super) struct Prefetch {
    remote: Remote,
    ticket: u64,
    digest: [u8; 32],
    tokens: usize,
    stage: Stage,
    /// Where the blocks arrive; none before there is room for copies.
    pub(super) slots: Vec<BlockId>,
    /// The request that takes it over.
    adopted: Option<RequestId>,
}

impl KvEngine {
    /// Fetches the KV of a prompt. `request` is never run; its id names the prefetch.
    pub(super) fn prefetch(
        &mut self,
        request: &EngineRequest,
        source: EarlySource,
    ) -> Result<(), AdmitError> {
        let digest = self.engine.prompt_digest(request)?;
        let tokens = request.prompt.len();
        let cached = self.engine.cached_tokens(request)?;
        let known = |one: &Prefetch| one.ticket == source.ticket;
        let Some(importer) = &mut self.importer else {
            return Err(AdmitError::NoTransfer {
                verb: "take",
                role: "decode",
            });
        };
        if tokens == 0 || 2 * cached >= tokens || self.prefetches.values().any(known) {
            // What is here already is not sent to a request that comes later.
            self.fetched.push(request.id);
            self.wake();
            return Ok(());
        }
        let prefetch = Prefetch {
            remote: source.remote.clone(),
            ticket: source.ticket,
            digest,
            tokens,
            stage: Stage::Claimed,
            slots: Vec::new(),
            adopted: None,
        };
        self.prefetches.insert(request.id, prefetch);
        importer.claim(Claim {
            request: request.id,
            remote: source.remote,
            ticket: source.ticket,
            digest,
            early: true,
        });
        Ok(())
    }

    /// Takes what a transfer thread tells of a prefetch.
    pub(super) fn prefetch_told(&mut self, id: RequestId, event: ImportEvent) {
        let Some(prefetch) = self.prefetches.get_mut(&id) else {
            return;
        };
        match event {
            ImportEvent::Room { direct, .. } => {
                prefetch.stage = Stage::Offered { direct };
                self.give_copies();
            }
            ImportEvent::Started {
                total_ns,
                transfer_ns,
                bytes,
                ..
            } => {
                let Stage::Coming { direct } = prefetch.stage else {
                    return;
                };
                let took = [total_ns, transfer_ns, bytes];
                prefetch.stage = Stage::Here { direct, took };
                let adopted = prefetch.adopted;
                self.forget(id);
                self.waiting.extend(adopted);
            }
            ImportEvent::Failed { cause, reason, .. } => {
                self.prefetch_failed(id, cause.name(), reason);
            }
        }
    }

    /// Lets those come that wait for copies, oldest name first: at most as many blocks at a time as
    /// the pool has.
    fn give_copies(&mut self) {
        let (block_size, most) = (
            self.engine.config().block_size,
            self.engine.kv().usable_blocks(),
        );
        let mut taken: usize = self.prefetches.values().map(|one| one.slots.len()).sum();
        for (&id, prefetch) in &mut self.prefetches {
            let Stage::Offered { direct } = prefetch.stage else {
                continue;
            };
            taken += prefetch.tokens.div_ceil(block_size);
            if taken > most {
                return;
            }
            let needed = prefetch.tokens.div_ceil(block_size);
            prefetch.slots = (0..needed).map(|_| self.staging.blank()).collect();
            prefetch.stage = Stage::Coming { direct };
            if let Some(importer) = &self.importer {
                importer.reserved(id, prefetch.slots.clone(), 0);
            }
        }
    }

    /// A prefetch does not come.
    fn prefetch_failed(&mut self, id: RequestId, cause: &'static str, reason: String) {
        let Some(prefetch) = self.remove_prefetch(id) else {
            return;
        };
        match prefetch.adopted {
            Some(request) => {
                if self.end_import(request).is_some() {
                    self.give_up(request, cause, reason);
                }
            }
            // Nobody needs it yet; whoever does will be told another ticket, or hear that it is
            // gone.
            None => self.fetched.push(id),
        }
    }

    /// Ends a prefetch that no request has taken over; false when there is none under that name.
    pub(super) fn cancel_prefetch(&mut self, id: RequestId) -> bool {
        let idle = |one: &Prefetch| one.adopted.is_none();
        let found = self.prefetches.get(&id).is_some_and(idle);
        if found {
            self.drop_prefetch(id);
        }
        found
    }

    /// Ends a prefetch, whoever wants it.
    pub(super) fn drop_prefetch(&mut self, id: RequestId) {
        let here = |one: &Prefetch| matches!(one.stage, Stage::Here { .. });
        if let Some(importer) = &self.importer
            && !self.prefetches.get(&id).is_some_and(here)
        {
            importer.cancel(id);
        }
        self.remove_prefetch(id);
    }

    /// Forgets a prefetch and its copies.
    fn remove_prefetch(&mut self, id: RequestId) -> Option<Prefetch> {
        let prefetch = self.prefetches.remove(&id)?;
        for &slot in &prefetch.slots {
            self.staging.take(slot);
        }
        self.forget(id);
        self.give_copies();
        Some(prefetch)
    }

    fn forget(&mut self, id: RequestId) {
        if let Some(importer) = &mut self.importer {
            importer.forget(id);
        }
    }

    /// Lets `request` take over what is fetched under its ticket; false when nothing is.
    pub(super) fn adopt(
        &mut self,
        request: RequestId,
        (remote, ticket): (&Remote, u64),
        digest: &[u8; 32],
    ) -> bool {
        let found = self.prefetches.iter_mut().find(|(_, one)| {
            one.ticket == ticket && one.remote == *remote && one.adopted.is_none()
        });
        let Some((&id, prefetch)) = found else {
            return false;
        };
        if prefetch.digest != *digest {
            let reason = "the KV fetched under that transfer_id is not this prompt's";
            self.give_up(request, "mismatch", reason.to_owned());
            self.wake();
            return true;
        }
        let mut import = Import {
            name: Some(id),
            ..Import::default()
        };
        match prefetch.stage {
            Stage::Claimed | Stage::Offered { .. } => {
                if let Stage::Offered { direct } = prefetch.stage {
                    import.direct = direct;
                    self.waiting.push_back(request);
                }
                self.prefetches.remove(&id);
                self.renamed.insert(id, request);
            }
            Stage::Coming { direct } => {
                prefetch.adopted = Some(request);
                (import.direct, import.takes_over) = (direct, true);
            }
            Stage::Here { direct, .. } => {
                prefetch.adopted = Some(request);
                (import.direct, import.takes_over) = (direct, true);
                self.waiting.push_back(request);
            }
        }
        self.imports.insert(request, import);
        self.fetched.push(id);
        self.wake();
        true
    }

    /// The copies that a request takes over which has room now, and what their transfer took. Of
    /// its first `have` blocks none is needed.
    pub(super) fn take_over(
        &mut self,
        id: RequestId,
        have: usize,
    ) -> Option<(Vec<BlockId>, [u64; 3])> {
        let prefetch = self.prefetches.remove(&id)?;
        let Stage::Here { took, .. } = prefetch.stage else {
            return None;
        };
        for &slot in prefetch.slots.iter().take(have) {
            self.staging.take(slot);
        }
        self.give_copies();
        Some((prefetch.slots, took))
    }

    /// Prefetches that wait for copies.
    pub(super) fn prefetches_waiting(&self) -> usize {
        let waits = |one: &&Prefetch| matches!(one.stage, Stage::Offered { .. });
        self.prefetches.values().filter(waits).count()
    }
}
