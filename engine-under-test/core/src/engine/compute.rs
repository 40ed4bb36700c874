//! Handing a planned step to the executor, and choosing tokens while the logits are at hand.

use std::collections::BTreeMap;

use pb_contract::{Clock, Nanos, RequestId, Stream, TokenId, TokenLogprobs};
use pb_kv::PrefixCache;
use pb_model::forward::{
    ForwardTiming, LayerKv, LogitRow, LogitRows, LogitSink, RowUse, TokenRule,
};
use pb_sched::Scheduled;

use super::fork::Choice;
use super::{Engine, LayerTap, LogitTap};
use crate::error::ExecError;
use crate::execute::Chunk;
use crate::logprobs::token_logprobs;
use crate::request::Live;
use crate::sample::sample;

/// What one chunk gave.
#[derive(Default)]
pub(super) struct ChunkResult {
    /// Whether its tokens were prompt tokens, or tokens computed again after a preemption.
    pub(super) is_prefill: bool,
    /// The chosen token, where the chunk ends its sequence.
    pub(super) token: Option<Choice>,
    /// First tokens of the requests that fork here, in their order.
    pub(super) forks: Vec<Choice>,
    /// First prompt position reported, and one entry a position.
    pub(super) prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
}

/// A computed step.
pub(super) struct Computed {
    pub(super) timing: ForwardTiming,
    pub(super) results: Vec<ChunkResult>,
    /// When the executor got the batch.
    pub(super) dispatched: Nanos,
}

impl Engine {
    /// Computes what is scheduled.
    ///
    /// # Errors
    /// The backend's message.
    pub(super) fn compute(
        &mut self,
        scheduled: &[Scheduled],
        clock: &dyn Clock,
        layers: Option<&mut (dyn LayerTap + '_)>,
    ) -> Result<Computed, String> {
        let (requests, kv) = (&self.requests, self.kv.as_ref());
        let all_rows = self.tap.is_some();
        let chunks: Vec<Chunk<'_>> = scheduled
            .iter()
            .map(|s| chunk(s, &requests[&s.id], kv, all_rows))
            .collect();
        let mut sink = Sink {
            chunks: &chunks,
            requests,
            streams: &mut self.streams,
            eos_ids: &self.spec.eos_ids,
            tap: self.tap.as_deref_mut(),
            layers,
            results: chunks.iter().map(result_of).collect(),
        };
        let dispatched = clock.now();
        let timing = match chunks.is_empty() {
            true => ForwardTiming::default(),
            false => self.executor.execute(&chunks, clock, &mut sink)?,
        };
        Ok(Computed {
            timing,
            results: sink.results,
            dispatched,
        })
    }

    /// Removes the requests of a failed step. Nothing that it registered stays reachable, and
    /// whoever else holds a block that was to be filled in it starts anew.
    pub(super) fn fail_step(&mut self, scheduled: &[Scheduled], message: String) -> ExecError {
        let failed: Vec<RequestId> = scheduled.iter().map(|s| s.id).collect();
        let mut others = Vec::new();
        for s in scheduled {
            for block in self.kv.forget_uncomputed(s.id, s.start) {
                others.extend(self.kv.holders(block));
            }
        }
        others.sort_unstable();
        others.dedup();
        others.retain(|id| !failed.contains(id) && self.running.contains(id));
        others.iter().for_each(|&id| self.kv.free(id));
        self.preempt(&others);
        for &id in &failed {
            self.abort(id);
        }
        ExecError { message, failed }
    }
}

fn result_of(chunk: &Chunk<'_>) -> ChunkResult {
    ChunkResult {
        is_prefill: chunk.is_prefill,
        ..ChunkResult::default()
    }
}

fn chunk<'a>(s: &Scheduled, live: &'a Live, kv: &'a dyn PrefixCache, all_rows: bool) -> Chunk<'a> {
    let end = s.start + s.count;
    let wants_prompt = s.start < live.prompt_tokens && live.wants_prompt_logprobs();
    let rows = if all_rows || wants_prompt {
        LogitRows::All
    } else if end == live.seq.len() {
        LogitRows::Last
    } else {
        LogitRows::None
    };
    Chunk {
        id: s.id,
        tokens: &live.seq.tokens()[s.start..end],
        start: s.start,
        block_table: kv.block_table(s.id),
        rows,
        is_prefill: !live.is_decode(),
        is_last: end == live.seq.len(),
        adapter: live.adapter,
    }
}

/// Samples and records while the logits are at hand, so that they need not be kept.
struct Sink<'a, 't> {
    chunks: &'a [Chunk<'a>],
    requests: &'a BTreeMap<RequestId, Live>,
    streams: &'a mut BTreeMap<RequestId, Stream>,
    eos_ids: &'a [TokenId],
    tap: Option<&'a mut (dyn LogitTap + 'static)>,
    layers: Option<&'a mut (dyn LayerTap + 't)>,
    results: Vec<ChunkResult>,
}

