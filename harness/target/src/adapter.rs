//! What each kind of server can be asked, as a table of facts.

use crate::kind::ServerKind;

/// A request that empties the cache, or part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCall {
    /// `POST` to a route. A refusal is a body with `"success": false`, or one of the statuses.
    Post {
        /// Path and query.
        route: &'static str,
        /// Statuses that mean "not now".
        refusals: &'static [u16],
    },
    /// `POST /slots/N?action=erase` for every slot that `GET /slots` lists.
    EraseSlots,
}

impl ResetCall {
    /// As a report names it.
    pub fn name(self) -> &'static str {
        match self {
            ResetCall::Post { route, .. } => route,
            ResetCall::EraseSlots => "/slots/N?action=erase",
        }
    }
}

/// How to speak to one kind of server about its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Kind.
    pub kind: ServerKind,
    /// Resets, the next one tried when a probe shows that those before were not enough.
    pub resets: &'static [ResetCall],
    /// A request field that makes a request ignore the cache.
    pub cache_off_field: Option<&'static str>,
    /// The server keeps prefixes apart by the request field `cache_salt`.
    pub cache_salt: bool,
    /// Path of its metrics page.
    pub metrics_route: &'static str,
    /// Tokens are shared one by one, not in blocks.
    pub token_granular: bool,
}

/// vLLM says `success` in the body since v0.26 (vllm #46893). Blocks that a connector holds
/// outlive the plain call (llm-d-benchmark #1918).
const VLLM_RESETS: &[ResetCall] = &[
    ResetCall::Post {
        route: "/reset_prefix_cache",
        refusals: &[],
    },
    ResetCall::Post {
        route: "/reset_prefix_cache?reset_external=true",
        refusals: &[],
    },
];
/// Refuses with 400 while requests run, and while another flush does (sglang #21490).
const SGLANG_RESETS: &[ResetCall] = &[ResetCall::Post {
    route: "/flush_cache?timeout=5",
    refusals: &[400],
}];
const PLAIN_RESET: &[ResetCall] = &[ResetCall::Post {
    route: "/reset_prefix_cache",
    refusals: &[],
}];
/// Tried, and believed only when a probe shows their effect.
const GUESSED_RESETS: &[ResetCall] = &[
    ResetCall::Post {
        route: "/reset_prefix_cache",
        refusals: &[],
    },
    ResetCall::Post {
        route: "/flush_cache",
        refusals: &[],
    },
];

impl Adapter {
    /// The facts of a kind.
    pub fn of(kind: ServerKind) -> Adapter {
        let plain = Adapter {
            kind,
            resets: &[],
            cache_off_field: None,
            cache_salt: false,
            metrics_route: "/metrics",
            token_granular: false,
        };
        match kind {
            ServerKind::Vllm => Adapter {
                resets: VLLM_RESETS,
                cache_salt: true,
                ..plain
            },
            ServerKind::OwnEngine | ServerKind::Mock => Adapter {
                resets: PLAIN_RESET,
                cache_salt: true,
                ..plain
            },
            ServerKind::Sglang => Adapter {
                resets: SGLANG_RESETS,
                ..plain
            },
            ServerKind::LlamaCpp => Adapter {
                resets: &[ResetCall::EraseSlots],
                cache_off_field: Some("cache_prompt"),
                token_granular: true,
                ..plain
            },
            ServerKind::Tgi => plain,
            // Its reset route is recent (TensorRT-LLM #14970): probed, never assumed.
            ServerKind::TrtLlm => Adapter {
                resets: PLAIN_RESET,
                metrics_route: "/prometheus/metrics",
                ..plain
            },
            ServerKind::Unknown => Adapter {
                resets: GUESSED_RESETS,
                ..plain
            },
        }
    }
}
