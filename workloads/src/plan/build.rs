//! Requests with their tokens, put where they are due.

use std::collections::BTreeSet;

use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody, PlannedPrompt, Session, Turn};
use pb_contract::{Nanos, RequestId};

use crate::dataset::{Ask, Drawn, Talk, TalkTurn};
use crate::error::{DatasetError, WorkloadError};
use crate::plan::hits::{self, Meta};
use crate::plan::{CacheStart, Facts, PlanOptions, check_bytes};
use crate::realise::{Message, Name, Part, Realised, Slice, Speaker};
use crate::shape::{ArrivalKind, Due, FOREVER, LoadShape};
use crate::source::{Form, Tokenizer};

/// Times that a prompt is made anew because it starts like another one by chance.
const ATTEMPTS: u64 = 32;

/// Own names of prompts that are made anew.
const ANEW: u64 = 1 << 48;

/// Times that a prompt is made shorter or longer to have its length once tokenized.
const ADAPTATIONS: usize = 4;

/// Makes a plan, request after request.
pub(super) struct Builder<'a> {
    pub(super) speaker: &'a Speaker,
    pub(super) tokenizer: Option<&'a dyn Tokenizer>,
    pub(super) options: &'a PlanOptions,
    pub(super) plan: Plan,
    /// One a request, by its id.
    pub(super) metas: Vec<Meta>,
    pub(super) starts: BTreeSet<u64>,
    /// Memory of the prompts so far.
    bytes: u64,
    off_length: u64,
}

