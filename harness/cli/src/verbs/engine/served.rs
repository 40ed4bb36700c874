//! The reference engine as the server of a simulated load, in virtual time.
//!
//! The load driver's simulation says what time it is; the engine has a clock of its own, which
//! stands at the end of its last step. A step begins as soon as the one before has ended and there
//! is work, with what had arrived by then; a request that arrives at the very instant at which a
//! step begins waits for the next one, as it would behind a socket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use pb_contract::plan::PlannedBody;
use pb_contract::wire::{PromptTokensDetails, Usage};
use pb_contract::{
    Clock, EngineConfig, EngineEvent, EngineRequest, FailKind, Nanos, RequestId, SamplingParams,
    TokenId, VirtualClock,
};
use pb_core::{Engine, EngineSpec, Executor};
use pb_load::shell_sim::{ServerEvent, SimServer};

use super::VOCAB;

/// An engine that serves requests in virtual time.
pub(crate) struct EngineServer {
    engine: Engine,
    clock: Arc<VirtualClock>,
    /// Counts of the requests that are being served.
    open: BTreeMap<RequestId, Usage>,
    /// What is still to be told, in order of time.
    told: VecDeque<(Nanos, ServerEvent)>,
    /// Why the engine cannot go on.
    broken: Option<String>,
}

impl EngineServer {
    /// An idle engine. `executor` takes the time of its steps on `clock`, which no one else moves.
    ///
    /// # Errors
    /// A configuration that the engine refuses.
    pub(crate) fn new(
        config: EngineConfig,
        executor: Box<dyn Executor>,
        clock: Arc<VirtualClock>,
    ) -> Result<EngineServer> {
        let spec = EngineSpec::simulated(VOCAB, usize::MAX);
        let engine = Engine::new(config, spec, executor).map_err(anyhow::Error::msg)?;
        Ok(EngineServer {
            engine,
            clock,
            open: BTreeMap::new(),
            told: VecDeque::new(),
            broken: None,
        })
    }

    /// Looks at the engine when the load has ended.
    ///
    /// # Errors
    /// It could not go on, or a law of its block accounting is broken.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(why) = &self.broken {
            bail!("{why}");
        }
        let laws = self.engine.check();
        laws.map_err(|law| anyhow!("broken law: {law}"))
    }

    fn step(&mut self) {
        let before = self.clock.now();
        let output = match self.engine.step(&*self.clock) {
            Ok(output) => output,
            Err(error) => {
                self.broken = Some(error.to_string());
                return;
            }
        };
        let at = self.clock.now();
        for event in output.events {
            self.tell(event, at);
        }
        if output.scheduled.is_empty() && before == at && self.engine.has_work() {
            self.broken = Some(format!(
                "the engine has work and schedules nothing at {} ns: a deadlock",
                at.0
            ));
        }
    }

    fn tell(&mut self, event: EngineEvent, at: Nanos) {
        match event {
            EngineEvent::Admitted { id, cached_tokens } => {
                if let Some(usage) = self.open.get_mut(&id) {
                    usage.prompt_tokens_details = cached(cached_tokens as u32);
                }
            }
            EngineEvent::Token { id, .. } => {
                if let Some(usage) = self.open.get_mut(&id) {
                    usage.completion_tokens += 1;
                    usage.total_tokens += 1;
                }
                let event = ServerEvent::Tokens { id, at, tokens: 1 };
                self.told.push_back((at, event));
            }
            EngineEvent::Finished { id, .. } => {
                let event = ServerEvent::Finished {
                    id,
                    at,
                    usage: self.open.remove(&id).unwrap_or_default(),
                    failure: None,
                };
                self.told.push_back((at, event));
            }
            EngineEvent::PromptLogprobs { .. } => {}
        }
    }
}

impl SimServer for EngineServer {
    fn submit(&mut self, now: Nanos, id: RequestId, body: &PlannedBody) {
        // An idle engine's clock stands where its last work ended.
        if self.clock.now() < now {
            self.clock.advance_to(now);
        }
        let prompt = body.prompt.ids().unwrap_or_default().to_vec();
        let tokens = prompt.len() as u32;
        match self
            .engine
            .add(request(id, prompt, body.max_tokens, now, &body.cache_salt))
        {
            Ok(()) => {
                let usage = Usage {
                    prompt_tokens: tokens,
                    completion_tokens: 0,
                    total_tokens: tokens,
                    prompt_tokens_details: cached(0),
                };
                self.open.insert(id, usage);
            }
            Err(refusal) => {
                let event = ServerEvent::Finished {
                    id,
                    at: now,
                    usage: Usage::default(),
                    failure: Some((FailKind::HttpStatus, refusal.to_string())),
                };
                let place = self.told.partition_point(|(at, _)| *at <= now);
                self.told.insert(place, (now, event));
            }
        }
    }

