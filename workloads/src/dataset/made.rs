//! Data sets of made prompts: random, shared-prefix, prefix-repetition and synthetic.

use pb_contract::{Nanos, Stream};
use serde::{Deserialize, Serialize};

use crate::dataset::{Ask, Drawn, Talk, TalkTurn, Want};
use crate::error::{DatasetError, WorkloadError};
use crate::length::{Length, Real, pick};
use crate::plan::check_requests;
use crate::realise::{Message, Name, Part, Slice};
use crate::source::Form;

/// Tokens behind the shared part of a prompt that only fills a cache.
pub(crate) const OPENER_TOKENS: u32 = 16;

/// Own names of openers, far from those of requests.
pub(crate) const OPENERS: u64 = 1 << 40;

/// Longest length of a made prompt or output, in tokens.
const MAX_LEN: u32 = 1 << 24;

pub(crate) fn at_least_one(values: &[(&'static str, usize)]) -> Result<(), WorkloadError> {
    for &(key, value) in values {
        if value == 0 || value > MAX_LEN as usize {
            let fix = format!("must be 1 to {MAX_LEN}");
            return Err(WorkloadError::parameter(key, value, fix));
        }
    }
    Ok(())
}

/// Draws before it is taken that the rest does not fit into the target's context.
fn attempts(want: &Want<'_>) -> u64 {
    want.count.saturating_mul(20) as u64 + 100
}

/// Parameters of `random`, those of `vllm bench serve`. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RandomParams {
    /// Prompt without the prefix.
    pub input_len: u32,
    /// Output.
    pub output_len: u32,
    /// Lengths are uniform in `floor(len (1 - r)) ..= ceil(len (1 + r))`, with `0 <= r < 1`.
    pub range_ratio: f64,
    /// Prefix that all prompts share, in front of `input_len`.
    pub prefix_len: u32,
}

impl Default for RandomParams {
    fn default() -> Self {
        RandomParams {
            input_len: 1024,
            output_len: 128,
            range_ratio: 0.0,
            prefix_len: 0,
        }
    }
}

impl RandomParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        at_least_one(&[
            ("input_len", self.input_len as usize),
            ("output_len", self.output_len as usize),
            ("prefix_len", self.prefix_len as usize + 1),
        ])?;
        if !(0.0..1.0).contains(&self.range_ratio) {
            let fix = "must be at least 0 and below 1: lengths go from len (1 - ratio) to \
                       len (1 + ratio)";
            let error = WorkloadError::parameter("range_ratio", self.range_ratio, fix);
            return Err(error.into());
        }
        let around = |len: u32| {
            let (len, ratio) = (f64::from(len), self.range_ratio);
            let low = (len * (1.0 - ratio)).floor().max(1.0);
            Length::uniform(low as u32, (len * (1.0 + ratio)).ceil() as u32)
        };
        let (input, output) = (around(self.input_len), around(self.output_len));
        let mut lengths = Stream::new(want.seed, "random/lengths");
        let shares = self.prefix_len > 0;
        let mut drawn = Drawn {
            shares,
            ..Drawn::default()
        };
        let prefix = Slice {
            name: Name::Shared(0),
            tokens: self.prefix_len,
        };
        let prompt = |own: u64, tokens: u32| {
            let own = Slice {
                name: Name::Own(own),
                tokens,
            };
            let slices = [prefix, own].into_iter();
            Part::Slices(slices.filter(|slice| slice.tokens > 0).collect())
        };
        for index in 0..attempts(want) {
            if drawn.len() == want.count {
                break;
            }
            let (input, output) = (input.draw(&mut lengths), output.draw(&mut lengths));
            drawn.add(Ask::of("random", prompt(index, input), output), want);
        }
        if shares {
            let opener = prompt(OPENERS, OPENER_TOKENS);
            drawn.primes.push(vec![Message::user(opener)]);
        }
        Ok(drawn)
    }
}

/// Parameters of `shared-prefix`, those of SGLang's `generated-shared-prefix`. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeneratedSharedPrefix {
    /// System prompts.
    pub num_groups: usize,
    /// Prompts behind each of them.
    pub prompts_per_group: usize,
    /// System prompt.
    pub system_prompt_len: u32,
    /// Question.
    pub question_len: u32,
    /// Output.
    pub output_len: u32,
    /// Lengths are uniform in `max(1, floor(len r)) ..= len`; 1 makes them all alike.
    pub range_ratio: f64,
    /// Turns; more than one makes each prompt a session.
    pub num_turns: usize,
    /// Group after group; shuffled otherwise.
    pub ordered: bool,
    /// Time between the turns of a session, in seconds.
    pub think_s: Real,
}

