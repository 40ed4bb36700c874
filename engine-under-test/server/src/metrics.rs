//! What the engine thread counts beyond the core's own counters: latencies, ends, where the time
//! of the steps went.

use std::collections::BTreeMap;

use pb_contract::{FinishReason, Nanos, StepRow};

const TTFT_BOUNDS_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const ITL_BOUNDS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const E2E_BOUNDS_S: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// The moments of a request's life that the histograms need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) arrival: Nanos,
    /// Start of the first step that worked on it.
    pub(crate) admitted: Option<Nanos>,
    first_token: Option<Nanos>,
    last_token: Option<Nanos>,
}

impl RequestTimes {
    pub(crate) fn new(arrival: Nanos) -> Self {
        RequestTimes {
            arrival,
            admitted: None,
            first_token: None,
            last_token: None,
        }
    }
}

/// A histogram with fixed bounds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    pub(crate) bounds_s: &'static [f64],
    /// One count a bound, and one for what lies above.
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: Nanos,
}

impl Histogram {
    fn new(bounds_s: &'static [f64]) -> Self {
        Histogram {
            bounds_s,
            counts: vec![0; bounds_s.len() + 1],
            sum: Nanos::ZERO,
        }
    }

    fn observe(&mut self, duration: Nanos) {
        let seconds = duration.as_secs_f64();
        self.counts[self.bounds_s.partition_point(|&bound| bound < seconds)] += 1;
        self.sum += duration;
    }
}

/// Requests that name one adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdapterLoad {
    /// Admitted, some of them perhaps preempted since.
    pub(crate) running: usize,
    /// Not admitted yet.
    pub(crate) waiting: usize,
}

