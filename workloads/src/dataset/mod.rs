//! Data sets: what is asked, without when.
//!
//! The names and defaults of those that other tools have are theirs, so that a command line or a
//! suite file can be carried over. A data set is drawn from seeded streams of its own: lengths do
//! not depend on the tokenizer, the target or the order in which the cells of a sweep run.

mod drawn;
mod files;
mod made;
mod replay;
mod talks;

use pb_contract::Nanos;
use serde::{Deserialize, Serialize};

pub(crate) use self::drawn::{Ask, Drawn, Talk, TalkTurn};
pub use self::files::{CustomParams, SharegptParams};
pub use self::made::{
    GeneratedSharedPrefix, MixtureClass, PrefixRepetitionParams, RandomParams, SyntheticParams,
};
pub use self::replay::{ServegenParams, TimedTraceParams, TraceArrivals, TraceParams, TraceTurns};
pub use self::talks::{AgentParams, Answers, SessionParams};

use crate::error::DatasetError;
use crate::interference::InterferenceDataset;
use crate::source::{Form, Tokenizer};

/// What is asked of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "dataset_name", rename_all = "kebab-case")]
pub enum Dataset {
    /// Prompts without meaning that share nothing, after `vllm bench serve`.
    Random(RandomParams),
    /// System prompts with questions behind each, after SGLang's `generated-shared-prefix`.
    SharedPrefix(GeneratedSharedPrefix),
    /// A few prefixes with a suffix each time, after `vllm bench serve`.
    PrefixRepetition(PrefixRepetitionParams),
    /// Chats in which each turn repeats all that was said.
    Sessions(SessionParams),
    /// Agents that call tools: growing prompts with pauses.
    Agent(AgentParams),
    /// Streams that decode, and long prompts among them.
    Interference(InterferenceDataset),
    /// Lengths from distributions; prompts share nothing.
    Synthetic(SyntheticParams),
    /// A file of ShareGPT conversations.
    Sharegpt(SharegptParams),
    /// A file of prompts, as vLLM's `custom`.
    Custom(CustomParams),
    /// vLLM's `timed_trace`.
    TimedTrace(TimedTraceParams),
    /// A trace of any known format.
    Trace(TraceParams),
    /// Requests drawn from ServeGen's client models.
    Servegen(ServegenParams),
}

impl Dataset {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Dataset::Random(_) => "random",
            Dataset::SharedPrefix(_) => "shared-prefix",
            Dataset::PrefixRepetition(_) => "prefix-repetition",
            Dataset::Sessions(_) => "sessions",
            Dataset::Agent(_) => "agent",
            Dataset::Interference(_) => "interference",
            Dataset::Synthetic(_) => "synthetic",
            Dataset::Sharegpt(_) => "sharegpt",
            Dataset::Custom(_) => "custom",
            Dataset::TimedTrace(_) => "timed-trace",
            Dataset::Trace(_) => "trace",
            Dataset::Servegen(_) => "servegen",
        }
    }

    /// All names.
    pub const NAMES: [&'static str; 12] = [
        "random",
        "shared-prefix",
        "prefix-repetition",
        "sessions",
        "agent",
        "interference",
        "synthetic",
        "sharegpt",
        "custom",
        "timed-trace",
        "trace",
        "servegen",
    ];

    /// Whether the data set of this name is a file or directory.
    pub fn needs_path(name: &str) -> bool {
        ["sharegpt", "custom", "timed-trace", "trace", "servegen"].contains(&name)
    }

    /// Whether its lengths are only known with the target's tokenizer.
    pub fn needs_tokenizer(&self) -> bool {
        matches!(self, Dataset::Sharegpt(_) | Dataset::Custom(_))
    }

    /// Whether it may bring arrivals of its own.
    pub(crate) fn may_have_arrivals(&self) -> bool {
        matches!(
            self,
            Dataset::TimedTrace(_) | Dataset::Trace(_) | Dataset::Servegen(_)
        )
    }

    /// Whether any number of requests can be drawn from it.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(
            self,
            Dataset::Random(_) | Dataset::PrefixRepetition(_) | Dataset::Synthetic(_)
        )
    }

    /// Sessions when `num_prompts` does not say; any number of them can be drawn.
    pub(crate) fn own_size(&self) -> Option<usize> {
        match self {
            Dataset::Sessions(params) => Some(params.sessions),
            Dataset::Agent(params) => Some(params.sessions),
            _ => None,
        }
    }

    /// Draws requests or sessions.
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        match self {
            Dataset::Random(params) => params.draw(want),
            Dataset::SharedPrefix(params) => params.draw(want),
            Dataset::PrefixRepetition(params) => params.draw(want),
            Dataset::Sessions(params) => params.draw(want),
            Dataset::Agent(params) => params.draw(want),
            Dataset::Synthetic(params) => params.draw(want),
            Dataset::Sharegpt(params) => params.draw(want),
            Dataset::Custom(params) => params.draw(want),
            Dataset::TimedTrace(params) => params.draw(want),
            Dataset::Trace(params) => params.draw(want),
            Dataset::Servegen(params) => params.draw(want),
            // It is planned as a whole, with its own arrivals.
            Dataset::Interference(_) => Ok(Drawn::default()),
        }
    }
}

/// What a draw must know.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    /// Requests or sessions, at most.
    pub(crate) count: usize,
    pub(crate) seed: u64,
    pub(crate) form: Form,
    pub(crate) tokenizer: Option<&'a dyn Tokenizer>,
    /// Rows that do not fit are dropped and counted.
    pub(crate) max_model_len: Option<usize>,
    /// Recorded arrivals at this instant or later are not needed.
    pub(crate) until: Option<Nanos>,
}

impl Want<'_> {
    /// Tokens of a text, or about as many.
    pub(crate) fn count_text(&self, text: &str) -> usize {
        match self.tokenizer {
            Some(tokenizer) => tokenizer.encode(text).len(),
            None => crate::realise::estimate(text),
        }
    }

    /// Whether so many tokens fit into the target's context.
    pub(crate) fn fits(&self, input: u64, output: u64) -> bool {
        self.max_model_len
            .is_none_or(|most| input.saturating_add(output) <= most as u64)
    }
}
