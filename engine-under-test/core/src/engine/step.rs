//! One step: plan, move data, execute, commit, and the row that tells what happened.

use pb_contract::{Clock, EngineEvent, Fault, Nanos, Preemption, RequestId, StepRow};
use pb_model::forward::ForwardTiming;
use pb_sched::{Observation, Scheduled, SeqView, StepPlan, View};
use pb_tiers::TierKind;

use super::compute::ChunkResult;
use super::{Engine, Hold, LayerTap};
use crate::error::ExecError;
use crate::kv_adapter::{Admission, KvAdapter, PlanLog};

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Times, token counts and buckets.
    pub row: StepRow,
    /// What happened to requests, in order.
    pub events: Vec<EngineEvent>,
    /// What was computed, in the order of the plan.
    pub scheduled: Vec<Scheduled>,
    /// Requests that lost their blocks, in that order.
    pub preempted: Vec<RequestId>,
}

impl Engine {
    /// Plans, executes and commits one step.
    ///
    /// # Errors
    /// [`ExecError`] when the backend fails; the requests of the step are then removed, and what
    /// they had registered in the prefix cache is forgotten.
    pub fn step(&mut self, clock: &dyn Clock) -> Result<StepOutput, ExecError> {
        self.step_tapped(clock, None)
    }

    /// As [`Engine::step`]; `layers` sees keys and values of the step layer by layer, where the
    /// executor tells of them. What it sees of a step that fails is not computed.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_tapped(
        &mut self,
        clock: &dyn Clock,
        layers: Option<&mut (dyn LayerTap + '_)>,
    ) -> Result<StepOutput, ExecError> {
        let start = clock.now();
        self.kv.set_now(start.0);
        let evicted_before = self.kv.evicted_total();
        let mut out = StepOutput::default();
        self.seat_arrived(&mut out);
        let (plan, mut log) = self.plan(clock);
        out = StepOutput {
            row: StepRow {
                step: self.steps,
                start_ns: start,
                preempted: plan.preempted.len(),
                lock_wait_ns: std::mem::take(&mut self.lock_wait),
                ..out.row
            },
            scheduled: plan.scheduled,
            preempted: plan.preempted,
            ..out
        };
        let planned = clock.now();
        split_schedule_time(&mut out.row, planned - start, &log);
        let moved = self.move_blocks(&mut log);
        self.preempt(&out.preempted);
        self.admit(&out.scheduled, &log, &mut out.row, &mut out.events);
        let computed = moved.and_then(|()| self.compute(&out.scheduled, clock, layers));
        let computed = computed.map_err(|message| self.fail_step(&out.scheduled, message))?;
        out.row.dispatch_ns = computed.dispatched - planned;
        let observed = self.observation(&out.scheduled, &computed.results);
        let committing = clock.now();
        self.commit(&out.scheduled, computed.results, &mut out.events);
        out.row.sampling_ns = computed.timing.sink_ns + (clock.now() - committing);
        self.finish_row(&mut out.row, &observed, computed.timing, evicted_before);
        self.steps += 1;
        out.row.duration_ns = clock.now() - start;
        self.observe(observed, &out.row);
        let parts = out.row.schedule_ns
            + computed.timing.gemm_ns
            + computed.timing.prefill_attention_ns
            + computed.timing.decode_attention_ns
            + out.row.sampling_ns;
        out.row.other_ns = out.row.duration_ns.saturating_sub(parts);
        Ok(out)
    }

    fn plan(&mut self, clock: &dyn Clock) -> (StepPlan, PlanLog) {
        let view_of = |id: &RequestId| self.requests[id].view();
        let running: Vec<SeqView> = self.running.iter().map(view_of).collect();
        let waiting = self.waiting_views();
        let view = View {
            running: &running,
            waiting: &waiting,
        };
        let mut adapter = KvAdapter::new(
            self.kv.as_mut(),
            &self.requests,
            &mut self.tiers,
            &self.swap,
            clock,
        );
        adapter.image_bytes = self.image_bytes;
        adapter.swaps = self.config.scheduling.preemption == Preemption::Swap;
        let plan = self.policy.plan(&view, &mut adapter);
        let log = adapter.into_log();
        for &(id, block) in &log.failed_loads {
            self.counters.failed_loads += 1;
            if let Some(live) = self.requests.get_mut(&id) {
                live.tier_blocks = live.tier_blocks.min(block);
            }
        }
        (plan, log)
    }

    /// Moves newly admitted requests to `running` and counts their prefix hits, once each.
    fn admit(
        &mut self,
        scheduled: &[Scheduled],
        log: &PlanLog,
        row: &mut StepRow,
        events: &mut Vec<EngineEvent>,
    ) {
        for s in scheduled {
            let Some(hit_tokens) = s.hit_tokens else {
                self.drift(s);
                continue;
            };
            match self.waiting.front() {
                Some(&first) if first == s.id => {
                    self.waiting.pop_front();
                }
                _ => self.waiting.retain(|&r| r != s.id),
            }
            self.running.push(s.id);
            let admission = log.admissions.iter().find(|a| a.id == s.id);
            // OK because the plan schedules only what the adapter has given blocks.
            let admission = admission.expect("an admitted request has been allocated");
            self.count_admission(s.id, hit_tokens, admission, row, events);
        }
    }

