//! From a body to what routing depends on.

use std::sync::{Arc, PoisonError};

use axum::http::{HeaderMap, Method, StatusCode};
use bytes::Bytes;
use pb_contract::TokenId;
use serde::Deserialize;

use super::client;
use super::naming;
use super::peek::{Peek, PromptPeek};
use super::shell::Shared;
use crate::config::Policy;
use crate::worker::Ask;

/// Bytes of text to a token, where nobody has counted: about right for English.
const BYTES_PER_TOKEN: usize = 4;

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<TokenId>,
}

/// What routing depends on. A text is tokenized by a worker where its blocks matter; where that
/// fails the request is routed by its length.
pub(crate) async fn of(
    shared: &Arc<Shared>,
    peek: &Peek,
    body: &Bytes,
    headers: &HeaderMap,
) -> Ask {
    let rules = &shared.options.router;
    let namings = {
        let namings = shared
            .namings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        namings.for_model(peek.model.as_deref())
    };
    let matters = rules.policy == Policy::KvAware || rules.local_prefill_max_tokens > 0;
    let text = peek.chat || matches!(peek.prompt, PromptPeek::Text { .. });
    let tokens = match &peek.prompt {
        PromptPeek::Ids(ids) => Some(ids.clone()),
        _ if text && matters && !namings.is_empty() => tokenized(shared, body, headers).await,
        _ => None,
    };
    let estimate = match peek.prompt {
        PromptPeek::Text { bytes } => bytes.div_ceil(BYTES_PER_TOKEN),
        _ => body.len().div_ceil(BYTES_PER_TOKEN),
    };
    Ask {
        prompt_tokens: tokens.as_ref().map_or(estimate, Vec::len).max(1),
        names: match &tokens {
            Some(tokens) => naming::names_of(&namings, tokens, peek.cache_salt.as_deref()),
            None => Vec::new(),
        },
        splittable: peek.splittable,
    }
}

/// The body has all that `/tokenize` wants, and what else it has is ignored there.
async fn tokenized(
    shared: &Arc<Shared>,
    body: &Bytes,
    headers: &HeaderMap,
) -> Option<Vec<TokenId>> {
    let url = shared.url(shared.any_worker()?);
    // Knowing the blocks is worth a moment, not a request's patience.
    let limits = shared.limits(shared.options.connect_timeout_ns);
    let sent = client::send(
        url,
        Method::POST,
        "/tokenize",
        headers,
        body.clone(),
        limits,
    );
    let leg = sent.await.ok()?;
    if leg.status != StatusCode::OK {
        return None;
    }
    let answer = leg.whole().await.ok()?;
    let tokenized: Tokenized = serde_json::from_slice(&answer).ok()?;
    Some(tokenized.tokens)
}
