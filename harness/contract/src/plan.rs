//! A workload as planned: every request, its prompt and when it is due, fixed before the start.
//!
//! Workload makers write plans, the load driver executes them; neither knows the other.

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::ids::{RequestId, TokenId};

/// One message of a planned conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTurn {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text.
    pub content: String,
}

/// A prompt in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedPrompt {
    /// Token ids of the target's tokenizer.
    Ids(Vec<TokenId>),
    /// Text, which the target tokenizes.
    Text(String),
    /// Messages, which the target puts into its template and tokenizes.
    Chat(Vec<ChatTurn>),
}

impl PlannedPrompt {
    /// The token ids, when the prompt is sent as such.
    pub fn ids(&self) -> Option<&[TokenId]> {
        match self {
            PlannedPrompt::Ids(ids) => Some(ids),
            PlannedPrompt::Text(_) | PlannedPrompt::Chat(_) => None,
        }
    }
}

/// What is sent for one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedBody {
    /// What the request stands for (`background`, `long_prompt`, `warm`, ...).
    pub class: String,
    /// Prompt.
    pub prompt: PlannedPrompt,
    /// Output tokens to ask for.
    pub max_tokens: u32,
    /// Isolation key of the server's prefix cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Go on past the end-of-sequence token, so that the length is controlled.
    pub ignore_eos: bool,
    /// Prompt tokens that the workload means to send; of a text an estimate of the target's count.
    pub planned_tokens: u32,
    /// Prompt tokens that a cold, unbounded prefix cache would have by then; absent when the
    /// workload does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_hit_tokens: Option<u32>,
}

impl PlannedBody {
    /// A request for `max_tokens` tokens after a prompt of token ids, with a controlled length.
    pub fn of_ids(class: impl Into<String>, ids: Vec<TokenId>, max_tokens: u32) -> Self {
        let planned_tokens = ids.len() as u32;
        PlannedBody::of(class, PlannedPrompt::Ids(ids), planned_tokens, max_tokens)
    }

    /// A request for `max_tokens` tokens after any prompt, with a controlled length.
    pub fn of(
        class: impl Into<String>,
        prompt: PlannedPrompt,
        planned_tokens: u32,
        max_tokens: u32,
    ) -> Self {
        PlannedBody {
            class: class.into(),
            prompt,
            max_tokens,
            cache_salt: None,
            ignore_eos: true,
            planned_tokens,
            planned_hit_tokens: None,
        }
    }

    /// With an isolation key.
    pub fn with_salt(mut self, salt: Option<String>) -> Self {
        self.cache_salt = salt;
        self
    }
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

/// One turn of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Request within the run.
    pub id: RequestId,
    /// The turn is due this long after the end of the one before; of no meaning for the first.
    pub think_ns: Nanos,
    /// What is sent. With `history` it holds the new messages only.
    pub body: PlannedBody,
    /// The messages and the answers of the earlier turns go in front; a chat only. Without it the
    /// prompt stands as it is.
    pub history: bool,
}

/// Requests that follow one another, as a user's or an agent's do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The first turn is due this long after the start.
    pub offset_ns: Nanos,
    /// The turns, in order.
    pub turns: Vec<Turn>,
}

/// A whole planned run of one arm in one block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Open-loop requests, ordered by `(offset_ns, id)`.
    pub open: Vec<OpenRequest>,
    /// Closed-loop parts.
    pub closed: Vec<ClosedLoop>,
    /// Sessions.
    #[serde(default)]
    pub sessions: Vec<Session>,
    /// No closed-loop request and no later turn of a session starts later than this after the
    /// start; an open-loop request and a first turn are due before it by construction.
    pub horizon_ns: Nanos,
    /// Requests still running this long after the horizon are cut off and recorded as incomplete.
    pub drain_ns: Nanos,
}
