//! What one answer consists of, before it is text.

use serde_json::Value;

/// Token counts that a usage states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageCounts {
    /// Prompt tokens.
    pub(crate) prompt: u32,
    /// Output tokens.
    pub(crate) completion: u32,
    /// Prompt tokens from the prefix cache; none: the server does not say.
    pub(crate) cached: Option<u32>,
}

/// Which usage an event carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UsageNote {
    /// None.
    #[default]
    None,
    /// What was served up to here.
    Served,
    /// These counts, true or not.
    Stated(UsageCounts),
}

/// What ends an answer other than its proper end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// The body ends as HTTP says it should.
    #[default]
    Finish,
    /// The connection is closed in the middle of the body.
    Close,
    /// The connection is reset.
    Reset,
    /// Silence on an open connection.
    Stall,
    /// A chunk length that is no number, then close.
    BadChunk,
}

/// One event of an answer. Everything that is set goes into the same server-sent event.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Event {
    /// Nanoseconds after the start.
    pub(crate) at_ns: u64,
    /// Number of the choice that it is of.
    pub(crate) choice: u32,
    /// Role of the message that begins (chat only).
    pub(crate) role: Option<String>,
    /// New text.
    pub(crate) content: Option<String>,
    /// New reasoning text (chat only).
    pub(crate) reasoning: Option<String>,
    /// New part of a tool call's arguments (chat only).
    pub(crate) tool_arguments: Option<String>,
    /// Tokens that the new parts are.
    pub(crate) tokens: u32,
    /// Why generation ended.
    pub(crate) finish: Option<String>,
    /// Usage.
    pub(crate) usage: UsageNote,
    /// The timings that llama.cpp adds to its last event.
    pub(crate) timings: bool,
    /// `[DONE]`.
    pub(crate) done: bool,
    /// An error in the stream, under `data:`.
    pub(crate) error: Option<Value>,
    /// The error goes under `error:` instead.
    pub(crate) error_field: bool,
    /// A comment line.
    pub(crate) comment: Option<String>,
    /// Bytes of the body as they are, instead of everything above.
    pub(crate) raw: Option<Vec<u8>>,
}

impl Event {
    /// An empty event at an instant.
    pub(crate) fn at(at_ns: u64) -> Event {
        Event {
            at_ns,
            ..Event::default()
        }
    }

    /// Whether it has a part of a choice.
    pub(crate) fn has_choice(&self) -> bool {
        self.role.is_some()
            || self.content.is_some()
            || self.reasoning.is_some()
            || self.tool_arguments.is_some()
            || self.finish.is_some()
    }
}

/// Status line and fields of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Status.
    pub(crate) status: u16,
    /// `content-type`.
    pub(crate) content_type: String,
    /// Further fields.
    pub(crate) fields: Vec<(String, String)>,
    /// Write something that is no HTTP head.
    pub(crate) broken: bool,
}

impl Head {
    /// A head without further fields.
    pub(crate) fn new(status: u16, content_type: &str) -> Head {
        Head {
            status,
            content_type: content_type.into(),
            fields: Vec::new(),
            broken: false,
        }
    }
}
