//! Requests whose prompt another engine has computed.
//!
//! Such a request waits for room, has blocks while its KV is on its way, and runs when all of it is
//! here. Until then nobody can find its blocks: they have names only from the arrival on. A
//! transfer that fails makes it an ordinary request with two differences, which are those of a
//! request that was preempted: its first token is known, and its random stream has moved on.

use pb_contract::{BlockId, EngineEvent, EngineRequest, RequestId, TokenId};
use pb_kv::Hit;

use super::{Engine, StepOutput};
use crate::error::AdmitError;
use crate::request::Live;

/// Where an incoming request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Without blocks.
    Waiting,
    /// Its blocks are being filled.
    Receiving,
    /// They are filled.
    Arrived,
}

/// A request whose KV comes from another engine.
pub(super) struct Incoming {
    live: Live,
    stage: Stage,
    /// Tokens whose KV was here already.
    hit_tokens: usize,
}

/// Blocks that are to be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The request's blocks.
    pub blocks: Vec<BlockId>,
    /// The first so many hold their data already and are shared with others.
    pub have: usize,
}

impl Engine {
    /// Takes a request in whose prompt another engine has computed and whose first token it has
    /// chosen. The engine goes on after [`Engine::start_incoming`]; until then it asks for no step.
    /// Log-probabilities of the prompt are the other engine's.
    ///
    /// # Errors
    /// As [`Engine::add`]; and when there is nothing to go on with.
    pub fn add_incoming(
        &mut self,
        mut request: EngineRequest,
        first_token: TokenId,
    ) -> Result<(), AdmitError> {
        let max_tokens = request.sampling.max_tokens;
        let adapter = self.check_request(&request, max_tokens)?;
        let (id, prompt_tokens) = (request.id, request.prompt.len());
        if first_token as usize >= self.spec.vocab {
            return Err(AdmitError::TokenOutOfRange {
                token: first_token,
                position: prompt_tokens,
                vocab: self.spec.vocab,
            });
        }
        if max_tokens < 2 {
            return Err(AdmitError::Sampling {
                key: "max_tokens",
                value: max_tokens.to_string(),
                problem: "must be at least 2: the first token is known",
            });
        }
        if prompt_tokens + 1 >= self.config.max_model_len {
            return Err(AdmitError::PromptTooLong {
                prompt_tokens: prompt_tokens + 1,
                max_model_len: self.config.max_model_len,
            });
        }
        (request.fork_of, request.sampling.prompt_logprobs) = (None, None);
        let draws = request.sampling.temperature > 0.0;
        let mut live = self.make_live(request, adapter, None);
        live.seq.push(first_token);
        // The draw that chose the first token.
        if let Some(stream) = self.streams.get_mut(&id).filter(|_| draws) {
            stream.unit_f64();
        }
        let incoming = Incoming {
            live,
            stage: Stage::Waiting,
            hit_tokens: 0,
        };
        self.incoming.insert(id, incoming);
        Ok(())
    }

    /// What an incoming request's KV must be the KV of, see [`super::HandOff`].
    pub fn incoming_digest(&self, id: RequestId) -> Option<[u8; 32]> {
        let live = &self.incoming.get(&id)?.live;
        let prompt = &live.seq.tokens()[..live.prompt_tokens];
        let salt = live.request.cache_salt.clone();
        Some(self.content_digest(prompt, live.adapter, salt))
    }

    /// Gives an incoming request its blocks, if it could run beside those that run and there is
    /// room for its KV and one token more. With `use_hits` a cached prefix is taken as it is; the
    /// last block is always a new one.
    pub fn reserve_incoming(&mut self, id: RequestId, use_hits: bool) -> Option<Room> {
        if self.free_places() == 0 {
            return None;
        }
        let live = &self
            .incoming
            .get(&id)
            .filter(|i| i.stage == Stage::Waiting)?
            .live;
        let (block_size, tokens) = (self.config.block_size, live.prompt_tokens);
        let mut hit = match use_hits {
            true => self.kv.lookup(&live.seq),
            false => Hit::default(),
        };
        hit.truncate((tokens - 1) / block_size);
        let hit_tokens = hit.tokens(block_size);
        let needed = self.kv.blocks_needed(id, 0, &hit, tokens - hit_tokens + 1);
        let spared = match self.running.is_empty() {
            true => 0,
            false => self.config.scheduling.watermark_blocks,
        };
        if needed + spared > self.kv.free_blocks() {
            return None;
        }
        // Blocks are named as far as the sequence reaches, and here nothing is computed beyond.
        let scope = self.scope(live.adapter, live.request.cache_salt.clone());
        let mut prefix = self.kv.config().sequence(&scope);
        prefix.extend(&live.seq.tokens()[..hit_tokens]);
        if !self.kv.allocate(id, &prefix, 0, &hit, tokens - hit_tokens) {
            return None;
        }
        self.move_now();
        let incoming = self.incoming.get_mut(&id)?;
        (incoming.stage, incoming.hit_tokens) = (Stage::Receiving, hit_tokens);
        Some(Room {
            blocks: self.kv.block_table(id).to_vec(),
            have: hit.blocks.len(),
        })
    }