    fn count_admission(
        &mut self,
        id: RequestId,
        hit_tokens: usize,
        admission: &Admission,
        row: &mut StepRow,
        events: &mut Vec<EngineEvent>,
    ) {
        let Some(live) = self.requests.get_mut(&id) else {
            return;
        };
        live.computed = hit_tokens;
        (live.preempted, live.swapped) = (false, false);
        let queried = live.seq.len();
        let found = hit_tokens - admission.swapped_tokens;
        let c = &mut self.counters;
        row.swapped_in_tokens += admission.swapped_tokens;
        c.swapped_in_tokens += admission.swapped_tokens as u64;
        let again = live.admitted.is_some();
        if again && self.config.fault != Fault::PreemptedHitCounted {
            c.preempted_queried_tokens += queried as u64;
            c.preempted_hit_tokens += found as u64;
            return;
        }
        let [host, disk, remote] = admission.tier_tokens;
        row.queried_tokens += queried;
        row.hit_tokens += found;
        row.host_hit_tokens += host;
        row.disk_hit_tokens += disk;
        row.remote_hit_tokens += remote;
        c.queried_tokens += queried as u64;
        c.hit_tokens += found as u64;
        c.host_hit_tokens += host as u64;
        c.disk_hit_tokens += disk as u64;
        c.remote_hit_tokens += remote as u64;
        if again {
            return;
        }
        live.admitted = Some(hit_tokens);
        c.prompt_tokens += queried as u64;
        events.push(EngineEvent::Admitted {
            id,
            cached_tokens: hit_tokens,
        });
    }

    /// The planted fault that takes a request's own earlier chunks for hits.
    fn drift(&mut self, s: &Scheduled) {
        if self.config.fault == Fault::CounterDrift && s.start < self.requests[&s.id].prompt_tokens
        {
            self.counters.hit_tokens += s.start as u64;
        }
    }

    /// What the policy may learn from the step.
    fn observation(&self, scheduled: &[Scheduled], results: &[ChunkResult]) -> Observation {
        let mut seen = Observation::default();
        for (s, result) in scheduled.iter().zip(results) {
            if result.is_prefill {
                seen.prefill.push((s.count, s.start));
            } else {
                seen.decode_seqs += 1;
                seen.decode_context += s.start + s.count;
            }
        }
        seen
    }

    fn observe(&mut self, mut seen: Observation, row: &StepRow) {
        seen.preempted = row.preempted;
        seen.running = self.running.len();
        for id in &self.running {
            let live = &self.requests[id];
            seen.generated += live.generated();
            seen.max_new_tokens += live.request.sampling.max_tokens as usize;
        }
        seen.duration_ns = row.duration_ns.0;
        self.policy.observe(&seen);
    }

    fn finish_row(
        &self,
        row: &mut StepRow,
        seen: &Observation,
        timing: ForwardTiming,
        evicted_before: u64,
    ) {
        row.prefill_seqs = seen.prefill.len();
        row.prefill_tokens = seen.prefill.iter().map(|&(n, _)| n).sum();
        let prefill_context: usize = seen.prefill.iter().map(|&(n, start)| n + start).sum();
        row.decode_seqs = seen.decode_seqs;
        row.decode_tokens = seen.decode_seqs;
        row.context_tokens = prefill_context + seen.decode_context;
        let rows = (row.prefill_tokens + row.decode_tokens).max(1) as u64;
        let prefill_share = timing.gemm_ns.0 * row.prefill_tokens as u64 / rows;
        row.prefill_gemm_ns = Nanos(prefill_share);
        row.decode_gemm_ns = Nanos(timing.gemm_ns.0 - prefill_share);
        row.prefill_attention_ns = timing.prefill_attention_ns;
        row.decode_attention_ns = timing.decode_attention_ns;
        row.running = self.running.len();
        row.waiting = self.requests.len() - self.running.len() + self.incoming.len();
        row.evicted_blocks = (self.kv.evicted_total() - evicted_before) as usize;
        let buckets = self.kv.buckets();
        row.active_blocks = buckets.active;
        row.reclaimable_blocks = buckets.reclaimable;
        row.free_blocks = buckets.free;
        row.pinned_blocks = self.held_blocks(Hold::Pin);
        row.in_transfer_blocks = self.in_transfer_blocks();
        row.swapped_blocks = self.swap.used_blocks();
        row.host_blocks = self.tiers.blocks(TierKind::Host) as usize;
        row.disk_blocks = self.tiers.blocks(TierKind::Disk) as usize;
        row.remote_blocks = self.tiers.blocks(TierKind::Redis) as usize;
    }
}

/// Divides the time of planning between its parts.
fn split_schedule_time(row: &mut StepRow, schedule_ns: Nanos, log: &PlanLog) {
    row.schedule_ns = schedule_ns;
    row.lookup_ns = log.lookup_ns;
    row.allocate_ns = log.allocate_ns;
    row.plan_ns = schedule_ns.saturating_sub(log.lookup_ns + log.allocate_ns);
}
