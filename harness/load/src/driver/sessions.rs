//! Turns that wait for the turn before them and for the time that their user thinks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use pb_contract::Nanos;
use pb_contract::plan::{ChatTurn, PlannedPrompt, Session, Turn};

use super::SendOrder;

/// The sessions of a run.
#[derive(Debug)]
pub(super) struct Sessions {
    list: Vec<Talk>,
    /// When which session's next turn is due; none of a session whose turn is running.
    due: BTreeSet<(Nanos, usize)>,
    /// Turns that will never be sent because the answer that they need does not exist.
    lost: Vec<SendOrder>,
}

/// One session.
#[derive(Debug)]
struct Talk {
    /// Turns not sent yet.
    turns: VecDeque<Turn>,
    /// All messages of the turn that is running, kept when the next one needs them.
    said: Vec<ChatTurn>,
}

impl Sessions {
    pub(super) fn new(sessions: Vec<Session>, start: Nanos) -> Sessions {
        let due = sessions.iter().enumerate();
        Sessions {
            due: due
                .map(|(i, session)| (start + session.offset_ns, i))
                .collect(),
            list: sessions
                .into_iter()
                .map(|session| Talk {
                    turns: session.turns.into(),
                    said: Vec::new(),
                })
                .collect(),
            lost: Vec::new(),
        }
    }

    /// Moves all first turns.
    pub(super) fn start_at(&mut self, start: Nanos) {
        let due = std::mem::take(&mut self.due).into_iter();
        self.due = due.map(|(at, index)| (at + start, index)).collect();
    }

    /// The next instant at which a turn is due.
    pub(super) fn next_due(&self, horizon: Nanos) -> Option<Nanos> {
        let first = self.due.first().map(|&(at, _)| at);
        first.filter(|&at| at <= horizon)
    }

    /// Takes a turn that is due at `now`, with the number of its session. A turn that became due
    /// after the horizon starts no more.
    pub(super) fn take_due(&mut self, now: Nanos, horizon: Nanos) -> Option<(SendOrder, usize)> {
        let &(at, index) = self.due.first()?;
        if at > now.min(horizon) {
            return None;
        }
        self.due.pop_first();
        let talk = &mut self.list[index];
        let turn = talk.turns.pop_front()?;
        Some((talk.order(turn, at), index))
    }

    /// A turn of session `index` has ended at `at`, with this answer when it succeeded.
    pub(super) fn ended(&mut self, index: usize, at: Nanos, answer: Option<String>) {
        let talk = &mut self.list[index];
        let Some(next) = talk.turns.front() else {
            return;
        };
        if !next.history {
            talk.said.clear();
        } else if let Some(content) = answer {
            let role = "assistant".to_owned();
            talk.said.push(ChatTurn { role, content });
        } else {
            talk.said.clear();
            self.lost.extend(talk.lose_conversation(at));
        }
        if let Some(next) = talk.turns.front() {
            self.due.insert((at + next.think_ns, index));
        }
    }

    /// Takes the turns that will never be sent.
    pub(super) fn take_lost(&mut self) -> Vec<SendOrder> {
        std::mem::take(&mut self.lost)
    }
}

impl Talk {
    /// The turns that needed the answer that failed; a conversation that begins later needs none.
    fn lose_conversation(&mut self, at: Nanos) -> Vec<SendOrder> {
        let begins = |turn: &Turn| !turn.history;
        let next = self.turns.iter().position(begins);
        let lost = self.turns.drain(..next.unwrap_or(self.turns.len()));
        lost.map(|turn| SendOrder {
            id: turn.id,
            intended: at,
            free: at,
            body: Arc::new(turn.body),
            wants_answer: false,
        })
        .collect()
    }

    fn order(&mut self, turn: Turn, intended: Nanos) -> SendOrder {
        let mut body = turn.body;
        let wants_answer = self.turns.front().is_some_and(|next| next.history);
        if let PlannedPrompt::Chat(messages) = &mut body.prompt {
            if turn.history {
                messages.splice(0..0, std::mem::take(&mut self.said));
            }
            if wants_answer {
                self.said.clone_from(messages);
            }
        }
        SendOrder {
            id: turn.id,
            intended,
            free: intended,
            body: Arc::new(body),
            wants_answer,
        }
    }
}
