//! One step: plan, execute, commit, and the row that tells what happened.

use pb_contract::{Clock, EngineEvent, Fault, Nanos, RequestId, StepRow, TokenId, TokenLogprobs};
use pb_model::forward::{ForwardTiming, LogitRow, LogitRows, LogitSink};
use pb_sched::{Scheduled, SeqView, StepPlan, View};

use super::{Engine, LogitTap};
use crate::error::ExecError;
use crate::execute::Chunk;
use crate::kv_adapter::KvAdapter;
use crate::logprobs::token_logprobs;
use crate::request::Live;
use crate::sample::sample;

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Times, token counts and buckets.
    pub row: StepRow,
    /// What happened to requests, in order.
    pub events: Vec<EngineEvent>,
}

/// What the logits of one chunk gave.
#[derive(Default)]
pub(super) struct ChunkResult {
    /// The chosen token and its log-probabilities, where the chunk ends its sequence.
    pub(super) token: Option<(TokenId, Option<TokenLogprobs>)>,
    /// First prompt position reported, and one entry a position.
    pub(super) prompt_logprobs: Option<(usize, Vec<TokenLogprobs>)>,
}

impl Engine {
    /// Plans, executes and commits one step.
    ///
    /// # Errors
    /// [`ExecError`] when the backend fails; the requests of the step are then removed, and what
    /// they had registered in the prefix cache is forgotten.
    pub fn step(&mut self, clock: &dyn Clock) -> Result<StepOutput, ExecError> {
        let start = clock.now();
        let evicted_before = self.kv.evicted_total();
        let plan = self.plan();
        self.preempt(&plan.preempted);
        let mut events = Vec::new();
        let mut row = StepRow {
            step: self.steps,
            start_ns: start,
            ..StepRow::default()
        };
        row.preempted = plan.preempted.len();
        self.admit(&plan, &mut row, &mut events);
        let chunks: Vec<Chunk> = plan.scheduled.iter().map(|s| self.chunk(s)).collect();
        self.count(&chunks, &mut row);
        row.schedule_ns = clock.now() - start;
        let (timing, results) = self.execute(&chunks, clock)?;
        let committing = clock.now();
        self.commit(&chunks, results, &mut events);
        row.sampling_ns = timing.sink_ns + (clock.now() - committing);
        self.finish_row(&mut row, timing, evicted_before);
        self.steps += 1;
        row.duration_ns = clock.now() - start;
        let parts = row.schedule_ns
            + timing.gemm_ns
            + timing.prefill_attention_ns
            + timing.decode_attention_ns
            + row.sampling_ns;
        row.other_ns = row.duration_ns.saturating_sub(parts);
        Ok(StepOutput { row, events })
    }

    fn plan(&mut self) -> StepPlan {
        let view_of = |id: &RequestId| self.requests[id].view();
        let running: Vec<SeqView> = self.running.iter().map(view_of).collect();
        let waiting: Vec<SeqView> = self.waiting.iter().map(view_of).collect();
        let view = View {
            running: &running,
            waiting: &waiting,
        };
        let mut adapter = KvAdapter {
            kv: &mut self.kv,
            requests: &self.requests,
        };
        self.policy.plan(&view, &mut adapter)
    }

    /// Puts preempted requests back to the front of the queue; their blocks are released already.
    fn preempt(&mut self, preempted: &[RequestId]) {
        for id in preempted {
            self.running.retain(|r| r != id);
            if let Some(live) = self.requests.get_mut(id) {
                live.computed = 0;
                live.preempted = true;
            }
            self.waiting.push_front(*id);
            self.counters.preemptions += 1;
        }
    }

    /// Moves newly admitted requests to `running` and counts their prefix hits, once each.
    fn admit(&mut self, plan: &StepPlan, row: &mut StepRow, events: &mut Vec<EngineEvent>) {
        for s in &plan.scheduled {
            let Some(hit_tokens) = s.hit_tokens else {
                continue;
            };
            self.waiting.retain(|&r| r != s.id);
            self.running.push(s.id);
            let Some(live) = self.requests.get_mut(&s.id) else {
                continue;
            };
            live.computed = hit_tokens;
            live.preempted = false;
            let queried = live.seq.len();
            if live.admitted {
                self.counters.preempted_queried_tokens += queried as u64;
                self.counters.preempted_hit_tokens += hit_tokens as u64;
                continue;
            }
            live.admitted = true;
            row.queried_tokens += queried;
            row.hit_tokens += hit_tokens;
            self.counters.queried_tokens += queried as u64;
            self.counters.hit_tokens += hit_tokens as u64;
            self.counters.prompt_tokens += queried as u64;
            events.push(EngineEvent::Admitted {
                id: s.id,
                cached_tokens: hit_tokens,
            });
        }
    }

