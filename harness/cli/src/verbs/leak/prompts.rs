//! Prompts of the tool's own making: random, so that no two share a beginning by chance.

use anyhow::{Result, bail};
use pb_contract::plan::{ChatTurn, PlannedBody, PlannedPrompt};
use pb_contract::{Stream, TokenId};

use crate::args::{LeakApi, LeakArgs, LeakUnit};

/// Output tokens of each request; only the first one is timed.
const OUTPUT_TOKENS: u32 = 2;

/// Letters that words are made from, consonants and vowels in turn.
const CONSONANTS: &[u8] = b"bdfghklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// Makes prompts that were never sent before.
#[derive(Debug)]
pub(crate) struct PromptMaker {
    stream: Stream,
    api: LeakApi,
    unit: LeakUnit,
    len: usize,
    ids: (TokenId, TokenId),
}

impl PromptMaker {
    /// # Errors
    /// Token ids for a chat.
    pub(crate) fn new(args: &LeakArgs, nonce: u64) -> Result<PromptMaker> {
        let unit = args.input_unit.unwrap_or(match args.api {
            LeakApi::Completions => LeakUnit::Ids,
            LeakApi::Chat => LeakUnit::Text,
        });
        if (args.api, unit) == (LeakApi::Chat, LeakUnit::Ids) {
            bail!("--input-unit ids: a chat message is a text; use text, or --api completions");
        }
        Ok(PromptMaker {
            stream: Stream::new(args.seed, &format!("leak prompts {nonce}")),
            api: args.api,
            unit,
            len: args.prompt_len,
            ids: args.random_range_ids,
        })
    }

    /// What the length counts.
    pub(crate) fn unit(&self) -> &'static str {
        match self.unit {
            LeakUnit::Ids => "tokens",
            LeakUnit::Text => "words",
        }
    }

    /// The next prompt.
    pub(crate) fn next_prompt(&mut self) -> PlannedPrompt {
        match (self.unit, self.api) {
            (LeakUnit::Ids, _) => {
                let (lo, hi) = self.ids;
                let draw = |_| lo + self.stream.below(u64::from(hi - lo)) as TokenId;
                PlannedPrompt::Ids((0..self.len).map(draw).collect())
            }
            (LeakUnit::Text, LeakApi::Completions) => PlannedPrompt::Text(self.words()),
            (LeakUnit::Text, LeakApi::Chat) => PlannedPrompt::Chat(vec![ChatTurn {
                role: "user".to_owned(),
                content: self.words(),
            }]),
        }
    }

    fn words(&mut self) -> String {
        let mut text = String::new();
        for n in 0..self.len {
            if n > 0 {
                text.push(' ');
            }
            for letters in [CONSONANTS, VOWELS, CONSONANTS, VOWELS] {
                let at = self.stream.below(letters.len() as u64) as usize;
                text.push(char::from(letters[at]));
            }
        }
        text
    }

    /// A request with a prompt, under a salt or none.
    pub(crate) fn body(
        &self,
        class: &str,
        prompt: &PlannedPrompt,
        salt: Option<&String>,
    ) -> PlannedBody {
        // Of a text it is the number of words, an estimate.
        let planned_tokens = u32::try_from(self.len).unwrap_or(u32::MAX);
        PlannedBody::of(class, prompt.clone(), planned_tokens, OUTPUT_TOKENS)
            .with_salt(salt.cloned())
    }
}