/// A finished plan.
pub(super) struct Built {
    pub(super) plan: Plan,
    pub(super) metas: Vec<Meta>,
    pub(super) starts: BTreeSet<u64>,
    pub(super) prime: Vec<PlannedBody>,
    hits: hits::Hits,
    off_length: u64,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        speaker: &'a Speaker,
        tokenizer: Option<&'a dyn Tokenizer>,
        options: &'a PlanOptions,
    ) -> Self {
        Builder {
            speaker,
            tokenizer,
            options,
            plan: Plan {
                drain_ns: options.drain_ns,
                ..Plan::default()
            },
            metas: Vec::new(),
            starts: BTreeSet::new(),
            bytes: 0,
            off_length: 0,
        }
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.metas.len() as u64)
    }

    /// Puts what was drawn where it is due.
    pub(super) fn fill(
        &mut self,
        drawn: &Drawn,
        due: &Due,
        kind: ArrivalKind,
        shape: &LoadShape,
    ) -> Result<(), DatasetError> {
        if !drawn.talks.is_empty() && !drawn.asks.is_empty() && kind != ArrivalKind::Trace {
            let fix = "the data set mixes sessions and single requests: only arrival trace keeps \
                       their order";
            return Err(WorkloadError::parameter("arrival", format!("{kind:?}"), fix).into());
        }
        let closed = (kind == ArrivalKind::Closed)
            .then_some(shape.max_concurrency)
            .flatten();
        let recorded = kind == ArrivalKind::Trace;
        let offset = |index: usize, own: Nanos| match recorded {
            true => own,
            false => due.offsets.get(index).copied().unwrap_or(Nanos::ZERO),
        };
        let count = match kind {
            ArrivalKind::Trace | ArrivalKind::Closed => usize::MAX,
            _ => due.offsets.len(),
        };
        match closed {
            Some(streams) => self.closed(&drawn.asks, streams, !drawn.shares)?,
            None => {
                for (index, ask) in drawn.asks.iter().take(count).enumerate() {
                    self.open(ask, offset(index, ask.due), !drawn.shares)?;
                }
            }
        }
        let talks = drawn.talks.iter().take(count).enumerate();
        for (index, talk) in talks {
            let offset_ns = match closed {
                Some(_) => Nanos::ZERO,
                None => offset(index, talk.due),
            };
            self.session(talk, offset_ns, closed.map(|users| index % users))?;
        }
        let open = self.plan.open.iter().map(|request| request.offset_ns);
        let first_turns = self.plan.sessions.iter().map(|session| session.offset_ns);
        let last = open.chain(first_turns).max().unwrap_or(Nanos::ZERO);
        let by_number = match self.plan.closed.is_empty() && self.plan.sessions.is_empty() {
            true => last + Nanos(1),
            false => FOREVER.max(last + Nanos(1)),
        };
        self.plan.horizon_ns = due.end.or(shape.duration()).unwrap_or(by_number);
        Ok(())
    }

    fn open(&mut self, ask: &Ask, offset_ns: Nanos, alone: bool) -> Result<(), DatasetError> {
        let id = self.next_id();
        let body = self.body(ask, alone)?;
        self.plan.open.push(OpenRequest {
            id,
            offset_ns,
            body,
        });
        Ok(())
    }

    fn closed(&mut self, asks: &[Ask], streams: usize, alone: bool) -> Result<(), DatasetError> {
        if asks.is_empty() {
            return Ok(());
        }
        let first_id = self.next_id();
        let bodies = asks.iter().map(|ask| self.body(ask, alone));
        let bodies = bodies.collect::<Result<_, _>>()?;
        self.plan.closed.push(ClosedLoop {
            streams,
            first_id,
            bodies,
        });
        Ok(())
    }

    /// A session of its own, or the next one of a user.
    fn session(
        &mut self,
        talk: &Talk,
        offset_ns: Nanos,
        user: Option<usize>,
    ) -> Result<(), DatasetError> {
        let turns = self.turns(talk)?;
        match user.and_then(|user| self.plan.sessions.get_mut(user)) {
            Some(session) => session.turns.extend(turns),
            None => self.plan.sessions.push(Session { offset_ns, turns }),
        }
        Ok(())
    }

    fn turns(&mut self, talk: &Talk) -> Result<Vec<Turn>, DatasetError> {
        if talk.live && self.options.form != Form::Chat {
            let fix = "the turns repeat the target's own answers, which only a chat can: send \
                       them as chats";
            return Err(WorkloadError::parameter("form", "ids", fix).into());
        }
        let mut said: Vec<Message> = Vec::new();
        let mut turns = Vec::new();
        for turn in &talk.turns {
            let id = self.next_id();
            let first = turns.is_empty();
            let body = match turn.complete {
                true => self.turn_body(turn, &turn.new, None)?,
                false => {
                    said.extend(turn.new.iter().cloned());
                    let sent = (talk.live && !first).then_some(&turn.new[..]);
                    self.turn_body(turn, &said, sent)?
                }
            };
            said.push(Message {
                role: "assistant".to_owned(),
                part: turn.answer.clone(),
            });
            turns.push(Turn {
                id,
                think_ns: turn.think_ns,
                body,
                history: talk.live && !turn.complete && !first,
            });
        }
        Ok(turns)
    }

    /// The body of a turn whose prompt is `messages`; of them only `sent` is in it when the driver
    /// puts the others in front.
    fn turn_body(
        &mut self,
        turn: &TalkTurn,
        messages: &[Message],
        sent: Option<&[Message]>,
    ) -> Result<PlannedBody, DatasetError> {
        let mut whole = self.speaker.realise(messages, self.tokenizer)?;
        if let Some(sent) = sent {
            // What the target answers is not known, so neither is the prompt.
            whole.exact = false;
            whole.prompt = self.speaker.realise(sent, None)?.prompt;
        }
        self.keep(&turn.class, whole, turn.max_tokens)
    }

    /// The body of a request; one that shares nothing starts like no other.
    fn body(&mut self, ask: &Ask, alone: bool) -> Result<PlannedBody, DatasetError> {
        let mut realised = self.fitted(ask.messages.clone(), ask.input_tokens())?;
        if alone {
            for attempt in 1..=ATTEMPTS {
                let taken = realised
                    .start
                    .is_some_and(|start| self.starts.contains(&start));
                if !taken {
                    break;
                }
                let messages = renamed(&ask.messages, attempt);
                realised = self.fitted(messages, ask.input_tokens())?;
            }
            if let Some(start) = realised.start
                && self.starts.contains(&start)
            {
                return Err(WorkloadError::Repeat {
                    first: 0,
                    second: self.metas.len(),
                    class: ask.class.clone(),
                    block_size: self.options.block_size,
                }
                .into());
            }
        }
        self.keep(&ask.class, realised, ask.max_tokens)
    }

    /// The prompt of messages that are meant to have `asked` tokens.
    fn fitted(&mut self, messages: Vec<Message>, asked: u64) -> Result<Realised, DatasetError> {
        let made = messages.iter().all(|m| matches!(m.part, Part::Slices(_)));
        let mut messages = messages;
        let mut realised = self.speaker.realise(&messages, self.tokenizer)?;
        if made && self.options.adapt_input {
            for _ in 0..ADAPTATIONS {
                let off = i64::from(realised.tokens) - asked as i64;
                if off == 0 || !lengthen(&mut messages, -off) {
                    break;
                }
                realised = self.speaker.realise(&messages, self.tokenizer)?;
            }
        }
        self.off_length += u64::from(made && u64::from(realised.tokens) != asked);
        Ok(realised)
    }

    /// Takes a prompt into the plan.
    pub(super) fn keep(
        &mut self,
        class: &str,
        realised: Realised,
        max_tokens: u32,
    ) -> Result<PlannedBody, DatasetError> {
        self.bytes += bytes_of(&realised.prompt) + 8 * realised.chain.len() as u64;
        check_bytes(match self.options.cache {
            CacheStart::Cold => self.bytes,
            CacheStart::Primed => 2 * self.bytes,
        })?;
        self.starts.extend(realised.start);
        self.metas.push(Meta {
            chain: realised.chain,
            whole: realised.whole,
            tokens: realised.tokens,
            max_tokens,
            exact: realised.exact,
        });
        Ok(self.dressed(class, realised.prompt, realised.tokens, max_tokens))
    }

    fn dressed(
        &self,
        class: &str,
        prompt: PlannedPrompt,
        tokens: u32,
        max_tokens: u32,
    ) -> PlannedBody {
        let mut body = PlannedBody::of(class, prompt, tokens, max_tokens)
            .with_salt(self.options.cache_salt.clone());
        body.ignore_eos = self.options.ignore_eos;
        body
    }

    /// The plan with its planned hits.
    pub(super) fn finish(mut self, drawn: &Drawn) -> Result<Built, DatasetError> {
        let (mut prime, mut primed) = (Vec::new(), Vec::new());
        if self.options.cache == CacheStart::Primed {
            for messages in &drawn.primes {
                let realised = self.speaker.realise(messages, self.tokenizer)?;
                self.starts.extend(realised.start);
                primed.push(realised.chain);
                prime.push(self.dressed("prime", realised.prompt, realised.tokens, 1));
            }
            if drawn.primes.is_empty() {
                for (id, body) in self.last_prompts() {
                    primed.push(self.metas[id.0 as usize].chain.clone());
                    let (prompt, tokens) = (body.prompt.clone(), body.planned_tokens);
                    prime.push(self.dressed("prime", prompt, tokens, 1));
                }
            }
        }
        let nothing_shared = !drawn.shares && self.options.form != Form::Chat;
        let hits = hits::plan_hits(
            &mut self.plan,
            &self.metas,
            &primed,
            self.options.block_size,
            nothing_shared,
        );
        Ok(Built {
            plan: self.plan,
            metas: self.metas,
            starts: self.starts,
            prime,
            hits,
            off_length: self.off_length,
        })
    }

    /// Prompts that hold all others: every request, and of each session the last complete prompt.
    fn last_prompts(&self) -> Vec<(RequestId, &PlannedBody)> {
        let open = self.plan.open.iter().map(|r| (r.id, &r.body));
        let closed = self.plan.closed.iter().flat_map(|part| {
            let ids = part.first_id.0..;
            ids.map(RequestId).zip(&part.bodies)
        });
        let sessions = self.plan.sessions.iter().filter_map(|session| {
            let complete = session.turns.iter().rev().find(|turn| !turn.history);
            complete.map(|turn| (turn.id, &turn.body))
        });
        let mut seen = BTreeSet::new();
        let mut all: Vec<_> = open.chain(closed).chain(sessions).collect();
        all.retain(|(id, _)| seen.insert(self.metas[id.0 as usize].whole));
        all
    }
}

