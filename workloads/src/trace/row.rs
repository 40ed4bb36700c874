//! One request of a trace.

use pb_contract::Nanos;

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRow {
    /// Row of the trace, from 0, without those that were dropped.
    pub number: u64,
    /// Arrival, counted from the start of the trace.
    pub arrival_ns: Nanos,
    /// The file gives no arrival: `arrival_ns` is that of the row before.
    pub untimed: bool,
    /// Prompt length in tokens; 0 where the prompt is text that was not counted yet.
    pub input_tokens: usize,
    /// Tokens that were generated; 0 when the request failed or `output_unknown`.
    pub output_tokens: usize,
    /// The file does not say how much was generated.
    pub output_unknown: bool,
    /// Tokens that a name in `block_ids` stands for; 0 when the row names none.
    pub block_tokens: usize,
    /// Names of the prompt's blocks in order. Equal names are equal tokens after an equal prefix.
    /// A partial last block has a name of its own or none.
    pub block_ids: Vec<u64>,
    /// Its place in a conversation. A prompt's length and names already cover what came before.
    pub turn: Option<RowTurn>,
    /// The prompt, where the file has it.
    pub prompt: Option<RowPrompt>,
    /// The answer, where the file has it: its length is the output's.
    pub answer: Option<String>,
}

/// Place of a request in a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTurn {
    /// Name of the conversation.
    pub session: String,
    /// Turn within it, from 0; always 0 in BurstGPT files, whose sessions are too many to count.
    pub number: u32,
    /// Time after the end of the turn before, where the file gives that instead of an arrival.
    pub delay_ns: Option<Nanos>,
    /// The prompt continues the server's own answers; else it is complete as it stands.
    pub live_answers: bool,
}

/// A prompt in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowPrompt {
    /// Plain text.
    Text(String),
    /// Messages.
    Chat(Vec<ChatTurn>),
}

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTurn {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text.
    pub content: String,
}

impl TraceRow {
    /// Tokens of block `index`: all of them, or what remains of the prompt in the last one.
    pub fn tokens_in_block(&self, index: usize) -> usize {
        let before = index * self.block_tokens;
        self.input_tokens
            .saturating_sub(before)
            .min(self.block_tokens)
    }

    /// Fills in lengths that the file gives only as text, with the counts of a tokenizer. A chat
    /// counts its contents without the template.
    pub fn count_tokens(&mut self, count: &mut dyn FnMut(&str) -> usize) {
        if self.input_tokens == 0 {
            self.input_tokens = match &self.prompt {
                None => 0,
                Some(RowPrompt::Text(text)) => count(text),
                Some(RowPrompt::Chat(turns)) => turns.iter().map(|turn| count(&turn.content)).sum(),
            };
        }
        if let Some(answer) = self.answer.as_ref().filter(|_| self.output_unknown) {
            self.output_tokens = count(answer);
            self.output_unknown = false;
        }
    }
}
