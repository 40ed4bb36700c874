//! Requests whose prompt is computed here and whose output is another engine's.
//!
//! Such a request ends with its first token, and its blocks are not released: they become a hold
//! for a transfer, the last one too if it is only partly filled. As long as they are held the pool
//! is smaller, and admission stops when it is too small: that is the back-pressure of a decode
//! engine that is full.

use pb_contract::{EngineEvent, EngineRequest, FinishReason, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens};

use super::{Engine, Hold, HoldId};
use crate::error::AdmitError;

/// A request that another engine may go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOff {
    /// The request; it is not live any more.
    pub id: RequestId,
    /// Its blocks.
    pub hold: HoldId,
    /// Prompt tokens, whose keys and values they have.
    pub tokens: usize,
    /// The token that was generated.
    pub first_token: TokenId,
    /// Digest of the prompt and of what beside it the blocks depend on in any engine of the model.
    pub digest: [u8; 32],
}

impl Engine {
    /// As [`Engine::add`], for a request that ends with its first token: unless that token ends it
    /// anyway, [`Engine::take_handed_off`] has its blocks afterwards.
    ///
    /// # Errors
    /// As [`Engine::add`]; the output needs no blocks here.
    pub fn add_prefill(&mut self, mut request: EngineRequest) -> Result<(), AdmitError> {
        let adapter = self.check_request(&request, 1)?;
        request.fork_of = None;
        let id = request.id;
        let mut live = self.make_live(request, adapter, None);
        live.hand_off = true;
        self.requests.insert(id, live);
        self.waiting.push_back(id);
        Ok(())
    }

    /// Prompt tokens of a request that is to be handed off whose keys and values are in its blocks
    /// ([`Engine::block_table`]); none when it is not live (any more).
    pub fn prefilled_tokens(&self, id: RequestId) -> Option<usize> {
        let live = self.requests.get(&id).filter(|live| live.hand_off)?;
        let there = self.kv.block_table(id).len() * self.config.block_size;
        Some(live.computed.min(there))
    }

    /// What the KV of this request's prompt is the KV of, see [`HandOff::digest`].
    ///
    /// # Errors
    /// The adapter is not loaded.
    pub fn prompt_digest(&self, request: &EngineRequest) -> Result<[u8; 32], AdmitError> {
        let adapter = self.adapter(request.adapter.as_deref())?;
        let salt = request.cache_salt.clone();
        Ok(self.content_digest(&request.prompt, adapter, salt))
    }

    /// Prompt tokens whose keys and values the pool has cached.
    ///
    /// # Errors
    /// The adapter is not loaded.
    pub fn cached_tokens(&self, request: &EngineRequest) -> Result<usize, AdmitError> {
        let adapter = self.adapter(request.adapter.as_deref())?;
        let scope = self.scope(adapter, request.cache_salt.clone());
        let mut seq = self.kv.config().sequence(&scope);
        seq.extend(&request.prompt);
        Ok(self.kv.lookup(&seq).tokens(self.config.block_size))
    }

    /// Requests that were handed off since the last call. Their holds end with
    /// [`Engine::unpin`].
    pub fn take_handed_off(&mut self) -> Vec<HandOff> {
        std::mem::take(&mut self.handed_off)
    }

    /// Ends a request that is to be handed off after `first_token` and holds its blocks.
    pub(super) fn hand_off(
        &mut self,
        id: RequestId,
        first_token: TokenId,
        events: &mut Vec<EngineEvent>,
    ) {
        if !self.requests.get(&id).is_some_and(|live| live.hand_off) {
            return;
        }
        let Some(live) = self.remove(id) else {
            return;
        };
        let tokens = live.computed;
        let hold = self.holds.add(Hold::Transfer);
        self.kv.fork(id, hold, tokens);
        self.kv.finish(id, &live.seq);
        self.counters.handed_off += 1;
        self.handed_off.push(HandOff {
            id,
            hold: HoldId(hold),
            tokens,
            first_token,
            digest: self.content_digest(
                &live.seq.tokens()[..tokens],
                live.adapter,
                live.request.cache_salt,
            ),
        });
        events.push(EngineEvent::Finished {
            id,
            reason: FinishReason::Length,
            stop_token: None,
        });
    }

    /// What two engines of one model must agree on before the KV of one is taken for that of a
    /// request of the other. Block size and storage are the handshake's.
    pub(super) fn content_digest(
        &self,
        tokens: &[TokenId],
        adapter: Option<usize>,
        salt: Option<String>,
    ) -> [u8; 32] {
        let scope = CacheScope {
            identity: [0; 32],
            ..self.scope(adapter, salt)
        };
        let mut whole = HashedTokens::new(tokens.len().max(1), &scope);
        whole.extend(tokens);
        whole.hashes().first().map_or([0; 32], |hash| hash.0)
    }
}