impl Default for GeneratedSharedPrefix {
    fn default() -> Self {
        GeneratedSharedPrefix {
            num_groups: 64,
            prompts_per_group: 16,
            system_prompt_len: 2048,
            question_len: 128,
            output_len: 256,
            range_ratio: 1.0,
            num_turns: 1,
            ordered: false,
            think_s: Real::fixed(0.0),
        }
    }
}

impl GeneratedSharedPrefix {
    fn validate(&self) -> Result<(), WorkloadError> {
        at_least_one(&[
            ("num_groups", self.num_groups),
            ("prompts_per_group", self.prompts_per_group),
            ("system_prompt_len", self.system_prompt_len as usize),
            ("question_len", self.question_len as usize),
            ("output_len", self.output_len as usize),
            ("num_turns", self.num_turns),
        ])?;
        let prompts = self.num_groups.saturating_mul(self.prompts_per_group);
        check_requests(prompts.saturating_mul(self.num_turns))?;
        self.think_s.validate("think_s")?;
        match (0.0..=1.0).contains(&self.range_ratio) {
            true => Ok(()),
            false => Err(WorkloadError::parameter(
                "range_ratio",
                self.range_ratio,
                "must be 0 to 1: lengths go from len x ratio to len",
            )),
        }
    }

    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        self.validate()?;
        let drawn_lengths = self.lengths(want.seed);
        let mut order: Vec<usize> = (0..self.num_groups * self.prompts_per_group).collect();
        if !self.ordered {
            Stream::new(want.seed, "shared-prefix/order").shuffle(&mut order);
        }
        let mut thinks = Stream::new(want.seed, "shared-prefix/think");
        let mut drawn = Drawn {
            shares: true,
            ..Drawn::default()
        };
        for prompt in order.into_iter().take(want.count) {
            if self.num_turns == 1 {
                let part = Part::Slices(self.said(&drawn_lengths, prompt, 0));
                let output = drawn_lengths.outputs[prompt];
                drawn.add(Ask::of("shared-prefix", part, output), want);
            } else {
                let live = want.form == Form::Chat;
                let talk = self.talk(&drawn_lengths, prompt, live, &mut thinks);
                drawn.add_talk(talk, want);
            }
        }
        for (group, &tokens) in drawn_lengths.systems.iter().enumerate() {
            let system = Slice {
                name: Name::Shared(group as u64),
                tokens,
            };
            let opener = Slice {
                name: Name::Own(OPENERS + group as u64),
                tokens: OPENER_TOKENS,
            };
            let part = Part::Slices(vec![system, opener]);
            drawn.primes.push(vec![Message::user(part)]);
        }
        Ok(drawn)
    }

    /// In SGLang's order: all system prompts, all questions, all outputs.
    fn lengths(&self, seed: u64) -> GspLengths {
        let below = |len: u32| {
            let low = (f64::from(len) * self.range_ratio).floor().max(1.0);
            Length::uniform(low as u32, len)
        };
        let prompts = self.num_groups * self.prompts_per_group;
        let mut lengths = Stream::new(seed, "shared-prefix/lengths");
        let mut draw = |len: u32, count: usize| -> Vec<u32> {
            let len = below(len);
            (0..count).map(|_| len.draw(&mut lengths)).collect()
        };
        GspLengths {
            systems: draw(self.system_prompt_len, self.num_groups),
            questions: draw(self.question_len, prompts * self.num_turns),
            outputs: draw(self.output_len, prompts),
        }
    }

    /// What is new in a turn of a prompt.
    fn said(&self, lengths: &GspLengths, prompt: usize, turn: usize) -> Vec<Slice> {
        let group = prompt / self.prompts_per_group;
        let at = prompt * self.num_turns + turn;
        let system = Slice {
            name: Name::Shared(group as u64),
            tokens: lengths.systems[group],
        };
        let question = Slice {
            name: Name::Own(at as u64),
            tokens: lengths.questions[at],
        };
        match turn {
            0 => vec![system, question],
            _ => vec![question],
        }
    }

    fn talk(&self, lengths: &GspLengths, prompt: usize, live: bool, thinks: &mut Stream) -> Talk {
        let max_tokens = lengths.outputs[prompt];
        let turn = |turn: usize| TalkTurn {
            class: "shared-prefix".to_owned(),
            think_ns: match turn {
                0 => Nanos::ZERO,
                _ => self.think_s.draw_ns(thinks),
            },
            new: vec![Message::user(Part::Slices(
                self.said(lengths, prompt, turn),
            ))],
            answer: Part::slice(
                Name::Own(ANSWERS + (prompt * self.num_turns + turn) as u64),
                max_tokens,
            ),
            max_tokens,
            complete: false,
        };
        Talk {
            due: Nanos::ZERO,
            turns: (0..self.num_turns).map(turn).collect(),
            live,
        }
    }
}

