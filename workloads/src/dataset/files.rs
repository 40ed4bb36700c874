//! Data sets of texts: ShareGPT conversations and files of prompts.

use std::path::{Path, PathBuf};

use pb_contract::{Nanos, Stream};
use serde::{Deserialize, Serialize};

use crate::dataset::{Ask, Drawn, Talk, TalkTurn, Want};
use crate::error::{DatasetError, WorkloadError};
use crate::length::Real;
use crate::plan::{check_bytes, check_requests};
use crate::realise::{Message, Part};
use crate::source::Form;
use crate::trace::{Conversation, Conversations, RowPrompt, TraceFormat, TraceReader};

/// Parameters of `sharegpt`; the limits are those of `vllm bench serve`. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharegptParams {
    /// File.
    pub path: PathBuf,
    /// Output, instead of the recorded answer's length.
    pub output_len: Option<u32>,
    /// Whole conversations as sessions; else the first question of each.
    pub multi_turn: bool,
    /// Conversations in a seeded order; else as in the file.
    pub shuffle: bool,
    /// Shorter prompts and answers are dropped.
    pub min_len: usize,
    /// Longer prompts are dropped.
    pub max_prompt_len: usize,
    /// Longer prompts with their answers are dropped.
    pub max_total_len: usize,
    /// Time between the turns of a session, in seconds.
    pub think_s: Real,
}

impl Default for SharegptParams {
    fn default() -> Self {
        SharegptParams {
            path: PathBuf::new(),
            output_len: None,
            multi_turn: false,
            shuffle: true,
            min_len: 4,
            max_prompt_len: 1024,
            max_total_len: 2048,
            think_s: Real::fixed(0.0),
        }
    }
}

/// A question and its answer with their lengths.
struct Counted {
    question: String,
    answer: String,
    output: usize,
}

impl SharegptParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        has_path(&self.path)?;
        self.think_s.validate("think_s")?;
        if self.output_len == Some(0) {
            return Err(WorkloadError::parameter("output_len", 0, "must be at least 1").into());
        }
        if self.multi_turn && want.form != Form::Chat {
            let fix = "conversations are sent as chats: ask for that";
            return Err(WorkloadError::parameter("multi_turn", true, fix).into());
        }
        let mut drawn = Drawn {
            shares: true,
            ..Drawn::default()
        };
        let mut kept: Vec<Conversation> = Vec::new();
        let mut bytes = 0;
        for conversation in Conversations::open(&self.path)? {
            drawn.rows_read += 1;
            let mut conversation = conversation?;
            if conversation.turns.is_empty() {
                drawn.drop_row("fewer_than_two_turns");
                continue;
            }
            if !self.multi_turn {
                conversation.turns.truncate(1);
            }
            let texts = conversation.turns.iter();
            bytes += texts.map(|(q, a)| (q.len() + a.len()) as u64).sum::<u64>();
            check_bytes(bytes)?;
            check_requests(kept.len())?;
            kept.push(conversation);
            // In file order there is no need to read on; some will be dropped.
            if !self.shuffle && kept.len() >= want.count.saturating_mul(8) {
                break;
            }
        }
        let mut order: Vec<usize> = (0..kept.len()).collect();
        if self.shuffle {
            Stream::new(want.seed, "sharegpt/order").shuffle(&mut order);
        }
        let mut thinks = Stream::new(want.seed, "sharegpt/think");
        for at in order {
            if drawn.len() >= want.count {
                break;
            }
            let turns = std::mem::take(&mut kept[at].turns);
            self.add(turns, &mut thinks, &mut drawn, want);
        }
        Ok(drawn)
    }

    fn add(
        &self,
        turns: Vec<(String, String)>,
        thinks: &mut Stream,
        drawn: &mut Drawn,
        want: &Want<'_>,
    ) {
        let mut counted: Vec<Counted> = Vec::new();
        let mut said = 0;
        for (question, answer) in turns {
            let (asked, answered) = (want.count_text(&question), want.count_text(&answer));
            let output = self.output_len.map_or(answered, |len| len as usize);
            // The limits hold for all that a prompt repeats.
            match self.refused(said + asked, asked, output) {
                Some(reason) if counted.is_empty() => return drawn.drop_row(reason),
                Some(_) => break,
                None => {}
            }
            said += asked + output;
            counted.push(Counted {
                question,
                answer,
                output,
            });
        }
        if !self.multi_turn {
            for Counted {
                question, output, ..
            } in counted
            {
                drawn.add(
                    Ask::of("sharegpt", Part::Text(question), output as u32),
                    want,
                );
            }
            return;
        }
        let turn = |(number, counted): (usize, Counted)| TalkTurn {
            class: "sharegpt".to_owned(),
            think_ns: match number {
                0 => Nanos::ZERO,
                _ => self.think_s.draw_ns(thinks),
            },
            new: vec![Message::user(Part::Text(counted.question))],
            answer: Part::Text(counted.answer),
            max_tokens: counted.output as u32,
            complete: false,
        };
        let talk = Talk {
            due: Nanos::ZERO,
            turns: counted.into_iter().enumerate().map(turn).collect(),
            live: true,
        };
        drawn.add_talk(talk, want);
    }

    /// Why `vllm bench serve` would leave this one out.
    fn refused(&self, prompt: usize, new: usize, output: usize) -> Option<&'static str> {
        let short_answer = self.output_len.is_none() && output < self.min_len;
        if new < self.min_len || short_answer {
            return Some("shorter_than_min_len");
        }
        if prompt > self.max_prompt_len {
            return Some("longer_than_max_prompt_len");
        }
        (prompt + output > self.max_total_len).then_some("longer_than_max_total_len")
    }
}

