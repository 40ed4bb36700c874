//! A workload as planned: every request, its prompt and when it is due, fixed before the start.
//!
//! Workload makers write plans, the load driver executes them; neither knows the other.

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::ids::{RequestId, TokenId};

/// What is sent for one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedBody {
    /// What the request stands for (`background`, `long_prompt`, `warm`, ...).
    pub class: String,
    /// Prompt as token ids of the target's tokenizer.
    pub prompt: Vec<TokenId>,
    /// Output tokens to ask for (with `ignore_eos`, so that length is controlled).
    pub max_tokens: u32,
    /// Isolation key of the server's prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
}

/// A request of the open-loop part: due at a fixed offset whatever the server does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Request within the run.
    pub id: RequestId,
    /// Due this long after the start.
    pub offset_ns: Nanos,
    /// What is sent.
    pub body: PlannedBody,
}

/// A closed-loop part: `streams` slots, each starting its next request as soon as the previous
/// one has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedLoop {
    /// Slots.
    pub streams: usize,
    /// First request id; request `i` of the list has id `first_id + i`.
    pub first_id: RequestId,
    /// The requests, taken in order by whichever slot becomes free.
    pub bodies: Vec<PlannedBody>,
}

/// A whole planned run of one arm in one block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Open-loop requests, ordered by `(offset_ns, id)`.
    pub open: Vec<OpenRequest>,
    /// Closed-loop parts.
    pub closed: Vec<ClosedLoop>,
    /// No closed-loop request starts later than this after the start; an open-loop request is
    /// due before it by construction.
    pub horizon_ns: Nanos,
    /// Requests still running this long after the horizon are cut off and recorded as incomplete.
    pub drain_ns: Nanos,
}
