//! Requests whose KV is fetched.

use pb_contract::{BlockId, EngineRequest, RequestId};
use pb_transfer::service::{Claim, ImportEvent};

use super::staging::NOWHERE;
use super::{KvEngine, KvSource, OnFailure};
use crate::error::AdmitError;

/// A request whose KV is on its way.
#[derive(Default)]
pub(super) struct Import {
    /// Where the blocks arrive; none before there is room.
    pub(super) slots: Vec<BlockId>,
    /// Leading blocks that were here already.
    pub(super) have: usize,
    /// Whether those can be left out.
    pub(super) direct: bool,
    /// What its transfer is called: by the prefetch that it began as, or else by the request.
    pub(super) name: Option<RequestId>,
    /// Whether it takes over the copies of that prefetch.
    pub(super) takes_over: bool,
}

impl KvEngine {
    /// Claims the KV of a request.
    pub(super) fn import(
        &mut self,
        request: EngineRequest,
        source: KvSource,
    ) -> Result<(), AdmitError> {
        if self.importer.is_none() {
            return Err(AdmitError::NoTransfer {
                verb: "take",
                role: "decode",
            });
        }
        let (id, prompt_tokens) = (request.id, request.prompt.len());
        if source.tokens != prompt_tokens {
            return Err(AdmitError::KvTokens {
                held_tokens: source.tokens,
                prompt_tokens,
            });
        }
        self.engine.add_incoming(request, source.first_token)?;
        let digest = self.engine.incoming_digest(id).unwrap_or_default();
        if self.adopt(id, (&source.remote, source.ticket), &digest) {
            self.make_room();
            return Ok(());
        }
        let Some(importer) = &mut self.importer else {
            return Ok(());
        };
        self.imports.insert(id, Import::default());
        importer.claim(Claim {
            request: id,
            remote: source.remote,
            ticket: source.ticket,
            digest,
            early: false,
        });
        Ok(())
    }

    pub(super) fn imported(&mut self, event: ImportEvent) {
        let (ImportEvent::Room { request, .. }
        | ImportEvent::Started { request, .. }
        | ImportEvent::Failed { request, .. }) = &event;
        let name = *request;
        if self.prefetches.contains_key(&name) {
            self.prefetch_told(name, event);
            return;
        }
        let request = self.renamed.get(&name).copied().unwrap_or(name);
        match event {
            ImportEvent::Room { direct, .. } => match self.imports.get_mut(&request) {
                Some(import) => {
                    import.direct = direct;
                    self.waiting.push_back(request);
                }
                None => self.importer.iter().for_each(|i| i.cancel(name)),
            },
            ImportEvent::Started {
                total_ns,
                transfer_ns,
                bytes,
                ..
            } => {
                self.arrived(request, [total_ns, transfer_ns, bytes]);
            }
            ImportEvent::Failed { cause, reason, .. } => {
                if let Some(import) = self.end_import(request) {
                    self.drop_slots(&import);
                    self.give_up(request, cause.name(), reason);
                }
            }
        }
    }

    /// All of a request's KV is in its slots.
    fn arrived(&mut self, request: RequestId, took: [u64; 3]) {
        if self
            .end_import(request)
            .is_some_and(|import| self.fill(request, &import))
        {
            self.stats.received(&mut self.windows[1], took);
            self.engine.start_incoming(request);
        }
    }

    /// Copies what has arrived into the pool. A backend that refuses it fails the transfer.
    fn fill(&mut self, id: RequestId, import: &Import) -> bool {
        let mut refused = None;
        for (index, &slot) in import.slots.iter().enumerate().skip(import.have) {
            let filled = match self.staging.take(slot) {
                Some(image) if refused.is_none() => self.engine.fill_incoming(id, index, &image),
                Some(_) => Ok(()),
                None => Err(format!("block {index} is not staged")),
            };
            refused = refused.or(filled.err());
        }
        let Some(reason) = refused else {
            return true;
        };
        self.give_up(id, "memory", reason);
        false
    }

    /// The KV of a request does not come.
    pub(super) fn give_up(&mut self, id: RequestId, cause: &'static str, reason: String) {
        self.stats.failed(cause);
        match self.on_failure {
            OnFailure::Recompute => {
                self.stats.recomputed += u64::from(self.engine.recompute_incoming(id));
            }
            OnFailure::Fail => {
                self.engine.abort(id);
                self.failed.push((id, reason));
            }
        }
    }

    /// Gives room to those that wait for it, in their order, as far as there is any.
    pub(super) fn make_room(&mut self) {
        while let Some(&id) = self.waiting.front() {
            let Some(import) = self.imports.get_mut(&id) else {
                self.waiting.pop_front();
                continue;
            };
            let Some(room) = self.engine.reserve_incoming(id, import.direct) else {
                return;
            };
            self.waiting.pop_front();
            import.have = room.have;
            let name = import.name.unwrap_or(id);
            if import.takes_over {
                let Some((slots, took)) = self.take_over(name, room.have) else {
                    self.end_import(id);
                    self.give_up(id, "memory", "what was fetched is gone".to_owned());
                    continue;
                };
                if let Some(import) = self.imports.get_mut(&id) {
                    import.slots = slots;
                }
                self.arrived(id, took);
                continue;
            }
            let slot = |index| match index < room.have {
                true => NOWHERE,
                false => self.staging.blank(),
            };
            import.slots = (0..room.blocks.len()).map(slot).collect();
            if let Some(importer) = &self.importer {
                importer.reserved(name, import.slots.clone(), room.have as u32);
            }
        }
    }

    /// Forgets an import; the slots are the caller's.
    pub(super) fn end_import(&mut self, id: RequestId) -> Option<Import> {
        let import = self.imports.remove(&id)?;
        self.waiting.retain(|&waiting| waiting != id);
        let name = import.name.unwrap_or(id);
        self.renamed.remove(&name);
        if let Some(importer) = &mut self.importer {
            importer.forget(name);
        }
        Some(import)
    }

    fn drop_slots(&self, import: &Import) {
        for &slot in import.slots.iter().skip(import.have) {
            self.staging.take(slot);
        }
    }

    /// Ends the import of a request that is not wanted any more. What still arrives for it finds
    /// no slot.
    pub(super) fn cancel_import(&mut self, id: RequestId) {
        let Some(import) = self.imports.get(&id) else {
            return;
        };
        let name = import.name.unwrap_or(id);
        if import.takes_over {
            self.drop_prefetch(name);
        } else if let Some(importer) = &self.importer {
            importer.cancel(name);
        }
        if let Some(import) = self.end_import(id) {
            self.drop_slots(&import);
        }
    }
}
