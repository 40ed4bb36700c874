//! From what a prompt is to what is sent: names of slices into tokens, tokens into a form.
//!
//! A made prompt is a list of slices. A slice is named, and a name always gives the same tokens, so
//! prompts share exactly the slices that they start with together. Whether that sharing survives
//! the target's tokenizer is not assumed: the chain of block hashes is taken from the tokens that
//! the target will see, wherever they are known.

use pb_contract::TokenId;
use pb_contract::plan::{ChatTurn, PlannedPrompt};

use crate::error::{DatasetError, WorkloadError};
use crate::source::{Form, Source, TokenSource, Tokenizer, Words};
use crate::trace::PromptTokens;
use crate::trace::prompt::mix;

/// Name of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A block of a trace, or something that several prompts share.
    Shared(u64),
    /// What one prompt has alone.
    Own(u64),
}

/// The first `tokens` tokens of what a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) name: Name,
    pub(crate) tokens: u32,
}

/// What a message holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Slices, joined.
    Slices(Vec<Slice>),
    /// A text of a file.
    Text(String),
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) part: Part,
}

impl Message {
    pub(crate) fn user(part: Part) -> Self {
        Message {
            role: "user".to_owned(),
            part,
        }
    }
}

impl Part {
    pub(crate) fn slice(name: Name, tokens: u32) -> Part {
        Part::Slices(vec![Slice { name, tokens }])
    }

    /// Tokens that it is meant to have; of a text an estimate.
    pub(crate) fn tokens(&self) -> u64 {
        match self {
            Part::Slices(slices) => slices.iter().map(|slice| u64::from(slice.tokens)).sum(),
            Part::Text(text) => estimate(text) as u64,
        }
    }
}

/// Tokens of an English text, roughly: four characters each.
pub(crate) fn estimate(text: &str) -> usize {
    text.len().div_ceil(4)
}

/// A prompt in its form, and what the target is going to see of it.
#[derive(Clone, Debug)]
pub(crate) struct Realised {
    pub(crate) prompt: PlannedPrompt,
    /// Tokens, those of the template included.
    pub(crate) tokens: u32,
    /// Whether they are the target's tokens and not an estimate of them.
    pub(crate) exact: bool,
    /// Hashes of its prefixes that end with each full block.
    pub(crate) chain: Vec<u64>,
    /// Hash of the whole.
    pub(crate) whole: u64,
    /// Hash of its start; prompts with different ones share no block.
    pub(crate) start: Option<u64>,
}

/// Makes prompts.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) form: Form,
    slices: PromptTokens,
    words: Option<Words>,
    block_size: usize,
    template_tokens: u32,
}

impl Speaker {
    /// `key` decides every token of every slice.
    pub(crate) fn new(
        source: &Source<'_>,
        form: Form,
        key: u64,
        block_size: usize,
        template_tokens: u32,
    ) -> Result<Self, DatasetError> {
        let (slices, words) = match (&source.tokens, form) {
            (TokenSource::Ids(range), Form::Ids) => (PromptTokens::new(range.clone(), key)?, None),
            (TokenSource::Text(ids), Form::Ids) => {
                (PromptTokens::from_text(ids.clone(), key)?, None)
            }
            (TokenSource::Words, Form::Text | Form::Chat) => {
                let words = Words::new(source.tokenizer);
                (PromptTokens::from_text(words.prose(), key)?, Some(words))
            }
            (TokenSource::Words, Form::Ids) => {
                let fix =
                    "words are sent as text or as chats: ask for one of these, or give token ids";
                return Err(WorkloadError::parameter("form", "ids", fix).into());
            }
            (_, Form::Text | Form::Chat) => {
                let fix = "prompts of token ids are sent as ids: ask for that, or give words";
                return Err(WorkloadError::parameter("form", "text", fix).into());
            }
        };
        Ok(Speaker {
            form,
            slices,
            words,
            block_size,
            template_tokens,
        })
    }

    /// Makes other slices of the same source.
    pub(crate) fn with_key(mut self, key: u64) -> Self {
        self.slices = self.slices.with_seed(key);
        self
    }

