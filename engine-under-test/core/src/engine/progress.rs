//! How far a live request has come, for those who watch the engine from outside.

use pb_contract::RequestId;

use super::{AdapterInfo, Engine};

/// Where a live request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// In the queue, never admitted since it came.
    Waiting,
    /// Admitted.
    Running,
    /// In the queue again, its blocks dropped.
    Preempted,
    /// In the queue again, its blocks in host memory.
    Swapped,
    /// In no queue: starts when the prompt that it shares is computed.
    Forking,
}

impl RequestState {
    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::Running => "running",
            RequestState::Preempted => "preempted",
            RequestState::Swapped => "swapped",
            RequestState::Forking => "forking",
        }
    }
}

/// A look at a live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub id: RequestId,
    /// Where it is.
    pub state: RequestState,
    /// Leading tokens whose keys and values are computed.
    pub computed: usize,
    /// Tokens known: prompt and generated.
    pub num_tokens: usize,
    /// Whether its first admission has happened (and its hit been reported).
    pub admitted_before: bool,
}

impl Engine {
    /// How far a request has come; `None` when it is not live.
    pub fn progress(&self, id: RequestId) -> Option<Progress> {
        let live = self.requests.get(&id)?;
        let state = match live {
            live if live.leader.is_some() => RequestState::Forking,
            live if live.swapped => RequestState::Swapped,
            live if live.preempted => RequestState::Preempted,
            _ if self.running.contains(&id) => RequestState::Running,
            _ => RequestState::Waiting,
        };
        Some(Progress {
            id,
            state,
            computed: live.computed,
            num_tokens: live.seq.len(),
            admitted_before: live.admitted.is_some(),
        })
    }

    /// Registers an adapter that was loaded while the engine runs, or another one under the name
    /// of an earlier: blocks of the earlier are not reused. What computes must have it too.
    pub fn know_adapter(&mut self, adapter: AdapterInfo) {
        let known = &mut self.spec.adapters;
        match known.iter_mut().find(|other| other.name == adapter.name) {
            Some(other) => *other = adapter,
            None => known.push(adapter),
        }
    }
}
