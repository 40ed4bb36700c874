//! Carries out the operations of a script on any prefix cache and judges every one of them.

mod step;

use std::collections::BTreeMap;

use pb_contract::{BlockId, Buckets, RequestId, TokenId};

use super::contents::{Contents, Prefix, Prefixes, ScopeKeys};
use super::laws::{self, Observed};
use super::ops::Op;
use crate::cache::PrefixCache;
use crate::{AdapterKey, CacheScope, HashOptions, HashedTokens};

/// A law that a cache broke, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done, nothing to tell.
    Done,
    /// The operation does not apply, for the reason given, and changed nothing.
    Skipped(&'static str),
    /// Tokens that a lookup found.
    Found {
        /// Tokens that need not be computed.
        hit_tokens: usize,
    },
    /// An allocation.
    Allocated {
        /// Tokens that came from the cache (admissions only).
        hit_tokens: usize,
        /// Tokens that the step will compute.
        new_tokens: usize,
        /// The block table.
        blocks: Vec<BlockId>,
        /// Copies on write, `(from, to)`.
        copies: Vec<(BlockId, BlockId)>,
    },
    /// Too few free blocks; nothing changed.
    Refused,
    /// Requests whose steps have computed, in order.
    Committed(Vec<String>),
    /// The table of a fork's child.
    Forked(Vec<BlockId>),
    /// Requests that were preempted along with the one named.
    Restarted(Vec<String>),
    /// Whether the cache was emptied.
    Reset(bool),
    /// Everything that can be seen from outside.
    State {
        /// The three buckets.
        buckets: Buckets,
        /// Blocks in the order in which they would be handed out.
        free_queue: Vec<BlockId>,
        /// Computed tokens and block table of each request.
        requests: BTreeMap<String, (usize, Vec<BlockId>)>,
    },
}

/// Where a request of a script stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It holds no blocks.
    Waiting,
    /// Its step has not computed yet.
    InFlight,
    /// It holds blocks, and has tokens left to compute.
    Unfinished,
    /// All of its tokens are computed.
    Computed,
}

/// A request of the script.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) id: RequestId,
    pub(crate) seq: HashedTokens,
    scope: ScopeKeys,
    /// The number of each of its prefixes: entry `i` is that of the first `i + 1` tokens.
    pub(crate) path: Vec<Prefix>,
    /// Tokens whose data is in the blocks.
    pub(crate) computed: usize,
    /// First position that the step in flight writes; `scheduled` when there is none.
    pub(crate) start: usize,
    /// Tokens that the block table covers; 0 while waiting.
    pub(crate) scheduled: usize,
}

impl Scripted {
    fn in_flight(&self) -> bool {
        self.scheduled > self.computed
    }
}

/// A cache under judgement.
#[derive(Debug)]
pub struct Session {
    pub(crate) cache: Box<dyn PrefixCache>,
    pub(crate) requests: BTreeMap<String, Scripted>,
    /// Requests with a step in flight, in the order of their allocation.
    flight: Vec<String>,
    pub(crate) contents: Contents,
    prefixes: Prefixes,
    /// How digests are made.
    options: HashOptions,
    next_id: u64,
    pub(crate) counted: Counted,
}

/// What the session has seen happen since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Operations carried out, skipped ones included. Also the cache's time, in nanoseconds.
    pub ops: u64,
    /// Allocations that were refused.
    pub refusals: u64,
    /// Blocks that admissions got from the cache.
    pub hit_blocks: u64,
    /// Blocks that were handed out.
    pub allocated_blocks: u64,
    /// Blocks whose cached data was lost.
    pub evicted_blocks: u64,
    /// Copies on write.
    pub copied_blocks: u64,
}

type Outcome = Result<Answer, Broken>;

/// `Err(Broken)` unless the law holds.
macro_rules! law {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err(Broken(format!($($sentence)+)));
        }
    };
}
pub(crate) use law;

impl Session {
    /// Starts with an empty cache, which must be told to record evictions.
    pub fn new(cache: Box<dyn PrefixCache>) -> Self {
        let options = HashOptions {
            kind: cache.config().hash.into(),
            fault: cache.config().fault,
        };
        Session::with_options(cache, options)
    }

    /// As [`Session::new`], with digests other than those that the cache is configured for.
    pub fn with_options(cache: Box<dyn PrefixCache>, options: HashOptions) -> Self {
        let config = *cache.config();
        Session {
            cache,
            requests: BTreeMap::new(),
            flight: Vec::new(),
            contents: Contents::new(config.block_size, config.num_blocks),
            prefixes: Prefixes::default(),
            options,
            next_id: 0,
            counted: Counted::default(),
        }
    }

    /// The cache.
    pub fn cache(&self) -> &dyn PrefixCache {
        &*self.cache
    }