    fn abort(&mut self, _now: Nanos, id: RequestId) {
        self.engine.abort(id);
        self.open.remove(&id);
    }

    fn next_event(&self) -> Option<Nanos> {
        let works = self.engine.has_work() && self.broken.is_none();
        match self.told.front() {
            Some((at, _)) => Some(*at),
            None => works.then(|| self.clock.now()),
        }
    }

    fn advance(&mut self, now: Nanos, out: &mut Vec<ServerEvent>) {
        loop {
            while self.told.front().is_some_and(|(at, _)| *at <= now) {
                out.extend(self.told.pop_front().map(|(_, event)| event));
            }
            let stands = !self.engine.has_work() || self.broken.is_some();
            if stands || !self.told.is_empty() || self.clock.now() > now {
                return;
            }
            self.step();
        }
    }
}

/// A request of controlled length, greedy.
pub(super) fn request(
    id: RequestId,
    prompt: Vec<TokenId>,
    max_tokens: u32,
    arrival: Nanos,
    cache_salt: &Option<String>,
) -> EngineRequest {
    EngineRequest {
        id,
        prompt,
        sampling: SamplingParams {
            temperature: 0.0,
            ignore_eos: true,
            max_tokens,
            ..SamplingParams::default()
        },
        cache_salt: cache_salt.clone(),
        adapter: None,
        priority: 0,
        fork_of: None,
        arrival,
    }
}

fn cached(tokens: u32) -> Option<PromptTokensDetails> {
    Some(PromptTokensDetails {
        cached_tokens: Some(tokens),
    })
}

#[cfg(test)]
mod tests {
    use pb_contract::plan::{OpenRequest, Plan};
    use pb_core::{CostModel, SimExecutor};
    use pb_load::shell_sim::{SimOptions, run_sim};
    use serde_json::json;

    use super::*;

    /// A step costs 10 ms and nothing else, so that every instant follows by hand.
    fn server() -> EngineServer {
        let cost = "source = \"by hand\"\n[prefill]\nstep_ns = 1e7\ntoken_ns = 0\npair_ns = 0\n\
                    [decode]\nstep_ns = 1e7\ncontext_token_ns = 0\nsequence_ns = 0\n";
        let keys = json!({"preset": "vllm-v1", "num_blocks": 100, "max_batched_tokens": 64,
                          "max_model_len": 512});
        let clock = Arc::new(VirtualClock::new());
        let cost = CostModel::from_toml(cost).unwrap();
        let executor = SimExecutor::new(cost, Arc::clone(&clock), VOCAB);
        let config = pb_replay::engine_config(&keys).unwrap();
        EngineServer::new(config, Box::new(executor), clock).unwrap()
    }

    fn open(id: u64, at_ms: u64, tokens: usize, max_tokens: u32) -> OpenRequest {
        let ids = (0..tokens as TokenId).map(|t| 1 + t).collect();
        OpenRequest {
            id: RequestId(id),
            offset_ns: Nanos::from_millis(at_ms),
            body: PlannedBody::of_ids("x", ids, max_tokens),
        }
    }

    /// By hand: request 0 (100 tokens under a budget of 64) computes in steps that end at 10 and
    /// 20 ms and decodes at 30 and 40. Request 1 comes at 25 ms, within the step that ends at 30,
    /// finds 32 of its 40 tokens (the last block is never found whole) and has its token at 40.
    /// Request 2 comes when all is idle; its 600 tokens are more than the model takes.
    #[test]
    fn steps_follow_one_another_and_arrivals_wait_for_the_next() {
        let plan = Plan {
            open: vec![open(0, 0, 100, 3), open(1, 25, 40, 1), open(2, 90, 600, 1)],
            horizon_ns: Nanos::from_millis(100),
            drain_ns: Nanos::from_secs(10),
            ..Plan::default()
        };
        let mut server = server();
        let options = SimOptions::default();
        let mut records = run_sim(plan, Default::default(), &mut server, &options).unwrap();
        records.sort_by_key(|record| record.row.request);
        let at = |i: usize| -> Vec<u64> {
            let tokens = records[i].tokens.iter();
            tokens.map(|token| token.at_ns.0 / 1_000_000).collect()
        };
        assert_eq!((at(0), at(1)), (vec![20, 30, 40], vec![40]));
        assert_eq!(records[1].row.cached_tokens, Some(32));
        assert_eq!(records[2].row.fail, Some(FailKind::HttpStatus));
        server.check().unwrap();
    }
}