/// Parameters of `custom`: JSON lines with `prompt` and, where known, `output_tokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CustomParams {
    /// File.
    pub path: PathBuf,
    /// Output of every prompt; without it that of the line, or 256.
    pub output_len: Option<u32>,
    /// Prompts in a seeded order; else as in the file.
    pub shuffle: bool,
}

impl Default for CustomParams {
    fn default() -> Self {
        CustomParams {
            path: PathBuf::new(),
            output_len: None,
            shuffle: true,
        }
    }
}

/// Output where neither the parameters nor the line say one; vLLM's default.
const CUSTOM_OUTPUT: u32 = 256;

impl CustomParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        has_path(&self.path)?;
        if self.output_len == Some(0) {
            return Err(WorkloadError::parameter("output_len", 0, "must be at least 1").into());
        }
        let mut drawn = Drawn {
            shares: true,
            ..Drawn::default()
        };
        let mut asks = Vec::new();
        let mut bytes = 0;
        for row in TraceReader::open(&self.path, TraceFormat::VllmCustom)? {
            let row = row?;
            drawn.rows_read += 1;
            let known = (!row.output_unknown).then_some(row.output_tokens as u32);
            let output = self.output_len.or(known).unwrap_or(CUSTOM_OUTPUT);
            let Some(RowPrompt::Text(prompt)) = row.prompt else {
                continue;
            };
            bytes += prompt.len() as u64;
            check_bytes(bytes)?;
            check_requests(asks.len())?;
            asks.push(Ask::of("custom", Part::Text(prompt), output));
            if !self.shuffle && asks.len() >= want.count.saturating_mul(8) {
                break;
            }
        }
        if self.shuffle {
            Stream::new(want.seed, "custom/order").shuffle(&mut asks);
        }
        for ask in asks {
            if drawn.len() >= want.count {
                break;
            }
            let [message] = &ask.messages[..] else {
                continue;
            };
            let input = match &message.part {
                Part::Text(text) => want.count_text(text) as u64,
                part => part.tokens(),
            };
            match want.fits(input, u64::from(ask.max_tokens)) {
                true => drawn.asks.push(ask),
                false => drawn.drop_row(super::drawn::TOO_LONG),
            }
        }
        Ok(drawn)
    }
}

pub(crate) fn has_path(path: &Path) -> Result<(), WorkloadError> {
    match path.as_os_str().is_empty() {
        false => Ok(()),
        true => {
            let fix = "the data set is a file: give its path (--dataset-path)";
            Err(WorkloadError::parameter("path", "(none)", fix))
        }
    }
}