impl Sink<'_, '_> {
    /// The token that request `id` takes from `logits`.
    fn choose(&mut self, id: RequestId, logits: &[f64]) -> Option<Choice> {
        let live = self.requests.get(&id)?;
        let stream = self.streams.get_mut(&id)?;
        let forbidden = live.forbidden(self.eos_ids);
        let params = &live.request.sampling;
        let token = sample(logits, params, &forbidden, stream);
        let logprobs = params
            .logprobs
            .map(|k| token_logprobs(logits, token, k as usize));
        Some((token, logprobs))
    }
}

/// How many log-probabilities are wanted of the prompt token after `position`, if any.
fn prompt_top(live: &Live, position: usize) -> Option<u32> {
    let (predicted, wanted) = (position + 1, live.request.sampling.prompt_logprobs);
    wanted.filter(|_| predicted < live.prompt_tokens && predicted >= live.prompt_logprobs_done)
}

impl LogitSink for Sink<'_, '_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        let id = self.chunks[seq].id;
        if let Some(tap) = &mut self.tap {
            tap.row(id, position, logits);
        }
        let live = &self.requests[&id];
        let is_last = position + 1 == live.seq.len();
        let predicted = position + 1;
        let prompt_top = prompt_top(live, position);
        if !is_last && prompt_top.is_none() {
            return;
        }
        let logits = logits.to_f64();
        if let Some(top) = prompt_top {
            let token = live.seq.tokens()[predicted];
            let entry = token_logprobs(&logits, token, top as usize);
            let reported = &mut self.results[seq].prompt_logprobs;
            reported
                .get_or_insert((predicted, Vec::new()))
                .1
                .push(entry);
        }
        if is_last {
            self.results[seq].token = self.choose(id, &logits);
            for &follower in &live.followers {
                let choice = self.choose(follower, &logits);
                self.results[seq].forks.extend(choice);
            }
        }
    }

    fn token(&mut self, seq: usize, token: TokenId) {
        self.results[seq].token = Some((token, None));
    }

    fn row_use(&self, seq: usize, position: usize) -> RowUse {
        let id = self.chunks[seq].id;
        let live = &self.requests[&id];
        if self.tap.is_some() || prompt_top(live, position).is_some() {
            return RowUse::Logits;
        }
        if position + 1 != live.seq.len() {
            return RowUse::Nothing;
        }
        let params = &live.request.sampling;
        let one_token = params.logprobs.is_none() && live.followers.is_empty();
        match self.streams.get(&id).filter(|_| one_token) {
            Some(stream) => {
                let (key, draw) = stream.place();
                RowUse::Token(TokenRule {
                    temperature: params.temperature,
                    top_k: params.top_k,
                    top_p: params.top_p,
                    forbidden: live.forbidden(self.eos_ids),
                    key,
                    draw,
                })
            }
            None => RowUse::Logits,
        }
    }

    fn chosen(&mut self, seq: usize, token: TokenId) {
        let id = self.chunks[seq].id;
        let by_chance = self.requests[&id].request.sampling.temperature > 0.0;
        // As the sampler does: one draw for every token that is chosen by chance.
        if let Some(stream) = self.streams.get_mut(&id).filter(|_| by_chance) {
            stream.next_u64();
        }
        self.token(seq, token);
    }

    fn layer_written(&mut self, layer: usize, kv: &dyn LayerKv) {
        if let Some(layers) = &mut self.layers {
            layers.layer(self.chunks, layer, kv);
        }
    }
}
