//! What the router counts.

/// Why a request was turned away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// As many requests wait as may.
    QueueFull,
    /// It waited for a worker for as long as it may.
    Waited,
    /// Its first token would come too late.
    Early {
        /// Predicted time to the first token.
        predicted_ns: u64,
        /// What is allowed.
        slo_ns: u64,
    },
    /// No worker that could do it answers.
    NoWorker,
}

impl Refusal {
    /// As in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::QueueFull => "queue_full",
            Refusal::Waited => "queue_timeout",
            Refusal::Early { .. } => "early",
            Refusal::NoWorker => "no_worker",
        }
    }
}

/// How a request ended that was not turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client has the whole answer.
    Completed,
    /// The client was told of an error.
    Failed,
    /// The client went away.
    Cancelled,
}

/// Counts since the start. `arrived` is at all times the sum of the ends and of the requests alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests.
    pub arrived: u64,
    /// Ended with the whole answer.
    pub completed: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Left by their clients.
    pub cancelled: u64,
    /// Turned away: queue full.
    pub refused_queue_full: u64,
    /// Turned away: waited too long.
    pub refused_waited: u64,
    /// Turned away: the first token would be late.
    pub refused_early: u64,
    /// Turned away: no worker.
    pub refused_no_worker: u64,
    /// Starts on a prefill worker, to be continued elsewhere.
    pub split: u64,
    /// Starts on one worker for all.
    pub whole: u64,
    /// Of these, because the prompt was short or the prefill workers busy.
    pub local_prefill: u64,
    /// Starts again after a failure.
    pub retries: u64,
    /// Hand-overs to a decode worker.
    pub handed: u64,
    /// Requests whose decode worker fetched their KV while it was computed.
    pub ahead: u64,
    /// Hand-overs to a decode worker without room, because the wait was over.
    pub handed_without_room: u64,
    /// Prompt tokens of started requests.
    pub prompt_tokens: u64,
    /// Of these, believed to be cached where they were sent.
    pub overlap_tokens: u64,
    /// Moves of a worker to help in another pool.
    pub pool_moves: u64,
    /// Moves back.
    pub pool_returns: u64,
}

impl Stats {
    pub(crate) fn refused(&mut self, why: Refusal) {
        *match why {
            Refusal::QueueFull => &mut self.refused_queue_full,
            Refusal::Waited => &mut self.refused_waited,
            Refusal::Early { .. } => &mut self.refused_early,
            Refusal::NoWorker => &mut self.refused_no_worker,
        } += 1;
    }

    pub(crate) fn ended(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Failed => &mut self.failed,
            Outcome::Cancelled => &mut self.cancelled,
        } += 1;
    }

    /// Requests that have ended, whatever the way.
    pub fn all_ended(&self) -> u64 {
        self.completed
            + self.failed
            + self.cancelled
            + self.refused_queue_full
            + self.refused_waited
            + self.refused_early
            + self.refused_no_worker
    }
}
