//! What comes out of a data set before it has tokens or, mostly, times.

use std::collections::BTreeMap;

use pb_contract::Nanos;

use crate::dataset::Want;
use crate::realise::{Message, Part};

/// Reason of a row that is longer than the target's context.
pub(crate) const TOO_LONG: &str = "longer_than_max_model_len";

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) class: String,
    pub(crate) messages: Vec<Message>,
    pub(crate) max_tokens: u32,
    /// Recorded arrival.
    pub(crate) due: Nanos,
}

impl Ask {
    /// A request of one message.
    pub(crate) fn of(class: impl Into<String>, part: Part, max_tokens: u32) -> Self {
        Ask {
            class: class.into(),
            messages: vec![Message::user(part)],
            max_tokens,
            due: Nanos::ZERO,
        }
    }

    pub(crate) fn input_tokens(&self) -> u64 {
        self.messages.iter().map(|m| m.part.tokens()).sum()
    }
}

/// A turn of a session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TalkTurn {
    pub(crate) class: String,
    pub(crate) think_ns: Nanos,
    /// What is new in it, or all of it when it is `complete`.
    pub(crate) new: Vec<Message>,
    /// Stands for the target's answer in the turns after it when those do not wait for the real
    /// one.
    pub(crate) answer: Part,
    pub(crate) max_tokens: u32,
    /// Whether `new` is the whole prompt.
    pub(crate) complete: bool,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Talk {
    /// Recorded arrival of its first turn.
    pub(crate) due: Nanos,
    pub(crate) turns: Vec<TalkTurn>,
    /// Whether later turns repeat what the target really answered.
    pub(crate) live: bool,
}

impl Talk {
    /// Tokens of all its prompts.
    fn input_tokens(&self) -> u64 {
        let (mut said, mut sum) = (0u64, 0u64);
        for turn in &self.turns {
            let new: u64 = turn.new.iter().map(|m| m.part.tokens()).sum();
            sum += match (turn.complete, self.live) {
                (true, _) | (_, true) => new,
                (false, false) => said + new,
            };
            said += new + u64::from(turn.max_tokens);
        }
        sum
    }

    /// Cuts the session off before the first turn that does not fit; the number of turns cut.
    pub(crate) fn cut_to_fit(&mut self, want: &Want<'_>) -> usize {
        let (mut said, mut kept) = (0, 0);
        for turn in &self.turns {
            let new: u64 = turn.new.iter().map(|m| m.part.tokens()).sum();
            let input = if turn.complete { new } else { said + new };
            let output = u64::from(turn.max_tokens);
            if !want.fits(input, output) {
                break;
            }
            said = input + output;
            kept += 1;
        }
        let cut = self.turns.len() - kept;
        self.turns.truncate(kept);
        cut
    }
}

/// What was drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) asks: Vec<Ask>,
    pub(crate) talks: Vec<Talk>,
    /// Prompts that put what is shared into a cache; empty when nothing is shared by design.
    pub(crate) primes: Vec<Vec<Message>>,
    /// Whether prompts may start alike by design.
    pub(crate) shares: bool,
    /// Whether arrivals were recorded.
    pub(crate) has_arrivals: bool,
    pub(crate) rows_read: u64,
    pub(crate) dropped: BTreeMap<String, u64>,
    pub(crate) evidence: Vec<String>,
}

impl Drawn {
    pub(crate) fn drop_row(&mut self, reason: &str) {
        *self.dropped.entry(reason.to_owned()).or_default() += 1;
    }

    /// Requests, or sessions where there are any.
    pub(crate) fn len(&self) -> usize {
        self.asks.len() + self.talks.len()
    }

    /// Requests, the turns of sessions included.
    pub(crate) fn requests(&self) -> usize {
        self.asks.len()
            + self
                .talks
                .iter()
                .map(|talk| talk.turns.len())
                .sum::<usize>()
    }

    /// Tokens of all prompts, what they repeat included.
    pub(crate) fn tokens(&self) -> u64 {
        let asks = self.asks.iter().map(Ask::input_tokens);
        let talks = self.talks.iter().map(Talk::input_tokens);
        asks.chain(talks).fold(0, u64::saturating_add)
    }

    /// Repeats all requests or sessions until there are `count`; recorded arrivals go on after the
    /// last of them.
    pub(crate) fn repeat(&mut self, count: usize) {
        let dues = self.asks.iter().map(|ask| ask.due);
        let dues = dues.chain(self.talks.iter().map(|talk| talk.due));
        let span = dues.max().unwrap_or(Nanos::ZERO).0;
        let later = |due: Nanos, round: usize| Nanos(due.0 + round as u64 * span);
        let (asks, talks) = (self.asks.clone(), self.talks.clone());
        for round in 1.. {
            if self.len() >= count {
                break;
            }
            let missing = count - self.len();
            self.asks.extend(asks.iter().take(missing).map(|ask| Ask {
                due: later(ask.due, round),
                ..ask.clone()
            }));
            let missing = count - self.len();
            self.talks
                .extend(talks.iter().take(missing).map(|talk| Talk {
                    due: later(talk.due, round),
                    ..talk.clone()
                }));
        }
    }

    /// Adds a request that fits, and counts one that does not.
    pub(crate) fn add(&mut self, ask: Ask, want: &Want<'_>) {
        match want.fits(ask.input_tokens(), u64::from(ask.max_tokens)) {
            true => self.asks.push(ask),
            false => self.drop_row(TOO_LONG),
        }
    }

    /// Adds a session, cut where it does not fit any more.
    pub(crate) fn add_talk(&mut self, mut talk: Talk, want: &Want<'_>) {
        for _ in 0..talk.cut_to_fit(want) {
            self.drop_row(TOO_LONG);
        }
        if !talk.turns.is_empty() {
            self.talks.push(talk);
        }
    }
}