    /// Tokens of slices: the target's, or indices of words.
    pub(crate) fn tokens_of(&self, slices: &[Slice]) -> Vec<TokenId> {
        let count: usize = slices.iter().map(|slice| slice.tokens as usize).sum();
        let mut tokens = Vec::with_capacity(count);
        for slice in slices {
            let length = slice.tokens as usize;
            match slice.name {
                Name::Shared(name) => self.slices.append_named(name, length, &mut tokens),
                Name::Own(name) => self.slices.append_own(name, length, &mut tokens),
            }
        }
        tokens
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// A text that must be sent as ids while no tokenizer is known; a conversation that must be
    /// sent as one text.
    pub(crate) fn realise(
        &self,
        messages: &[Message],
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Result<Realised, DatasetError> {
        match self.form {
            Form::Ids => {
                let ids = match is_conversation(messages) {
                    true => self.template_ids(messages, tokenizer)?,
                    false => {
                        let parts = messages.iter().map(|m| self.ids_of(&m.part, tokenizer));
                        parts.collect::<Result<Vec<_>, _>>()?.concat()
                    }
                };
                Ok(self.finished(PlannedPrompt::Ids(ids), tokenizer))
            }
            Form::Text => {
                if is_conversation(messages) {
                    let fix = "the data set holds conversations: send them as chats";
                    return Err(WorkloadError::parameter("form", "text", fix).into());
                }
                let text = messages.iter().map(|message| self.text_of(&message.part));
                Ok(self.finished(PlannedPrompt::Text(text.collect()), tokenizer))
            }
            Form::Chat => {
                let prompt = PlannedPrompt::Chat(self.turns_of(messages));
                Ok(self.finished(prompt, tokenizer))
            }
        }
    }

    fn turns_of(&self, messages: &[Message]) -> Vec<ChatTurn> {
        let turn = |message: &Message| ChatTurn {
            role: message.role.clone(),
            content: match &message.part {
                // Templates trim the contents of messages, or do not.
                Part::Slices(_) => self.text_of(&message.part).trim_start().to_owned(),
                Part::Text(text) => text.clone(),
            },
        };
        messages.iter().map(turn).collect()
    }

    /// A conversation of a file in the target's template.
    fn template_ids(
        &self,
        messages: &[Message],
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Result<Vec<TokenId>, DatasetError> {
        let encoded = tokenizer.and_then(|t| t.encode_chat(&self.turns_of(messages)));
        encoded.ok_or_else(|| {
            let fix = "the data set holds conversations and the target's template is not known: \
                       send them as chats";
            WorkloadError::parameter("form", "ids", fix).into()
        })
    }

    fn ids_of(
        &self,
        part: &Part,
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Result<Vec<TokenId>, DatasetError> {
        match (part, tokenizer) {
            (Part::Slices(slices), _) => Ok(self.tokens_of(slices)),
            (Part::Text(text), Some(tokenizer)) => Ok(tokenizer.encode(text)),
            (Part::Text(_), None) => {
                let fix = "the data set holds text and no tokenizer is known: give one, or send \
                           it as text or as chats";
                Err(WorkloadError::parameter("form", "ids", fix).into())
            }
        }
    }

    fn text_of(&self, part: &Part) -> String {
        match part {
            Part::Text(text) => text.clone(),
            Part::Slices(slices) => self.joined(&self.tokens_of(slices)),
        }
    }

    fn joined(&self, indices: &[TokenId]) -> String {
        self.words
            .as_ref()
            .map(|words| words.text(indices))
            .unwrap_or_default()
    }

    /// A prompt of tokens that were made elsewhere with [`Speaker::tokens_of`].
    pub(crate) fn rendered(
        &self,
        tokens: Vec<TokenId>,
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Realised {
        let prompt = match self.form {
            Form::Ids => PlannedPrompt::Ids(tokens),
            Form::Text => PlannedPrompt::Text(self.joined(&tokens)),
            Form::Chat => PlannedPrompt::Chat(vec![ChatTurn {
                role: "user".to_owned(),
                content: self.joined(&tokens).trim_start().to_owned(),
            }]),
        };
        self.finished(prompt, tokenizer)
    }

    /// Counts and hashes what the target will see.
    pub(crate) fn finished(
        &self,
        prompt: PlannedPrompt,
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Realised {
        let seen = match (&prompt, tokenizer) {
            (PlannedPrompt::Ids(_), _) => None,
            (PlannedPrompt::Text(text), Some(tokenizer)) => Some(tokenizer.encode(text)),
            (PlannedPrompt::Chat(turns), Some(tokenizer)) => tokenizer.encode_chat(turns),
            (_, None) => None,
        };
        // What the target adds to ids moves the boundaries of their blocks.
        let bare = matches!(prompt, PlannedPrompt::Ids(_)) && self.template_tokens == 0;
        let exact = seen.is_some() || bare;
        let estimated;
        let ids: &[TokenId] = match (&prompt, &seen) {
            (PlannedPrompt::Ids(ids), _) => ids,
            (_, Some(ids)) => ids,
            _ => {
                estimated = stand_ins(&prompt, self.words.is_some(), tokenizer);
                &estimated
            }
        };
        let (chain, whole) = hashes(ids, self.block_size);
        // What the target adds is in what was encoded as the target does it.
        let template = match seen.is_some() {
            true => 0,
            false => self.template_tokens,
        };
        Realised {
            tokens: u32::try_from(ids.len())
                .unwrap_or(u32::MAX)
                .saturating_add(template),
            exact,
            chain,
            whole,
            start: start_of(&prompt, self.block_size),
            prompt,
        }
    }
}

/// Whether messages of a file need a template: there are several, or one that is not a user's.
fn is_conversation(messages: &[Message]) -> bool {
    let from_file = messages.iter().any(|m| matches!(m.part, Part::Text(_)));
    from_file && (messages.len() > 1 || messages.iter().any(|m| m.role != "user"))
}

/// Stands for the tokens of a text whose tokenizer is not known: its words where it was made of
/// words, its characters by fours where it was not.
fn stand_ins(
    prompt: &PlannedPrompt,
    words: bool,
    tokenizer: Option<&dyn Tokenizer>,
) -> Vec<TokenId> {
    let text_ids = |text: &str| -> Vec<TokenId> {
        if let Some(tokenizer) = tokenizer {
            return tokenizer.encode(text);
        }
        let made = words && text.bytes().all(|b| b == b' ' || b.is_ascii_lowercase());
        let hash = |bytes: &[u8]| mix(fnv1a(bytes)) as TokenId;
        match made {
            true => text
                .split_whitespace()
                .map(|w| hash(w.as_bytes()))
                .collect(),
            false => text.as_bytes().chunks(4).map(hash).collect(),
        }
    };
    match prompt {
        PlannedPrompt::Ids(ids) => ids.clone(),
        PlannedPrompt::Text(text) => text_ids(text),
        PlannedPrompt::Chat(turns) => {
            let contents = turns.iter().map(|turn| text_ids(&turn.content));
            contents.flatten().collect()
        }
    }
}

/// Hashes of the prefixes that end with each full block, and of the whole.
pub(crate) fn hashes(ids: &[TokenId], block_size: usize) -> (Vec<u64>, u64) {
    let mut chain = Vec::with_capacity(ids.len() / block_size);
    let mut state = 0x636f_6e74_656e_7473;
    for (index, &id) in ids.iter().enumerate() {
        state = mix(state ^ u64::from(id));
        if (index + 1).is_multiple_of(block_size) {
            chain.push(state);
        }
    }
    (chain, mix(state ^ ids.len() as u64))
}

/// Blocks are at least this long in every known server, or single tokens.
const SMALL_BLOCK: usize = 16;

/// Hash of the first block, or of the first 16 tokens of a longer one; of a text of as many
/// characters, since a token has at least one. Of a conversation that of the first message that
/// holds something. `None` for a prompt that is too short to have a block.
pub(crate) fn start_of(prompt: &PlannedPrompt, block_size: usize) -> Option<u64> {
    let length = block_size.min(SMALL_BLOCK);
    let of_text = |text: &str| {
        let text = text.trim_start().as_bytes();
        text.get(..length).map(|bytes| mix(fnv1a(bytes)))
    };
    match prompt {
        PlannedPrompt::Ids(ids) => ids.get(..length).map(|ids| hashes(ids, length).1),
        PlannedPrompt::Text(text) => of_text(text),
        PlannedPrompt::Chat(turns) => {
            let held = turns.iter().find(|turn| !turn.content.trim().is_empty());
            held.and_then(|turn| of_text(&turn.content))
        }
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