    /// What has happened so far.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Tokens that a request has computed; 0 when there is none of that name.
    pub fn computed(&self, name: &str) -> usize {
        self.requests
            .get(name)
            .map_or(0, |request| request.computed)
    }

    /// Where a request stands; none when there is none of that name.
    pub fn stage(&self, name: &str) -> Option<Stage> {
        let request = self.requests.get(name)?;
        Some(match request.scheduled {
            0 => Stage::Waiting,
            _ if request.in_flight() => Stage::InFlight,
            scheduled if scheduled < request.seq.len() => Stage::Unfinished,
            _ => Stage::Computed,
        })
    }

    /// Carries out one operation and verifies every law.
    ///
    /// # Errors
    /// The law that does not hold. The session is of no use after that.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.counted.ops += 1;
        self.cache.set_now(self.counted.ops);
        let answer = match op {
            Op::Add {
                id,
                tokens,
                adapter,
                salt,
                identity,
            } => {
                let scope = [adapter.clone(), salt.clone(), identity.clone()];
                self.add(id, tokens, scope)
            }
            Op::Append { id, tokens } => self.append(id, tokens),
            Op::Lookup { id } => self.lookup(id),
            Op::Allocate { id, tokens, hit } => self.allocate(id, *tokens, *hit),
            Op::Commit { id: Some(id) } => self.commit_one(id),
            Op::Commit { id: None } => self.commit_all(),
            Op::Fork { id, child, tokens } => self.fork(id, child, *tokens),
            Op::Finish { id } => self.finish(id),
            Op::Free { id } => self.free(id),
            Op::Fail => self.fail(),
            Op::Reset => self.reset(),
            Op::State => Ok(self.state()),
        }?;
        laws::check(self)?;
        Ok(answer)
    }

    fn add(&mut self, name: &str, tokens: &[TokenId], scope: ScopeKeys) -> Outcome {
        if tokens.is_empty() {
            return Ok(Answer::Skipped("a prompt has at least one token"));
        }
        if self.requests.get(name).is_some_and(|r| r.scheduled > 0) {
            return Ok(Answer::Skipped("a request of this name holds blocks"));
        }
        let request = self.request(tokens, scope);
        self.requests.insert(name.to_owned(), request);
        Ok(Answer::Done)
    }

    /// A waiting request under a fresh number.
    fn request(&mut self, tokens: &[TokenId], scope: ScopeKeys) -> Scripted {
        let [adapter, salt, identity] = &scope;
        let adapter = adapter.clone().map(|name| AdapterKey {
            digest: *blake3::hash(name.as_bytes()).as_bytes(),
            name,
        });
        let identity = identity.as_deref().map(|i| blake3::hash(i.as_bytes()));
        let keys = CacheScope {
            identity: identity.map_or([0; 32], |digest| *digest.as_bytes()),
            adapter,
            salt: salt.clone(),
        };
        let block_size = self.cache.config().block_size;
        let seq = HashedTokens::with_options(block_size, &keys, self.options);
        let mut request = Scripted {
            id: RequestId(self.next_id),
            seq,
            scope,
            path: Vec::new(),
            computed: 0,
            start: 0,
            scheduled: 0,
        };
        self.next_id += 1;
        extend(&mut request, &mut self.prefixes, tokens);
        request
    }

    fn append(&mut self, name: &str, tokens: &[TokenId]) -> Outcome {
        let Some(request) = self.requests.get_mut(name) else {
            return Ok(Answer::Skipped("no such request"));
        };
        if request.in_flight() {
            return Ok(Answer::Skipped("a step is in flight"));
        }
        extend(request, &mut self.prefixes, tokens);
        Ok(Answer::Done)
    }

    fn fork(&mut self, name: &str, child: &str, tokens: usize) -> Outcome {
        if self.requests.get(child).is_some_and(|r| r.scheduled > 0) {
            return Ok(Answer::Skipped(
                "a request of the child's name holds blocks",
            ));
        }
        let Some(parent) = self.requests.get(name) else {
            return Ok(Answer::Skipped("no such request"));
        };
        if parent.in_flight() || tokens == 0 || tokens > parent.computed {
            return Ok(Answer::Skipped("the parent has not computed these tokens"));
        }
        let (parent_id, scope) = (parent.id, parent.scope.clone());
        let shared = parent.seq.tokens()[..tokens].to_vec();
        let free_blocks = self.cache.free_blocks();
        let mut request = self.request(&shared, scope);
        (request.computed, request.start, request.scheduled) = (tokens, tokens, tokens);
        self.cache.fork(parent_id, request.id, tokens);
        let table = self.cache.block_table(request.id).to_vec();
        law!(
            self.cache.block_table(parent_id).starts_with(&table),
            "the fork {child} of {name} has a table of its own: {table:?}"
        );
        law!(
            self.cache.free_blocks() == free_blocks,
            "the fork {child} took blocks"
        );
        self.requests.insert(child.to_owned(), request);
        Ok(Answer::Forked(table))
    }

    fn finish(&mut self, name: &str) -> Outcome {
        let Some(request) = self.requests.get(name) else {
            return Ok(Answer::Skipped("no such request"));
        };
        if request.in_flight() {
            return Ok(Answer::Skipped("a step is in flight"));
        }
        self.cache.finish(request.id, &request.seq);
        law!(
            self.cache.block_table(request.id).is_empty(),
            "{name} is done and holds blocks"
        );
        self.requests.remove(name);
        Ok(Answer::Done)
    }

    fn free(&mut self, name: &str) -> Outcome {
        if !self.requests.contains_key(name) {
            return Ok(Answer::Skipped("no such request"));
        }
        let mut stopped = vec![name.to_owned()];
        if let Some(at) = self.flight.iter().position(|other| other == name) {
            // Only later requests of the step can rely on this one, and others on them.
            for later in self.flight.iter().skip(at + 1) {
                if stopped.iter().any(|earlier| self.relies(later, earlier)) {
                    stopped.push(later.clone());
                }
            }
        }
        stopped.iter().rev().for_each(|name| self.preempt(name));
        stopped.remove(0);
        Ok(Answer::Restarted(stopped))
    }

    /// Whether `later` holds a block that the step of `earlier` writes.
    fn relies(&self, later: &str, earlier: &str) -> bool {
        let block_size = self.cache.config().block_size;
        let (later, earlier) = (&self.requests[later], &self.requests[earlier]);
        let written = &self.cache.block_table(earlier.id)[earlier.start / block_size..];
        let held = self.cache.block_table(later.id);
        earlier.in_flight() && written.iter().any(|block| held.contains(block))
    }

    fn preempt(&mut self, name: &str) {
        // OK because callers name known requests.
        let request = self.requests.get_mut(name).expect("a known request");
        let table = self.cache.block_table(request.id);
        let range = request.start..request.scheduled;
        self.contents.withdraw(table, range);
        self.cache.free(request.id);
        (request.computed, request.start, request.scheduled) = (0, 0, 0);
        self.flight.retain(|other| other != name);
    }

    fn fail(&mut self) -> Outcome {
        let failed = self.flight.clone();
        for name in &failed {
            let request = &self.requests[name];
            let doubtful = self.cache.forget_uncomputed(request.id, request.computed);
            for block in doubtful {
                let is_failed = |id: &RequestId| failed.iter().any(|n| self.requests[n].id == *id);
                law!(
                    self.cache.holders(block).iter().all(is_failed),
                    "block {} was never computed, but a request outside the step holds it",
                    block.0
                );
            }
        }
        failed.iter().rev().for_each(|name| self.preempt(name));
        Ok(Answer::Restarted(failed))
    }

    fn reset(&mut self) -> Outcome {
        let before = Observed::of(self);
        let idle = self.cache.live_requests() == 0;
        let done = self.cache.reset();
        law!(
            done == idle,
            "reset = {done} with {} requests",
            before.live_requests()
        );
        if !done {
            law!(
                Observed::of(self) == before,
                "a refused reset changed the cache"
            );
            return Ok(Answer::Reset(false));
        }
        self.contents.lose_all();
        for (name, request) in &self.requests {
            let hit = self.cache.lookup(&request.seq);
            law!(hit.blocks.is_empty(), "{name} hits after a reset");
        }
        Ok(Answer::Reset(true))
    }

    fn state(&self) -> Answer {
        let table = |r: &Scripted| (r.computed, self.cache.block_table(r.id).to_vec());
        let requests = self.requests.iter();
        Answer::State {
            buckets: self.cache.buckets(),
            free_queue: self.cache.free_queue(),
            requests: requests.map(|(name, r)| (name.clone(), table(r))).collect(),
        }
    }
}

/// Appends tokens to a request and numbers the prefixes that they end.
fn extend(request: &mut Scripted, prefixes: &mut Prefixes, tokens: &[TokenId]) {
    let known = request.seq.hashes().len();
    request.seq.extend(tokens);
    let mut prefix = match request.path.last() {
        Some(&last) => last,
        None => prefixes.root(&request.scope),
    };
    for &token in tokens {
        prefix = prefixes.child(prefix, token);
        request.path.push(prefix);
    }
    let block_size = request.seq.block_size();
    let digests = request.seq.hashes().iter().enumerate().skip(known);
    digests.for_each(|(index, &digest)| {
        prefixes.set_digest(request.path[(index + 1) * block_size - 1], digest);
    });
}