impl Built {
    pub(super) fn facts(
        &self,
        dataset: &'static str,
        arrival: ArrivalKind,
        drawn: &Drawn,
        options: &PlanOptions,
    ) -> Facts {
        let wholes: BTreeSet<u64> = self.metas.iter().map(|meta| meta.whole).collect();
        let sum = |tokens: fn(&Meta) -> u32| self.metas.iter().map(|m| u64::from(tokens(m))).sum();
        let open = self.plan.open.iter().map(|request| request.offset_ns);
        let first_turns = self.plan.sessions.iter().map(|session| session.offset_ns);
        Facts {
            dataset,
            arrival,
            requests: self.metas.len(),
            sessions: match drawn.talks.len() {
                0 => 0,
                talks => talks.max(self.plan.sessions.len()),
            },
            unique_prompts: wholes.len(),
            rows_read: drawn.rows_read,
            dropped: drawn.dropped.clone(),
            input_tokens: sum(|meta| meta.tokens),
            output_tokens: sum(|meta| meta.max_tokens),
            tokens_exact: self.metas.iter().all(|meta| meta.exact),
            off_length: self.off_length,
            block_size: options.block_size,
            planned_hit_tokens: self.hits.tokens,
            hits: self.hits.knowledge,
            cut_short: false,
            span_ns: open.chain(first_turns).max().unwrap_or(Nanos::ZERO),
            stages: Vec::new(),
            evidence: drawn.evidence.clone(),
            tokenizer: None,
        }
    }
}