/// Name of a part of a step's time, and where it is in the row.
pub(crate) type StepPart = (&'static str, fn(&StepRow) -> Nanos);

/// Parts of a step's time, in the order in which they are shown. `schedule` is `lookup`,
/// `allocate` and `plan`; the parts of one kind are disjoint.
pub(crate) const STEP_PARTS: [StepPart; 10] = [
    ("lookup", |row| row.lookup_ns),
    ("allocate", |row| row.allocate_ns),
    ("plan", |row| row.plan_ns),
    ("dispatch", |row| row.dispatch_ns),
    ("prefill_gemm", |row| row.prefill_gemm_ns),
    ("decode_gemm", |row| row.decode_gemm_ns),
    ("prefill_attention", |row| row.prefill_attention_ns),
    ("decode_attention", |row| row.decode_attention_ns),
    ("sampling", |row| row.sampling_ns),
    ("other", |row| row.other_ns.saturating_sub(row.dispatch_ns)),
];

/// What the engine thread counts.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) e2e_request_latency: Histogram,
    /// From the arrival to the first step.
    pub(crate) queue_time: Histogram,
    /// From the first step to the first token.
    pub(crate) prefill_time: Histogram,
    /// From the first token to the last.
    pub(crate) decode_time: Histogram,
    /// From the first step to the last token.
    pub(crate) inference_time: Histogram,
    /// Stop, length, abort, error.
    pub(crate) finished: [u64; 4],
    pub(crate) steps: u64,
    /// Time of all steps by [`STEP_PARTS`].
    pub(crate) step_time: [Nanos; STEP_PARTS.len()],
    /// What held the engine thread up between steps.
    pub(crate) lock_wait: Nanos,
    /// By adapter, those without a request left out.
    pub(crate) adapters: BTreeMap<String, AdapterLoad>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Metrics {
            time_to_first_token: Histogram::new(TTFT_BOUNDS_S),
            inter_token_latency: Histogram::new(ITL_BOUNDS_S),
            e2e_request_latency: Histogram::new(E2E_BOUNDS_S),
            queue_time: Histogram::new(E2E_BOUNDS_S),
            prefill_time: Histogram::new(E2E_BOUNDS_S),
            decode_time: Histogram::new(E2E_BOUNDS_S),
            inference_time: Histogram::new(E2E_BOUNDS_S),
            finished: [0; 4],
            steps: 0,
            step_time: [Nanos::ZERO; STEP_PARTS.len()],
            lock_wait: Nanos::ZERO,
            adapters: BTreeMap::new(),
        }
    }

    /// Counts a step.
    pub(crate) fn step(&mut self, row: &StepRow) {
        self.steps += 1;
        self.lock_wait += row.lock_wait_ns;
        for (sum, (_, part)) in self.step_time.iter_mut().zip(STEP_PARTS) {
            *sum += part(row);
        }
    }

    /// A request for an adapter came.
    pub(crate) fn adapter_waits(&mut self, adapter: &str) {
        self.adapters.entry(adapter.to_owned()).or_default().waiting += 1;
    }

    /// A request for an adapter was admitted for the first time.
    pub(crate) fn adapter_runs(&mut self, adapter: &str) {
        if let Some(load) = self.adapters.get_mut(adapter) {
            load.waiting -= 1;
            load.running += 1;
        }
    }

    /// A request for an adapter ended.
    pub(crate) fn adapter_ends(&mut self, adapter: &str, was_running: bool) {
        let Some(load) = self.adapters.get_mut(adapter) else {
            return;
        };
        match was_running {
            true => load.running -= 1,
            false => load.waiting -= 1,
        }
        if *load == AdapterLoad::default() {
            self.adapters.remove(adapter);
        }
    }

    /// Counts a request's next token, which came at `now`.
    pub(crate) fn token(&mut self, times: &mut RequestTimes, now: Nanos) {
        match times.last_token {
            None => self
                .time_to_first_token
                .observe(now.saturating_sub(times.arrival)),
            Some(last) => self.inter_token_latency.observe(now.saturating_sub(last)),
        }
        times.first_token.get_or_insert(now);
        times.last_token = Some(now);
    }

    /// Counts a request that ended.
    pub(crate) fn finish(&mut self, reason: FinishReason, times: RequestTimes, now: Nanos) {
        let slot = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Abort => 2,
        };
        self.finished[slot] += 1;
        // As in vLLM, an aborted request has no latency.
        if reason == FinishReason::Abort {
            return;
        }
        self.e2e_request_latency
            .observe(now.saturating_sub(times.arrival));
        if let (Some(admitted), Some(first), Some(last)) =
            (times.admitted, times.first_token, times.last_token)
        {
            self.queue_time
                .observe(admitted.saturating_sub(times.arrival));
            self.prefill_time.observe(first.saturating_sub(admitted));
            self.decode_time.observe(last.saturating_sub(first));
            self.inference_time.observe(last.saturating_sub(admitted));
        }
    }

    /// Counts a request that the engine failed.
    pub(crate) fn error(&mut self) {
        self.finished[3] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        // Prometheus: a bucket holds the observations less than or equal to its bound.
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for ms in [500, 501, 1000, 1001] {
            histogram.observe(Nanos::from_millis(ms));
        }
        assert_eq!(histogram.counts, vec![1, 2, 1]);
        assert_eq!(histogram.sum, Nanos::from_millis(3002));
    }

    #[test]
    fn first_tokens_and_gaps_go_to_their_own_histograms() {
        let mut metrics = Metrics::new();
        let mut times = RequestTimes::new(Nanos::from_millis(10));
        metrics.token(&mut times, Nanos::from_millis(110));
        metrics.token(&mut times, Nanos::from_millis(130));
        metrics.finish(FinishReason::Abort, times, Nanos::from_secs(1));
        assert_eq!(metrics.time_to_first_token.sum, Nanos::from_millis(100));
        assert_eq!(metrics.inter_token_latency.sum, Nanos::from_millis(20));
        assert_eq!(metrics.e2e_request_latency.sum, Nanos::ZERO);
        assert_eq!(metrics.finished, [0, 0, 1, 0]);
        assert_eq!(metrics.queue_time.sum, Nanos::ZERO);
    }

    #[test]
    fn a_request_waits_then_prefills_then_decodes() {
        let mut metrics = Metrics::new();
        let mut times = RequestTimes::new(Nanos::from_millis(10));
        times.admitted = Some(Nanos::from_millis(15));
        for ms in [45, 60, 145] {
            metrics.token(&mut times, Nanos::from_millis(ms));
        }
        metrics.finish(FinishReason::Stop, times, Nanos::from_millis(150));
        assert_eq!(metrics.queue_time.sum, Nanos::from_millis(5));
        assert_eq!(metrics.prefill_time.sum, Nanos::from_millis(30));
        assert_eq!(metrics.decode_time.sum, Nanos::from_millis(100));
        assert_eq!(metrics.inference_time.sum, Nanos::from_millis(130));
        assert_eq!(metrics.e2e_request_latency.sum, Nanos::from_millis(140));
    }

    #[test]
    fn an_adapter_is_shown_while_it_has_requests() {
        let mut metrics = Metrics::new();
        for _ in 0..3 {
            metrics.adapter_waits("a");
        }
        metrics.adapter_runs("a");
        let load = |running, waiting| Some(AdapterLoad { running, waiting });
        assert_eq!(metrics.adapters.get("a").copied(), load(1, 2));
        metrics.adapter_ends("a", true);
        metrics.adapter_ends("a", false);
        assert_eq!(metrics.adapters.get("a").copied(), load(0, 1));
        metrics.adapter_ends("a", false);
        assert!(metrics.adapters.is_empty());
    }

    #[test]
    fn the_parts_of_a_steps_time_are_disjoint() {
        let ns = Nanos;
        let row = StepRow {
            duration_ns: ns(1000),
            schedule_ns: ns(60),
            lookup_ns: ns(10),
            allocate_ns: ns(20),
            plan_ns: ns(30),
            prefill_gemm_ns: ns(200),
            decode_gemm_ns: ns(100),
            prefill_attention_ns: ns(300),
            decode_attention_ns: ns(150),
            sampling_ns: ns(90),
            other_ns: ns(100),
            dispatch_ns: ns(40),
            lock_wait_ns: ns(5),
            ..StepRow::default()
        };
        let mut metrics = Metrics::new();
        metrics.step(&row);
        metrics.step(&row);
        let sum = metrics.step_time.iter().map(|part| part.0).sum::<u64>();
        assert_eq!(sum, 2 * 1000, "all parts make the step");
        assert_eq!((metrics.lock_wait, metrics.steps), (ns(10), 2));
    }
}