    /// Puts an image of [`Engine::block_image`] into block `index` of a request that has room.
    ///
    /// # Errors
    /// The backend refused the image, or there is no such block.
    pub fn fill_incoming(
        &mut self,
        id: RequestId,
        index: usize,
        image: &[u8],
    ) -> Result<(), String> {
        let block = self.kv.block_table(id).get(index).copied();
        let receiving = |i: &Incoming| i.stage == Stage::Receiving;
        let block = block.filter(|_| self.incoming.get(&id).is_some_and(receiving));
        let block = block.ok_or_else(|| format!("request {id} has no block {index} to fill"))?;
        self.executor.write_block(block, image)
    }

    /// All blocks of an incoming request are filled. It runs from the next step on that has a
    /// place, and others find its prefix. False when it is not receiving.
    pub fn start_incoming(&mut self, id: RequestId) -> bool {
        let found = self.incoming.get_mut(&id);
        let Some(incoming) = found.filter(|i| i.stage == Stage::Receiving) else {
            return false;
        };
        incoming.stage = Stage::Arrived;
        let live = &mut incoming.live;
        live.computed = live.prompt_tokens;
        self.kv.receive(id, &live.seq, live.computed);
        self.arrived.push_back(id);
        true
    }

    /// The KV of an incoming request does not come: its prompt is computed here. False when it is
    /// not waiting for any.
    pub fn recompute_incoming(&mut self, id: RequestId) -> bool {
        let waits = |i: &Incoming| i.stage != Stage::Arrived;
        if !self.incoming.get(&id).is_some_and(waits) {
            return false;
        }
        self.kv.free(id);
        let Some(Incoming { live, .. }) = self.incoming.remove(&id) else {
            return false;
        };
        self.requests.insert(id, live);
        // Its first token has been read, so it goes before those that have none.
        self.waiting.push_front(id);
        true
    }

    /// Removes an incoming request; false when it is none.
    pub(super) fn abort_incoming(&mut self, id: RequestId) -> bool {
        if self.incoming.remove(&id).is_none() {
            return false;
        }
        self.arrived.retain(|&r| r != id);
        self.streams.remove(&id);
        self.kv.free(id);
        true
    }

    /// Lets requests whose KV is here run, as far as there are places.
    pub(super) fn seat_arrived(&mut self, out: &mut StepOutput) {
        while self.running_places() < self.config.max_num_seqs {
            let Some(id) = self.arrived.pop_front() else {
                return;
            };
            let Some(mut incoming) = self.incoming.remove(&id) else {
                continue;
            };
            let (tokens, hit_tokens) = (incoming.live.prompt_tokens, incoming.hit_tokens);
            incoming.live.admitted = Some(hit_tokens);
            self.requests.insert(id, incoming.live);
            self.running.push(id);
            out.row.queried_tokens += tokens;
            out.row.hit_tokens += hit_tokens;
            let c = &mut self.counters;
            c.queried_tokens += tokens as u64;
            c.hit_tokens += hit_tokens as u64;
            c.prompt_tokens += tokens as u64;
            c.received_tokens += (tokens - hit_tokens) as u64;
            let cached_tokens = hit_tokens;
            out.events.push(EngineEvent::Admitted { id, cached_tokens });
        }
    }

    /// Requests that have blocks and do not run yet.
    pub(super) fn receiving(&self) -> impl Iterator<Item = RequestId> {
        let with_blocks = self
            .incoming
            .iter()
            .filter(|(_, i)| i.stage != Stage::Waiting);
        with_blocks.map(|(&id, _)| id)
    }

    /// Places that nobody has or is about to take.
    fn free_places(&self) -> usize {
        let taken = self.running_places() + self.receiving().count();
        self.config.max_num_seqs.saturating_sub(taken)
    }

    /// Places of those that run.
    pub(super) fn running_places(&self) -> usize {
        let places = self
            .running
            .iter()
            .map(|id| self.requests[id].view().places);
        places.sum()
    }

    /// Incoming requests have the blocks of their prompt or none.
    pub(super) fn check_incoming(&self) -> Result<(), String> {
        for (&id, incoming) in &self.incoming {
            let blocks = self.kv.block_table(id).len();
            let needed = match incoming.stage {
                Stage::Waiting => 0,
                _ => incoming.live.prompt_tokens.div_ceil(self.config.block_size),
            };
            let arrived = self.arrived.iter().filter(|&&r| r == id).count();
            let expected = usize::from(incoming.stage == Stage::Arrived);
            if blocks != needed || arrived != expected {
                return Err(format!(
                    "incoming: request {id} is {:?}, holds {blocks} blocks of {needed} and has \
                     arrived {arrived} times",
                    incoming.stage
                ));
            }
        }
        Ok(())
    }
}