/// The same messages with own parts of other names.
fn renamed(messages: &[Message], attempt: u64) -> Vec<Message> {
    let rename = |slice: &Slice| Slice {
        name: match slice.name {
            Name::Own(name) => Name::Own(name + attempt * ANEW),
            shared => shared,
        },
        ..*slice
    };
    let renamed = |message: &Message| Message {
        role: message.role.clone(),
        part: match &message.part {
            Part::Slices(slices) => Part::Slices(slices.iter().map(rename).collect()),
            text => text.clone(),
        },
    };
    messages.iter().map(renamed).collect()
}

/// Makes the last slice longer by `tokens`, or shorter; whether that was possible.
fn lengthen(messages: &mut [Message], tokens: i64) -> bool {
    let slices = messages.iter_mut().rev().find_map(|m| match &mut m.part {
        Part::Slices(slices) => slices.last_mut(),
        Part::Text(_) => None,
    });
    let Some(slice) = slices else {
        return false;
    };
    match u32::try_from(i64::from(slice.tokens) + tokens) {
        Ok(length) if length > 0 => {
            slice.tokens = length;
            true
        }
        _ => false,
    }
}

fn bytes_of(prompt: &PlannedPrompt) -> u64 {
    let bytes = match prompt {
        PlannedPrompt::Ids(ids) => size_of_val(&ids[..]),
        PlannedPrompt::Text(text) => text.len(),
        PlannedPrompt::Chat(turns) => turns.iter().map(|t| t.content.len() + t.role.len()).sum(),
    };
    bytes as u64
}
