//! Random operations that an engine could make, on prompts that share prefixes.

use pb_contract::{Stream, TokenId};
use pb_kv::script::{Op, Session, Stage};

/// Names of requests: few, so that most operations meet a request in a state that they fit.
const NAMES: u64 = 9;

/// Draws operations one by one. What is drawn depends on the seed and on the stages of requests,
/// so the operations of one seed differ from cache to cache.
pub(crate) struct Generator {
    stream: Stream,
    /// Beginnings that prompts share.
    beginnings: Vec<Vec<TokenId>>,
    block_size: usize,
    /// Every step computes at once, so that caches that name blocks when they are scheduled and
    /// caches that name them when they are computed must agree.
    lock_step: bool,
    allocated: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, block_size: usize, lock_step: bool) -> Self {
        let mut stream = Stream::new(seed, "kv-random-ops");
        let mut token = || stream.below(100) as TokenId;
        let mut beginning = || (0..5 * block_size).map(|_| token()).collect();
        let beginnings = (0..3).map(|_| beginning()).collect();
        Generator {
            stream,
            beginnings,
            block_size,
            lock_step,
            allocated: false,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.stream.below(n as u64) as usize
    }

    /// The name of a request, if a few tries find one, of a stage that `fits`.
    fn name(&mut self, session: &Session, fits: impl Fn(Option<Stage>) -> bool) -> String {
        let mut name = String::new();
        for _ in 0..8 {
            name = format!("r{}", self.stream.below(NAMES));
            if fits(session.stage(&name)) {
                break;
            }
        }
        name
    }

    /// A beginning cut anywhere (block boundaries favoured), then a few tokens of two kinds. The
    /// first beginning is the most common.
    fn prompt(&mut self) -> Vec<TokenId> {
        let which = self.below(5).saturating_sub(2);
        let mut cut = self.below(5 * self.block_size + 1);
        if self.below(2) == 0 {
            cut -= cut % self.block_size;
        }
        let mut tokens = self.beginnings[which][..cut].to_vec();
        let rest = self.below(self.block_size + 2) + usize::from(cut == 0);
        tokens.extend((0..rest).map(|_| 200 + self.stream.below(2) as TokenId));
        tokens
    }

    fn scope(&mut self) -> [Option<String>; 3] {
        let key = |wanted, at: usize| (wanted == at).then(|| "x".to_owned());
        let which = self.below(8);
        [key(which, 1), key(which, 2), key(which, 3)]
    }

    /// A fork, at the parent's end more often than inside.
    fn fork(&mut self, session: &Session) -> Op {
        let idle = |stage| matches!(stage, Some(Stage::Unfinished | Stage::Computed));
        let id = self.name(session, idle);
        let computed = session.computed(&id).max(1);
        let tokens = match self.below(3) {
            0 => 1 + self.below(computed),
            _ => computed,
        };
        let child = self.name(session, |stage| {
            matches!(stage, None | Some(Stage::Waiting))
        });
        Op::Fork { id, child, tokens }
    }

    /// The next operation.
    pub(crate) fn next(&mut self, session: &Session) -> Op {
        if self.lock_step && std::mem::take(&mut self.allocated) {
            return Op::Commit { id: None };
        }
        let waiting = |stage| stage == Some(Stage::Waiting);
        let ready = |stage| matches!(stage, Some(Stage::Waiting | Stage::Unfinished));
        let idle = |stage| matches!(stage, Some(Stage::Unfinished | Stage::Computed));
        let computed = |stage| stage == Some(Stage::Computed);
        let running = |stage| !matches!(stage, None | Some(Stage::Waiting));
        match self.below(100) {
            0..12 => {
                let id = self.name(session, |stage| stage.is_none() || waiting(stage));
                let tokens = self.prompt();
                let [adapter, salt, identity] = self.scope();
                Op::Add {
                    id,
                    tokens,
                    adapter,
                    salt,
                    identity,
                }
            }
            12..18 => Op::Lookup {
                id: self.name(session, waiting),
            },
            18..48 => {
                self.allocated = true;
                Op::Allocate {
                    id: self.name(session, ready),
                    tokens: 1 + self.below(3 * self.block_size),
                    hit: self.below(8) > 0,
                }
            }
            48..62 => Op::Commit { id: None },
            62..68 => Op::Commit {
                id: Some(self.name(session, |stage| stage == Some(Stage::InFlight))),
            },
            68..82 => {
                let id = self.name(session, computed);
                let count = 1 + self.below(2);
                let mut token = || 200 + self.stream.below(2) as TokenId;
                let tokens = (0..count).map(|_| token()).collect();
                Op::Append { id, tokens }
            }
            82..88 => self.fork(session),
            88..93 => Op::Finish {
                id: self.name(session, idle),
            },
            93..98 => Op::Free {
                id: self.name(session, running),
            },
            98 => Op::Fail,
            _ => Op::Reset,
        }
    }
}
