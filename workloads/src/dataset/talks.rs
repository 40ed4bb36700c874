//! Data sets of sessions: chats, and agents that call tools.

use pb_contract::{Nanos, Stream};
use serde::{Deserialize, Serialize};

use crate::dataset::made::{ANSWERS, OPENER_TOKENS, OPENERS, at_least_one};
use crate::dataset::{Drawn, Talk, TalkTurn, Want};
use crate::error::DatasetError;
use crate::length::{Dist, Length, Real};
use crate::plan::check_requests;
use crate::realise::{Message, Name, Part};
use crate::source::Form;

/// Turns of one session, at most: their own names are numbered with this many places.
const MAX_TURNS: u64 = 1 << 16;

/// What later turns repeat as the answers of earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// Live ones in a chat, planned ones otherwise.
    #[default]
    Auto,
    /// What the target answered. A chat only.
    Live,
    /// Made ones of the planned length, so that every prompt is known before the run.
    Planned,
}

impl Answers {
    pub(crate) fn live(self, form: Form) -> Result<bool, DatasetError> {
        match (self, form) {
            (Answers::Planned, _) => Ok(false),
            (_, Form::Chat) => Ok(true),
            (Answers::Auto, _) => Ok(false),
            (Answers::Live, _) => {
                let fix = "the target's answers are put into a chat: send chats, or \
                           planned answers";
                Err(crate::error::WorkloadError::parameter("answers", "live", fix).into())
            }
        }
    }
}

/// Parameters of `sessions`. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionParams {
    /// Sessions.
    pub sessions: usize,
    /// System prompt that all sessions share; 0 for none.
    pub system_len: u32,
    /// Turns of a session.
    pub turns: Length,
    /// What the user says in a turn.
    pub question: Length,
    /// Answer.
    pub output: Length,
    /// Time from the end of a turn to the next, in seconds.
    pub think_s: Real,
    /// What later turns repeat.
    pub answers: Answers,
}

impl Default for SessionParams {
    fn default() -> Self {
        SessionParams {
            sessions: 32,
            system_len: 64,
            turns: Length::uniform(2, 6),
            question: Length::lognormal(64, 0.8, 1024),
            output: Length::lognormal(128, 0.8, 1024),
            think_s: pause(3.0, 0.8, 60.0),
            answers: Answers::Auto,
        }
    }
}

fn pause(median: f64, sigma: f64, max: f64) -> Real {
    Real(Dist::Lognormal {
        median,
        sigma,
        min: None,
        max: Some(max),
    })
}

/// Parameters of `agent`. Lengths in tokens.
///
/// The defaults are those of the six SWE-agent demonstrations that are published with it, at four
/// characters a token: 12 to 21 calls, 1,400 to 2,450 tokens at the first of them, actions of 67
/// tokens (median; standard deviation of the logarithm 0.74), observations of 160 (1.04). Their
/// pauses are not recorded: a second is an assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentParams {
    /// Sessions.
    pub sessions: usize,
    /// Instructions and tools that all sessions share.
    pub system_len: u32,
    /// What a session is about.
    pub task: Length,
    /// Calls of the model in a session.
    pub calls: Length,
    /// What a tool returns.
    pub observation: Length,
    /// What the model answers.
    pub output: Length,
    /// Time that a tool runs, in seconds.
    pub think_s: Real,
    /// What later calls repeat.
    pub answers: Answers,
}

impl Default for AgentParams {
    fn default() -> Self {
        AgentParams {
            sessions: 16,
            system_len: 1_360,
            task: Length::uniform(40, 1_090),
            calls: Length::uniform(12, 21),
            observation: Length::lognormal(160, 1.04, 1_760),
            output: Length::lognormal(67, 0.74, 260),
            think_s: pause(1.0, 1.0, 30.0),
            answers: Answers::Auto,
        }
    }
}

/// What the two kinds of sessions have in common.
struct Shape<'a> {
    class: &'static str,
    system_len: u32,
    /// First message after the system prompt.
    first: &'a Length,
    /// Each later one.
    later: &'a Length,
    turns: &'a Length,
    output: &'a Length,
    think_s: &'a Real,
    answers: Answers,
}

impl SessionParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        at_least_one(&[("sessions", self.sessions)])?;
        self.turns.validate("turns")?;
        self.question.validate("question")?;
        draw(
            &Shape {
                class: "sessions",
                system_len: self.system_len,
                first: &self.question,
                later: &self.question,
                turns: &self.turns,
                output: &self.output,
                think_s: &self.think_s,
                answers: self.answers,
            },
            want,
        )
    }
}

impl AgentParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        at_least_one(&[("sessions", self.sessions)])?;
        self.calls.validate("calls")?;
        self.task.validate("task")?;
        self.observation.validate("observation")?;
        draw(
            &Shape {
                class: "agent",
                system_len: self.system_len,
                first: &self.task,
                later: &self.observation,
                turns: &self.calls,
                output: &self.output,
                think_s: &self.think_s,
                answers: self.answers,
            },
            want,
        )
    }
}

fn draw(shape: &Shape<'_>, want: &Want<'_>) -> Result<Drawn, DatasetError> {
    shape.output.validate("output")?;
    shape.think_s.validate("think_s")?;
    at_least_one(&[("system_len", shape.system_len as usize + 1)])?;
    let live = shape.answers.live(want.form)?;
    let system = (shape.system_len > 0).then(|| Message {
        role: "system".to_owned(),
        part: Part::slice(Name::Shared(0), shape.system_len),
    });
    let mut drawn = Drawn {
        shares: true,
        ..Drawn::default()
    };
    let mut requests = 0;
    for session in 0..want.count as u64 {
        check_requests(requests)?;
        // A stream a session: one more turn of one does not change the others.
        let mut stream = Stream::new(want.seed, &format!("{}/{session}", shape.class));
        let turns = u64::from(shape.turns.draw(&mut stream)).min(MAX_TURNS);
        requests += turns as usize;
        let mut turn = |number: u64| {
            let name = session * MAX_TURNS + number;
            let first = number == 0;
            let length = if first { shape.first } else { shape.later };
            let said = Part::slice(Name::Own(name), length.draw(&mut stream));
            let max_tokens = shape.output.draw(&mut stream);
            let new = system.iter().filter(|_| first).cloned();
            TalkTurn {
                class: shape.class.to_owned(),
                think_ns: match first {
                    true => Nanos::ZERO,
                    false => shape.think_s.draw_ns(&mut stream),
                },
                new: new.chain([Message::user(said)]).collect(),
                answer: Part::slice(Name::Own(ANSWERS + name), max_tokens),
                max_tokens,
                complete: false,
            }
        };
        let talk = Talk {
            due: Nanos::ZERO,
            turns: (0..turns).map(&mut turn).collect(),
            live,
        };
        drawn.add_talk(talk, want);
    }
    if let Some(system) = system {
        let opener = Part::slice(Name::Own(OPENERS), OPENER_TOKENS);
        drawn.primes.push(vec![system, Message::user(opener)]);
    }
    Ok(drawn)
}
