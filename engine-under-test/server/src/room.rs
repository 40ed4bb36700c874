//! Whether a request fits the model: its prompt, and what it wants generated.
//!
//! A prompt is checked twice: by its length in bytes before any work is done for it, and by its
//! tokens.

use pb_contract::wire::Prompt;

use crate::app::App;
use crate::error::ApiError;

/// Bytes of a text that are not counted against it by the first check. Tokenizers normalize text
/// and drop bytes that they have no token for, so a text may be a little shorter than it looks.
const SLACK_BYTES: usize = 64 << 10;

/// How many tokens a text of `bytes` bytes has at least.
fn tokens_at_least(bytes: usize, longest_token_bytes: usize) -> usize {
    bytes
        .saturating_sub(SLACK_BYTES)
        .div_ceil(longest_token_bytes.max(1))
}

fn refuse(prompt: usize, message: &str) -> ApiError {
    let message = format!("{message} (parameter=input_tokens, value={prompt})");
    ApiError::field("input_tokens", message)
}

impl App {
    /// Refuses prompts that have too many tokens whatever they say.
    pub(crate) fn check_lengths(&self, prompt: &Prompt) -> Result<(), ApiError> {
        let text = |text: &String| self.check_text_length(text.len());
        match prompt {
            Prompt::Text(one) => text(one),
            Prompt::Texts(texts) => texts.iter().try_for_each(text),
            Prompt::Ids(ids) => self.check_context(ids.len(), ""),
            Prompt::IdLists(lists) => lists
                .iter()
                .try_for_each(|ids| self.check_context(ids.len(), "")),
        }
    }

    fn check_text_length(&self, bytes: usize) -> Result<(), ApiError> {
        let tokens = tokens_at_least(bytes, self.longest_token_bytes);
        self.check_context(tokens, "at least ")
    }

    fn check_context(&self, prompt: usize, qualifier: &str) -> Result<(), ApiError> {
        let context = self.config.max_model_len;
        if prompt <= context {
            return Ok(());
        }
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your prompt \
             contains {qualifier}{prompt} input tokens, which exceeds this limit even without any \
             output tokens. Please reduce the length of the input prompt."
        );
        Err(refuse(prompt, &message))
    }

    /// How many tokens a request may generate: what it asks for, else `default`, else all that
    /// the context has room for.
    pub(crate) fn output_room(
        &self,
        prompt: usize,
        asked: Option<u32>,
        default: Option<u32>,
    ) -> Result<u32, ApiError> {
        if prompt == 0 {
            return Err(ApiError::field(
                "prompt",
                "The decoder prompt cannot be empty",
            ));
        }
        self.check_context(prompt, "")?;
        let context = self.config.max_model_len;
        let pool = self
            .config
            .num_blocks
            .saturating_mul(self.config.block_size);
        if prompt > pool {
            let message = format!(
                "The KV cache holds {pool} tokens and your prompt contains {prompt} input tokens."
            );
            return Err(refuse(prompt, &message));
        }
        let room = u32::try_from(context - prompt).unwrap_or(u32::MAX);
        let wanted = asked.unwrap_or(default.unwrap_or(room).min(room).max(1));
        if wanted > room {
            let total = prompt as u64 + u64::from(wanted);
            let message = format!(
                "This model's maximum context length is {context} tokens. However, you requested \
                 {wanted} output tokens and your prompt contains {prompt} input tokens, for a \
                 total of {total} tokens. Please reduce the length of the input prompt or the \
                 number of requested output tokens."
            );
            return Err(refuse(prompt, &message));
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_at_least_as_many_tokens_as_longest_ones_fit() {
        assert_eq!(tokens_at_least(0, 16), 0);
        assert_eq!(tokens_at_least(65_536, 16), 0, "within the slack");
        assert_eq!(tokens_at_least(65_536 + 32, 16), 2);
        assert_eq!(tokens_at_least(65_536 + 33, 16), 3);
        assert_eq!(tokens_at_least(65_536 + 5, 0), 5, "no vocabulary, no panic");
    }
}
