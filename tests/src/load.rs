//! Seeded loads of requests that arrive by step number, and serving them in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use pb_contract::{
    BlockId, Clock, EngineEvent, EngineRequest, Fault, Nanos, RequestId, SamplingParams, Stream,
    TokenId, VirtualClock,
};
use pb_core::{Chunk, Engine, Executor, StepOutput};
use pb_model::forward::{ForwardTiming, LogitSink};

use crate::engine::greedy;

/// A request and the step before which it is added.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Steps that have passed, those without work included.
    pub step: usize,
    /// The request.
    pub request: EngineRequest,
}

/// What a load looks like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests.
    pub requests: usize,
    /// Prompt tokens are below this.
    pub vocab: usize,
    /// Longest prompt.
    pub max_prompt: usize,
    /// Longest output.
    pub max_tokens: u32,
    /// A request arrives so many steps after the one before it at most.
    pub max_gap: usize,
    /// Names of adapters that requests may use.
    pub adapters: &'static [&'static str],
}

/// Draws a load. Prompts begin with one of a few common texts, have one behind a start of their
/// own, go on from an earlier prompt, repeat one, or are like no other; some are sampled twice
/// (`n = 2`); there are salts, adapters, priorities, and greedy, seeded and unseeded sampling.
pub fn seeded(shape: &Shape, seed: u64) -> Vec<Arrival> {
    let mut draw = Draw {
        shape,
        stream: Stream::new(seed, "load"),
        texts: Vec::new(),
    };
    for length in [12, 32, 41, 64, 77] {
        let text = draw.tokens(length.min(shape.max_prompt - 1));
        draw.texts.push(text);
    }
    let mut all: Vec<Arrival> = Vec::new();
    let mut step = 0;
    while all.len() < shape.requests {
        step += draw.below(shape.max_gap + 1);
        let request = draw.request(all.len() as u64, &all);
        all.push(Arrival { step, request });
        // A second sequence of the same prompt, now and then.
        if all.len() < shape.requests && draw.below(7) == 0 {
            let twin = draw.twin(&all[all.len() - 1].request);
            let request = twin;
            all.push(Arrival { step, request });
        }
    }
    all
}

struct Draw<'a> {
    shape: &'a Shape,
    stream: Stream,
    texts: Vec<Vec<TokenId>>,
}