    fn chunk(&self, s: &Scheduled) -> Chunk {
        let live = &self.requests[&s.id];
        let end = s.start + s.count;
        let wants_prompt = live.request.sampling.prompt_logprobs.is_some()
            && s.start < live.prompt_tokens()
            && live.prompt_logprobs_done < live.prompt_tokens();
        let rows = if self.tap.is_some() || wants_prompt {
            LogitRows::All
        } else if end == live.seq.len() {
            LogitRows::Last
        } else {
            LogitRows::None
        };
        let shifted = self.config.fault == Fault::RopePlusOneAfterFirstChunk && s.start > 0;
        Chunk {
            id: s.id,
            tokens: live.seq.tokens()[s.start..end].to_vec(),
            start: s.start,
            block_table: self.kv.block_table(s.id).to_vec(),
            rows,
            is_prefill: !live.view().is_decode(),
            rope_offset: usize::from(shifted),
        }
    }

    fn count(&self, chunks: &[Chunk], row: &mut StepRow) {
        for c in chunks {
            row.context_tokens += c.start + c.tokens.len();
            if c.is_prefill {
                row.prefill_tokens += c.tokens.len();
                row.prefill_seqs += 1;
            } else {
                row.decode_tokens += c.tokens.len();
                row.decode_seqs += 1;
            }
        }
    }

    fn execute(
        &mut self,
        chunks: &[Chunk],
        clock: &dyn Clock,
    ) -> Result<(ForwardTiming, Vec<ChunkResult>), ExecError> {
        if chunks.is_empty() {
            return Ok((ForwardTiming::default(), Vec::new()));
        }
        let mut sink = Sink {
            chunks,
            requests: &mut self.requests,
            eos_ids: &self.spec.eos_ids,
            tap: self.tap.as_deref_mut(),
            results: chunks.iter().map(|_| ChunkResult::default()).collect(),
        };
        match self.executor.execute(chunks, clock, &mut sink) {
            Ok(timing) => Ok((timing, sink.results)),
            Err(message) => Err(self.fail_step(chunks, message)),
        }
    }

    /// Removes the requests of a failed step; nothing that it registered stays reachable.
    fn fail_step(&mut self, chunks: &[Chunk], message: String) -> ExecError {
        for c in chunks {
            self.kv.forget_uncomputed(c.id, c.start);
        }
        let failed: Vec<RequestId> = chunks.iter().map(|c| c.id).collect();
        for &id in &failed {
            self.remove(id);
        }
        ExecError { message, failed }
    }

    fn finish_row(&self, row: &mut StepRow, timing: ForwardTiming, evicted_before: u64) {
        let rows = (row.prefill_tokens + row.decode_tokens).max(1) as u64;
        let prefill_share = timing.gemm_ns.0 * row.prefill_tokens as u64 / rows;
        row.prefill_gemm_ns = Nanos(prefill_share);
        row.decode_gemm_ns = Nanos(timing.gemm_ns.0 - prefill_share);
        row.prefill_attention_ns = timing.prefill_attention_ns;
        row.decode_attention_ns = timing.decode_attention_ns;
        row.running = self.running.len();
        row.waiting = self.waiting.len();
        row.evicted_blocks = (self.kv.evicted_total() - evicted_before) as usize;
        let buckets = self.kv.buckets();
        row.active_blocks = buckets.active;
        row.reclaimable_blocks = buckets.reclaimable;
        row.free_blocks = buckets.free;
    }
}

/// Samples and records while the logits are at hand, so that they need not be kept.
struct Sink<'a> {
    chunks: &'a [Chunk],
    requests: &'a mut std::collections::BTreeMap<RequestId, Live>,
    eos_ids: &'a [TokenId],
    tap: Option<&'a mut (dyn LogitTap + 'static)>,
    results: Vec<ChunkResult>,
}

impl LogitSink for Sink<'_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        let id = self.chunks[seq].id;
        if let Some(tap) = &mut self.tap {
            tap.row(id, position, logits);
        }
        let Some(live) = self.requests.get_mut(&id) else {
            return;
        };
        let is_last = position + 1 == live.seq.len();
        let predicted = position + 1;
        let prompt_top =
            live.request.sampling.prompt_logprobs.filter(|_| {
                predicted < live.prompt_tokens() && predicted >= live.prompt_logprobs_done
            });
        if !is_last && prompt_top.is_none() {
            return;
        }
        let logits = logits.to_f64();
        let result = &mut self.results[seq];
        if let Some(top) = prompt_top {
            let token = live.seq.tokens()[predicted];
            let entry = token_logprobs(&logits, token, top as usize);
            result
                .prompt_logprobs
                .get_or_insert((predicted, Vec::new()))
                .1
                .push(entry);
        }
        if is_last {
            let forbidden = live.forbidden(self.eos_ids);
            let params = &live.request.sampling;
            let token = sample(&logits, params, &forbidden, &mut live.stream);
            let logprobs = params
                .logprobs
                .map(|k| token_logprobs(&logits, token, k as usize));
            result.token = Some((token, logprobs));
        }
    }
}
