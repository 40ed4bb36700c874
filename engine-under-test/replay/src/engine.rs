//! The `engine` layer: scheduler, allocator and cache as they serve, with tokens from the script.

use std::collections::BTreeMap;

use pb_contract::{EngineEvent, EngineRequest, Nanos, RequestId, SamplingParams, VirtualClock};
use pb_core::sim::{Script, ScriptedExecutor};
use pb_core::{AdapterInfo, Engine, EngineSpec, StepOutput};
use serde_json::{Map, Value, json};

use crate::error::ReplayError;
use crate::fields::{Fields, wrong};
use crate::{config, state, tokens};

const OPS: &str = "config, add, step, abort, reset_prefix_cache, state";

/// Token ids that scripts may use.
const VOCAB: usize = 1 << 32;

/// An engine without a model, and the names that the script gives to its requests.
pub(crate) struct EngineLayer {
    engine: Engine,
    script: Script,
    clock: VirtualClock,
    /// Every name ever used, with its latest request.
    ids: BTreeMap<String, RequestId>,
    names: BTreeMap<RequestId, String>,
    outputs: BTreeMap<RequestId, Vec<u32>>,
    next_id: u64,
}

impl EngineLayer {
    /// From a `config` line.
    pub(crate) fn new(fields: Fields) -> Result<Self, ReplayError> {
        let config = config::parse(fields)?;
        let script = Script::default();
        let executor = ScriptedExecutor::new(script.clone(), VOCAB);
        let spec = EngineSpec::simulated(VOCAB, usize::MAX);
        let engine = Engine::new_under_test(config, spec, Box::new(executor))
            .map_err(ReplayError::Config)?;
        Ok(EngineLayer {
            engine,
            script,
            clock: VirtualClock::new(),
            ids: BTreeMap::new(),
            names: BTreeMap::new(),
            outputs: BTreeMap::new(),
            next_id: 0,
        })
    }

    /// Answers a line.
    pub(crate) fn answer(&mut self, op: &str, fields: Fields) -> Result<Value, ReplayError> {
        let answer = match op {
            "add" => self.add(fields),
            "step" => self.step(fields),
            "abort" => self.abort(fields),
            "reset_prefix_cache" => {
                fields.done()?;
                Ok(json!({"ok": self.engine.reset_prefix_cache()}))
            }
            "state" => {
                fields.done()?;
                Ok(state::state(&self.engine, &self.names))
            }
            _ => {
                return Err(ReplayError::UnknownOp {
                    op: op.to_owned(),
                    known: OPS,
                });
            }
        }?;
        self.engine.check().map_err(ReplayError::BrokenLaw)?;
        Ok(answer)
    }

    /// Adds a request; with `n` its further sequences are named `id#1`, `id#2`, ...
    fn add(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let name = fields.text("id")?;
        let prompt = tokens::parse("tokens", &fields.required("tokens")?)?;
        let max_tokens = fields.optional_number("max_tokens")?.unwrap_or(16);
        let max_tokens = u32::try_from(max_tokens)
            .map_err(|_| ReplayError::field("max_tokens", max_tokens, "is too large"))?;
        let salt = fields.optional_text("salt")?;
        let adapter = fields.optional_text("adapter")?;
        let priority = fields.optional_integer("priority")?.unwrap_or(0);
        let n = fields.optional_number("n")?.unwrap_or(1);
        fields.done()?;
        if n == 0 || n > 1024 {
            return Err(ReplayError::field(
                "n",
                n,
                "must be at least 1 and at most 1024",
            ));
        }
        let places = self.engine.config().max_num_seqs as u64;
        if n > places {
            let problem = format!("is above max_num_seqs = {places}; lower it");
            return Err(ReplayError::field("n", n, problem));
        }
        // Each sequence keeps its own tokens.
        if prompt.len().saturating_mul(n as usize) > tokens::MAX_TOKENS {
            let problem = "times the prompt is above 16,777,216 tokens";
            return Err(ReplayError::field("n", n, problem));
        }
        let names: Vec<String> = (0..n).map(|i| sequence_name(&name, i)).collect();
        if let Some(live) = names.iter().find(|name| self.live(name).is_some()) {
            return Err(ReplayError::DuplicateRequest(live.clone()));
        }
        if let Some(adapter) = &adapter {
            self.know_adapter(adapter);
        }
        let leader = RequestId(self.next_id);
        for (i, name) in names.into_iter().enumerate() {
            let id = RequestId(leader.0 + i as u64);
            let request = EngineRequest {
                id,
                prompt: prompt.clone(),
                sampling: sampling(max_tokens),
                cache_salt: salt.clone(),
                adapter: adapter.clone(),
                priority,
                fork_of: (i > 0).then_some(leader),
                arrival: Nanos(0),
            };
            if let Err(refusal) = self.engine.add(request) {
                (0..i as u64).for_each(|k| self.forget(RequestId(leader.0 + k)));
                return Err(refusal.into());
            }
            self.next_id = id.0 + 1;
            self.ids.insert(name.clone(), id);
            self.names.insert(id, name);
            self.outputs.insert(id, Vec::new());
        }
        Ok(json!({}))
    }