impl Draw<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.stream.below(n as u64) as usize
    }

    fn tokens(&mut self, count: usize) -> Vec<TokenId> {
        let vocab = self.shape.vocab;
        (0..count).map(|_| self.below(vocab) as TokenId).collect()
    }

    fn request(&mut self, id: u64, before: &[Arrival]) -> EngineRequest {
        let limit = self.shape.max_prompt;
        let mut request = greedy(
            id,
            &[],
            1 + self.below(self.shape.max_tokens as usize) as u32,
        );
        self.scope(&mut request);
        let kind = self.below(10);
        let earlier = match before.len() {
            0 => None,
            n => Some(&before[n - 1 - self.below(n.min(12))].request),
        };
        if let Some(earlier) = earlier.filter(|_| kind < 4) {
            request.prompt.clone_from(&earlier.prompt);
            if self.below(5) > 0 {
                request.adapter.clone_from(&earlier.adapter);
                request.cache_salt.clone_from(&earlier.cache_salt);
            }
            if kind < 2 {
                let more = 1 + self.below(20);
                let more = self.tokens(more);
                request.prompt.extend(more);
            }
        } else if kind < 8 {
            let text = self.below(self.texts.len());
            let keep = 1 + self.below(self.texts[text].len());
            request.prompt.extend_from_slice(&self.texts[text][..keep]);
            let own = self.below(30);
            let own = self.tokens(own);
            request.prompt.extend(own);
        } else if kind < 9 {
            // A common text behind another start: the same blocks under other parents.
            request.prompt = self.tokens(8);
            let text = self.below(self.texts.len());
            request.prompt.extend_from_slice(&self.texts[text]);
        } else {
            let length = 1 + self.below(limit);
            request.prompt = self.tokens(length);
        }
        request.prompt.truncate(limit);
        self.sampling(&mut request.sampling, id);
        request.priority = self.below(4) as i64;
        request
    }

    fn scope(&mut self, request: &mut EngineRequest) {
        let salts = [None, None, None, Some("alpha"), Some("beta")];
        request.cache_salt = salts[self.below(salts.len())].map(str::to_owned);
        let adapters = self.shape.adapters;
        if !adapters.is_empty() && self.below(2) == 0 {
            request.adapter = Some(adapters[self.below(adapters.len())].to_owned());
        }
    }

    fn sampling(&mut self, sampling: &mut SamplingParams, id: u64) {
        sampling.ignore_eos = self.below(3) > 0;
        let kind = self.below(5);
        if kind < 2 {
            return;
        }
        sampling.temperature = [0.7, 1.0, 1.3][self.below(3)];
        // Without a seed of its own a request draws from the engine's.
        sampling.seed = (kind < 4).then_some(1000 + id);
        sampling.top_k = [0, 0, 20][self.below(3)];
        sampling.top_p = [1.0, 1.0, 0.9][self.below(3)];
    }

    fn twin(&mut self, of: &EngineRequest) -> EngineRequest {
        let id = of.id.0 + 1;
        let mut twin = EngineRequest {
            id: RequestId(id),
            fork_of: Some(of.id),
            ..of.clone()
        };
        twin.sampling.temperature = 1.0;
        twin.sampling.seed = Some(1000 + id);
        twin.sampling.max_tokens = 1 + self.below(self.shape.max_tokens as usize) as u32;
        twin
    }
}

/// An executor whose steps take virtual time: 1 ms and 0.2 ms for each token, so that a policy
/// that learns from durations has something to learn from.
pub struct Paced {
    inner: Box<dyn Executor>,
    clock: Arc<VirtualClock>,
}

impl Paced {
    /// Over an executor that takes none; `clock` is the one that the engine is stepped with.
    pub fn new(inner: Box<dyn Executor>, clock: Arc<VirtualClock>) -> Self {
        Paced { inner, clock }
    }
}

impl Executor for Paced {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let taken = Nanos(1_000_000 + 200_000 * tokens as u64);
        self.clock.advance_to(self.clock.now() + taken);
        self.inner.execute(chunks, clock, sink)
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.inner.resize_kv(block_size, num_blocks);
    }

    fn set_fault(&mut self, fault: Fault) -> Result<(), String> {
        self.inner.set_fault(fault)
    }

    fn kv_bytes(&self) -> usize {
        self.inner.kv_bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.inner.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        self.inner.write_block(block, image)
    }
}

/// Generated tokens by request.
pub type Tokens = BTreeMap<RequestId, Vec<TokenId>>;

/// A load on its way through an engine.
pub struct Service<'a> {
    arrivals: std::iter::Peekable<std::slice::Iter<'a, Arrival>>,
    /// Steps that have passed, those without work included.
    pub at: usize,
    /// Steps that the engine made.
    pub steps: usize,
    /// What was generated so far.
    pub tokens: Tokens,
    /// The step, as counted by `at`, in which a request ended.
    pub ended: BTreeMap<RequestId, usize>,
}

impl<'a> Service<'a> {
    /// A load whose first request has not been added yet. `arrivals` are in order of their steps.
    pub fn new(arrivals: &'a [Arrival]) -> Self {
        Service {
            arrivals: arrivals.iter().peekable(),
            at: 0,
            steps: 0,
            tokens: Tokens::new(),
            ended: BTreeMap::new(),
        }
    }

    /// Whether everything has arrived and ended.
    pub fn is_done(&mut self, engine: &Engine) -> bool {
        self.arrivals.peek().is_none() && !engine.has_work()
    }

