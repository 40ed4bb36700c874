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
    direct: bool,
}

impl KvEngine {
    /// Claims the KV of a request.
    pub(super) fn import(
        &mut self,
        request: EngineRequest,
        source: KvSource,
    ) -> Result<(), AdmitError> {
        let Some(importer) = &mut self.importer else {
            return Err(AdmitError::NoTransfer {
                verb: "take",
                role: "decode",
            });
        };
        let (id, prompt_tokens) = (request.id, request.prompt.len());
        if source.tokens != prompt_tokens {
            return Err(AdmitError::KvTokens {
                held_tokens: source.tokens,
                prompt_tokens,
            });
        }
        self.engine.add_incoming(request, source.first_token)?;
        let digest = self.engine.incoming_digest(id).unwrap_or_default();
        self.imports.insert(id, Import::default());
        importer.claim(Claim {
            request: id,
            remote: source.remote,
            ticket: source.ticket,
            digest,
        });
        Ok(())
    }

    pub(super) fn imported(&mut self, event: ImportEvent) {
        match event {
            ImportEvent::Room {
                request, direct, ..
            } => match self.imports.get_mut(&request) {
                Some(import) => {
                    import.direct = direct;
                    self.waiting.push_back(request);
                }
                None => self.importer.iter().for_each(|i| i.cancel(request)),
            },
            ImportEvent::Started {
                request,
                total_ns,
                transfer_ns,
                bytes,
            } => {
                if self
                    .end_import(request)
                    .is_some_and(|import| self.fill(request, &import))
                {
                    let took = [total_ns, transfer_ns, bytes];
                    self.stats.received(&mut self.windows[1], took);
                    self.engine.start_incoming(request);
                }
            }
            ImportEvent::Failed {
                request,
                cause,
                reason,
            } => {
                if let Some(import) = self.end_import(request) {
                    self.drop_slots(&import);
                    self.give_up(request, cause.name(), reason);
                }
            }
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
    fn give_up(&mut self, id: RequestId, cause: &'static str, reason: String) {
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
            let slot = |index| match index < room.have {
                true => NOWHERE,
                false => self.staging.blank(),
            };
            import.slots = (0..room.blocks.len()).map(slot).collect();
            if let Some(importer) = &self.importer {
                importer.reserved(id, import.slots.clone(), room.have as u32);
            }
        }
    }

    /// Forgets an import; the slots are the caller's.
    fn end_import(&mut self, id: RequestId) -> Option<Import> {
        let import = self.imports.remove(&id)?;
        self.waiting.retain(|&waiting| waiting != id);
        if let Some(importer) = &mut self.importer {
            importer.forget(id);
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
        if !self.imports.contains_key(&id) {
            return;
        }
        if let Some(importer) = &self.importer {
            importer.cancel(id);
        }
        if let Some(import) = self.end_import(id) {
            self.drop_slots(&import);
        }
    }
}