    /// Adapters of a script have no weights; their name is their identity.
    fn know_adapter(&mut self, name: &str) {
        let mut digest = [0; 32];
        for (i, byte) in name.bytes().enumerate() {
            digest[i % 32] ^= byte.rotate_left(i as u32 / 32);
        }
        self.engine.know_adapter(AdapterInfo {
            name: name.to_owned(),
            digest,
        });
    }

    fn live(&self, name: &str) -> Option<RequestId> {
        let id = self.ids.get(name)?;
        self.names.contains_key(id).then_some(*id)
    }

    fn forget(&mut self, id: RequestId) {
        self.engine.abort(id);
        self.names.remove(&id);
        self.outputs.remove(&id);
    }

    /// Ends a request. One that has ended already is no error: the script need not know.
    fn abort(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let name = fields.text("id")?;
        fields.done()?;
        let known = self.ids.get(&name);
        let id = *known.ok_or_else(|| ReplayError::UnknownRequest(name.clone()))?;
        self.forget(id);
        Ok(json!({}))
    }

    fn step(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let sample = fields.take("sample").unwrap_or_else(|| json!({}));
        fields.done()?;
        let Value::Object(sample) = sample else {
            return Err(wrong("sample", &sample, "must map request names to tokens"));
        };
        self.script.clear();
        for (name, token) in &sample {
            let value = token.as_u64().and_then(|t| u32::try_from(t).ok());
            let Some(value) = value else {
                return Err(wrong(
                    &format!("sample.{name}"),
                    token,
                    "must be a token id",
                ));
            };
            // A name may stand for a request that never was or has ended: the map is a supply.
            if let Some(progress) = self.live(name).and_then(|id| self.engine.progress(id)) {
                self.script.set(progress.id, progress.num_tokens, value);
            }
        }
        let first_time: Vec<RequestId> = self.never_admitted();
        let output = self
            .engine
            .step(&self.clock)
            .map_err(|e| ReplayError::BrokenLaw(e.to_string()))?;
        Ok(self.describe(&output, &first_time))
    }

    /// Requests whose hit would be reported if they were admitted now.
    fn never_admitted(&self) -> Vec<RequestId> {
        let waiting = self.engine.waiting();
        waiting
            .filter(|&id| self.engine.progress(id).is_some_and(|p| !p.admitted_before))
            .collect()
    }

    fn describe(&mut self, output: &StepOutput, first_time: &[RequestId]) -> Value {
        let mut finished = Vec::new();
        for event in &output.events {
            match event {
                EngineEvent::Token { id, token, .. } => {
                    self.outputs.entry(*id).or_default().push(*token);
                }
                EngineEvent::Finished { id, .. } => finished.push(*id),
                EngineEvent::Admitted { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
        let scheduled: Vec<Value> = output
            .scheduled
            .iter()
            .map(|s| {
                let mut row = Map::new();
                row.insert("id".into(), json!(self.names[&s.id]));
                row.insert("start".into(), json!(s.start));
                row.insert("count".into(), json!(s.count));
                if let Some(hit) = s.hit_tokens.filter(|_| first_time.contains(&s.id)) {
                    row.insert("hit_tokens".into(), json!(hit));
                }
                Value::Object(row)
            })
            .collect();
        let mut preempted: Vec<&str> = output
            .preempted
            .iter()
            .map(|id| self.names[id].as_str())
            .collect();
        preempted.sort_unstable();
        let preempted = json!(preempted);
        let finished: Vec<Value> = finished
            .into_iter()
            .map(|id| {
                let name = self.names.remove(&id);
                json!({"id": name, "output": self.outputs.remove(&id)})
            })
            .collect();
        json!({"scheduled": scheduled, "preempted": preempted, "finished": finished})
    }
}

fn sequence_name(name: &str, sequence: u64) -> String {
    match sequence {
        0 => name.to_owned(),
        n => format!("{name}#{n}"),
    }
}

/// Greedy, and never ended by a token: scripts say how many tokens they want.
fn sampling(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        ignore_eos: true,
        max_tokens,
        ..SamplingParams::default()
    }
}