/// Lengths of a `shared-prefix` run.
struct GspLengths {
    /// By group.
    systems: Vec<u32>,
    /// By prompt and turn.
    questions: Vec<u32>,
    /// By prompt.
    outputs: Vec<u32>,
}

/// Own names of made answers.
pub(crate) const ANSWERS: u64 = 1 << 41;

/// Parameters of `prefix-repetition`, those of `vllm bench serve`. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrefixRepetitionParams {
    /// Prefix.
    pub prefix_len: u32,
    /// What follows it, each time another.
    pub suffix_len: u32,
    /// Prefixes.
    pub num_prefixes: usize,
    /// Output.
    pub output_len: u32,
}

impl Default for PrefixRepetitionParams {
    fn default() -> Self {
        PrefixRepetitionParams {
            prefix_len: 256,
            suffix_len: 256,
            num_prefixes: 10,
            output_len: 128,
        }
    }
}

impl PrefixRepetitionParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        at_least_one(&[
            ("prefix_len", self.prefix_len as usize),
            ("suffix_len", self.suffix_len as usize),
            ("num_prefixes", self.num_prefixes),
            ("output_len", self.output_len as usize),
        ])?;
        let prompt = |prefix: usize, own: u64, tokens: u32| {
            let prefix = Slice {
                name: Name::Shared(prefix as u64),
                tokens: self.prefix_len,
            };
            let own = Slice {
                name: Name::Own(own),
                tokens,
            };
            Part::Slices(vec![prefix, own])
        };
        let mut order: Vec<usize> = (0..want.count).collect();
        Stream::new(want.seed, "prefix-repetition/order").shuffle(&mut order);
        let mut drawn = Drawn {
            shares: true,
            ..Drawn::default()
        };
        for index in order {
            let part = prompt(index % self.num_prefixes, index as u64, self.suffix_len);
            drawn.add(Ask::of("prefix-repetition", part, self.output_len), want);
        }
        for prefix in 0..self.num_prefixes.min(want.count) {
            let part = prompt(prefix, OPENERS + prefix as u64, OPENER_TOKENS);
            drawn.primes.push(vec![Message::user(part)]);
        }
        Ok(drawn)
    }
}

/// A class of requests in a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureClass {
    /// Name; rows of the result carry it.
    pub class: String,
    /// Share of the requests; need not sum to 1.
    pub weight: f64,
    /// Prompt length.
    pub input: Length,
    /// Output length.
    pub output: Length,
}

/// Parameters of `synthetic`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticParams {
    /// Prompt length; of no meaning with `parts`.
    pub input: Length,
    /// Output length; of no meaning with `parts`.
    pub output: Length,
    /// Classes with lengths of their own, such as short questions and long documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<MixtureClass>,
}

impl Default for SyntheticParams {
    fn default() -> Self {
        SyntheticParams {
            input: Length::fixed(1024),
            output: Length::fixed(128),
            parts: Vec::new(),
        }
    }
}

impl SyntheticParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        self.input.validate("input")?;
        self.output.validate("output")?;
        let alone = MixtureClass {
            class: "synthetic".to_owned(),
            weight: 1.0,
            input: self.input.clone(),
            output: self.output.clone(),
        };
        let parts = match &self.parts[..] {
            [] => std::slice::from_ref(&alone),
            parts => parts,
        };
        for part in parts {
            part.input.validate("parts.input")?;
            part.output.validate("parts.output")?;
            if !(part.weight.is_finite() && part.weight > 0.0) {
                let fix = "must be a positive number";
                return Err(WorkloadError::parameter("parts.weight", part.weight, fix).into());
            }
        }
        let weights = parts.iter().map(|part| part.weight);
        let mut classes = Stream::new(want.seed, "synthetic/classes");
        let mut lengths = Stream::new(want.seed, "synthetic/lengths");
        let mut drawn = Drawn::default();
        for index in 0..attempts(want) {
            if drawn.len() == want.count {
                break;
            }
            let part = &parts[pick(weights.clone(), &mut classes)];
            let input = part.input.draw(&mut lengths);
            let output = part.output.draw(&mut lengths);
            let prompt = Part::slice(Name::Own(index), input);
            drawn.add(Ask::of(part.class.clone(), prompt, output), want);
        }
        Ok(drawn)
    }
}