    /// Adds what arrives before the next step.
    ///
    /// # Errors
    /// A request is refused.
    pub fn arrive(&mut self, engine: &mut Engine) -> Result<()> {
        while let Some(arrival) = self.arrivals.next_if(|a| a.step <= self.at) {
            let id = arrival.request.id;
            engine
                .add(arrival.request.clone())
                .with_context(|| format!("request {id}"))?;
        }
        Ok(())
    }

    /// Makes one step where there is work, and checks every conservation law.
    ///
    /// # Errors
    /// A failed step or a broken law.
    pub fn step(&mut self, engine: &mut Engine, clock: &dyn Clock) -> Result<Option<StepOutput>> {
        self.at += 1;
        if !engine.has_work() {
            return Ok(None);
        }
        let step = engine.step(clock)?;
        self.steps += 1;
        engine
            .check()
            .map_err(|law| anyhow!("after step {}: {law}", self.at))?;
        for event in &step.events {
            match event {
                EngineEvent::Token { id, token, .. } => {
                    self.tokens.entry(*id).or_default().push(*token);
                }
                EngineEvent::Finished { id, .. } => {
                    self.ended.insert(*id, self.at);
                }
                EngineEvent::Admitted { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
        Ok(Some(step))
    }

    /// Serves what is left.
    ///
    /// # Errors
    /// As [`Service::step`], or no end within `limit` steps.
    pub fn finish(&mut self, engine: &mut Engine, clock: &dyn Clock, limit: usize) -> Result<()> {
        while !self.is_done(engine) {
            ensure!(self.at < limit, "not idle after {limit} steps");
            self.arrive(engine)?;
            self.step(engine, clock)?;
        }
        Ok(())
    }
}

/// What each request generates when it is alone in `engine`, one after the other. Forks become
/// requests of their own.
///
/// # Errors
/// A request is refused, or does not end within as many steps as it has tokens.
pub fn alone(engine: &mut Engine, arrivals: &[Arrival]) -> Result<Tokens> {
    let mut tokens = Tokens::new();
    for arrival in arrivals {
        let mut request = arrival.request.clone();
        request.fork_of = None;
        let limit = 1 + request.prompt.len() + request.sampling.max_tokens as usize;
        let one = [Arrival { step: 0, request }];
        let mut service = Service::new(&one);
        service.finish(engine, &VirtualClock::new(), limit)?;
        tokens.extend(service.tokens);
    }
    Ok(tokens)
}

/// Checks that nothing is left: no request, no reference to a block, no swapped block.
///
/// # Errors
/// What is left.
pub fn assert_idle(engine: &Engine) -> Result<()> {
    let c = engine.counters();
    let left = (
        c.running,
        c.waiting,
        c.swapped_blocks,
        engine.buckets().active,
    );
    ensure!(
        left == (0, 0, 0, 0),
        "left over: (running, waiting, swapped blocks, active blocks) = {left:?}"
    );
    let (total, usable) = (engine.buckets().total(), engine.kv().usable_blocks());
    ensure!(
        total == usable,
        "{total} blocks in the buckets, {usable} in the pool"
    );
    engine.check().map_err(|law| anyhow!("idle: {law}"))
}

/// Differences between two runs, a line for each request.
pub fn differences(want: &Tokens, got: &Tokens) -> Vec<String> {
    let none = Vec::new();
    let ids: std::collections::BTreeSet<_> = want.keys().chain(got.keys()).collect();
    ids.into_iter()
        .filter_map(|id| {
            let (want, got) = (want.get(id).unwrap_or(&none), got.get(id).unwrap_or(&none));
            let at = want.iter().zip(got).take_while(|(a, b)| a == b).count();
            (want != got).then(|| {
                format!(
                    "request {id}: from token {at} of {} on: {:?}, alone {:?}",
                    want.len(),
                    &got[at..],
                    &want[at..]
                )
            })
        })
        .collect()
}
