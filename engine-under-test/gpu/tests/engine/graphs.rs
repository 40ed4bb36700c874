//! Decode steps by graphs: the logits of the plain way, bit for bit, from fresh parameters.

use std::sync::atomic::Ordering::Relaxed;

use pb_contract::BlockId;
use pb_core::{Chunk, Executor};
use pb_gpu::StepOptions;
use pb_kernels_cuda::Schedule;
use pb_model::forward::{LogitRows, LogitSink};

use super::*;
use crate::common::{PLAIN, Watch, three_adapters, watched};

/// Tokens before the first decode step of each sequence; a block has 16.
const PREFIXES: [usize; 3] = [30, 7, 15];

/// Sequences of each decode step: three rows are filled up to four.
const STEPS: [&[usize]; 8] = [
    &[0, 1, 2],
    &[0, 1, 2],
    &[2, 0, 1],
    &[1],
    &[1],
    &[0, 2],
    &[2, 1],
    &[0, 1, 2],
];

struct Bits<'a>(&'a mut Vec<(usize, usize, Vec<u32>)>);

impl LogitSink for Bits<'_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        let LogitRow::F32(row) = logits else {
            panic!("not f32")
        };
        let bits = row.iter().map(|x| x.to_bits()).collect();
        self.0.push((seq, position, bits));
    }

    fn token(&mut self, _: usize, _: TokenId) {
        panic!("logits were wanted");
    }
}

/// One executor, and the tokens and blocks of every sequence.
struct Script {
    executor: Box<dyn Executor>,
    watch: Arc<Watch>,
    tokens: Vec<Vec<TokenId>>,
    done: Vec<usize>,
    /// Of every sequence.
    adapters: [Option<usize>; 3],
}

impl Script {
    fn new(weights: &Weights, options: &GpuOptions, schedule: Schedule) -> Option<Self> {
        let prepare = |d: &pb_kernels_cuda::Emulator<'_>| d.schedule(schedule).unwrap();
        let (executor, watch) = watched(weights, options, prepare)?;
        let tokens = (0..3).map(|i| prompt(40 + i as u64, 50)).collect();
        Some(Script {
            executor,
            watch,
            tokens,
            done: vec![0; 3],
            adapters: [None; 3],
        })
    }

    /// Computes `counts` tokens of the named sequences.
    fn step(&mut self, seqs: &[usize], counts: &[usize]) -> Vec<(usize, usize, Vec<u32>)> {
        let table = |seq: usize| (0..4).map(move |i| BlockId((23 - 3 * i - seq) as u32));
        let tables: Vec<Vec<BlockId>> = (0..3).map(|seq| table(seq).collect()).collect();
        let chunk = |(seq, count): (&usize, &usize)| Chunk {
            id: RequestId(*seq as u64),
            tokens: &self.tokens[*seq][self.done[*seq]..][..*count],
            start: self.done[*seq],
            block_table: &tables[*seq],
            rows: LogitRows::Last,
            is_prefill: self.done[*seq] == 0,
            is_last: true,
            adapter: self.adapters[*seq],
        };
        let chunks: Vec<Chunk<'_>> = seqs.iter().zip(counts).map(chunk).collect();
        let mut rows = Vec::new();
        let clock = VirtualClock::new();
        self.executor
            .execute(&chunks, &clock, &mut Bits(&mut rows))
            .unwrap();
        for (seq, count) in seqs.iter().zip(counts) {
            self.done[*seq] += count;
        }
        rows
    }

    /// The prompts, then all decode steps; `before` is told the number of each.
    fn run(&mut self, before: &dyn Fn(&Watch, usize)) -> Vec<Vec<(usize, usize, Vec<u32>)>> {
        self.step(&[0, 1, 2], &PREFIXES);
        let mut all = Vec::new();
        for (number, seqs) in STEPS.into_iter().enumerate() {
            before(&self.watch, number);
            all.push(self.step(seqs, &[1; 3][..seqs.len()]));
        }
        all
    }
}

fn with_graphs(numerics: Numerics, graph_rows: usize) -> GpuOptions {
    GpuOptions {
        steps: StepOptions {
            graph_rows,
            ..PLAIN
        },
        ..options(numerics, KvDtype::Bf16)
    }
}

#[test]
fn recorded_steps_have_the_bits_of_plain_ones_and_launch_nothing_by_themselves() {
    let weights = weights();
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let plain = Script::new(&weights, &with_graphs(numerics, 0), Schedule::Eager);
        let Some(mut plain) = plain else { return };
        let want = plain.run(&|_, _| {});
        assert_eq!(Watch::take(&plain.watch.captures), 0);
        for schedule in [Schedule::Eager, Schedule::Random(3)] {
            let options = with_graphs(numerics, 4);
            let mut script = Script::new(&weights, &options, schedule).unwrap();
            let launches = std::cell::RefCell::new(Vec::new());
            let got = script.run(&|watch, _| {
                launches.borrow_mut().push(Watch::take(&watch.launches));
            });
            assert!(got == want, "{numerics:?} {schedule:?}");
            // Sizes 4, 1 and 2 are seen once, recorded once; everything after is only run.
            let counts = [&script.watch.captures, &script.watch.replays].map(Watch::take);
            assert_eq!(counts, [3, 5], "{numerics:?}");
            // What step 2 launched is asked for before step 3.
            assert_eq!(launches.borrow()[3], 0, "{numerics:?}");
            assert!(launches.borrow()[1] > 0 && launches.borrow()[2] > 0);
        }
    }
}

/// Planted: a step runs on the parameters of the one before.
#[test]
fn stale_parameters_show() {
    let weights = weights();
    let fresh = Script::new(&weights, &with_graphs(Numerics::Exact, 4), Schedule::Eager);
    let Some(mut fresh) = fresh else { return };
    let want = fresh.run(&|_, _| {});
    let options = with_graphs(Numerics::Exact, 4);
    let mut stale = Script::new(&weights, &options, Schedule::Eager).unwrap();
    let got = stale.run(&|watch, number| watch.no_writes.store(number == 2, Relaxed));
    assert!(got[..2] == want[..2] && got[2] != want[2]);
}

/// Recorded launches hold addresses of the old pool's time: nothing of them is left after a resize.
#[test]
fn a_new_pool_forgets_what_was_recorded() {
    let weights = weights();
    let options = with_graphs(Numerics::Exact, 4);
    let Some(mut script) = Script::new(&weights, &options, Schedule::Eager) else {
        return;
    };
    let first = script.run(&|_, _| {});
    script.executor.resize_kv(16, 30);
    script.done = vec![0; 3];
    let captures = Watch::take(&script.watch.captures);
    assert!(script.run(&|_, _| {}) == first);
    assert_eq!(Watch::take(&script.watch.captures), captures);
}

/// Steps that are timed have their parts, by the plain way; the others go by graphs.
#[test]
fn every_second_step_has_times_of_its_kernels() {
    let weights = weights();
    let mut options = with_graphs(Numerics::Exact, 4);
    options.steps.time_every = 2;
    let Some((mut executor, watch)) = watched(&weights, &options, |d| d.pretend_time(10)) else {
        return;
    };
    let tokens = prompt(50, 20);
    let table: Vec<BlockId> = (0..2).map(BlockId).collect();
    let mut step = |start: usize, end: usize| {
        let chunk = Chunk {
            id: RequestId(0),
            tokens: &tokens[start..end],
            start,
            block_table: &table,
            rows: LogitRows::Last,
            is_prefill: start == 0,
            is_last: true,
            adapter: None,
        };
        let mut rows = Vec::new();
        let clock = VirtualClock::new();
        executor
            .execute(&[chunk], &clock, &mut Bits(&mut rows))
            .unwrap()
    };
    let prompt = step(0, 9);
    assert!(prompt.gemm_ns.0 > 0 && prompt.prefill_attention_ns.0 > 0);
    assert_eq!(prompt.decode_attention_ns, Nanos::ZERO);
    let plain = step(9, 10);
    assert_eq!(plain, pb_model::forward::ForwardTiming::default());
    let decode = step(10, 11);
    // A tile and two heads of keys and values, in each of two layers.
    assert_eq!(decode.decode_attention_ns, Nanos(2 * 2 * 10));
    assert_eq!(decode.prefill_attention_ns, Nanos::ZERO);
    step(11, 12);
    assert_eq!(Watch::take(&watch.captures), 1);
    let totals = executor.kernel_totals();
    let of = |name: &str| totals.iter().find(|t| t.kernel == name).unwrap();
    assert_eq!(of("prefill_bf16_d64").launches, 2 * 2);
    // Four products a layer, in bf16; the head is in f32.
    assert_eq!(
        (of("gemm_bf16").launches, of("gemm_bf16_f32").launches),
        (2 * 8, 2)
    );
    let gemm = of("gemm_bf16").time + of("gemm_bf16_f32").time;
    assert_eq!(gemm, prompt.gemm_ns + decode.gemm_ns);
}

/// Rows with adapters are recorded too, also where tiles are filled up (three to four) and where
/// other rows have them than in the step that was recorded.
#[test]
fn recorded_steps_with_adapters_have_the_bits_of_plain_ones() {
    let weights = weights();
    let with = |numerics, graph_rows| GpuOptions {
        adapters: three_adapters(),
        ..with_graphs(numerics, graph_rows)
    };
    // Adapters of the sequences, and sizes that are recorded: rows and tiles.
    let cases = [
        ([Some(2), Some(0), Some(1)], 3),
        ([Some(1), None, Some(1)], 3),
    ];
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let run = |adapters, graph_rows, schedule| {
            let mut script = Script::new(&weights, &with(numerics, graph_rows), schedule)?;
            script.adapters = adapters;
            let rows = script.run(&|_, _| {});
            let counts = [&script.watch.captures, &script.watch.replays].map(Watch::take);
            Some((rows, counts))
        };
        let Some((none, _)) = run([None; 3], 0, Schedule::Eager) else {
            return;
        };
        for (adapters, captures) in cases {
            let (want, _) = run(adapters, 0, Schedule::Eager).unwrap();
            assert!(want != none);
            let (got, counts) = run(adapters, 4, Schedule::Random(5)).unwrap();
            assert!(got == want, "{numerics:?} {adapters:?}");
            assert_eq!(counts, [captures, 8 - 3], "{numerics:?} {adapters:?}");
        }
    }
}

/// Planted: a step runs on the adapters of the step before it.
#[test]
fn the_adapters_of_another_step_show() {
    let weights = weights();
    let options = GpuOptions {
        adapters: three_adapters(),
        ..with_graphs(Numerics::Exact, 4)
    };
    let rows = |stale: bool| {
        let mut script = Script::new(&weights, &options, Schedule::Eager)?;
        script.adapters = [Some(0), Some(0), Some(0)];
        script.step(&[0, 1, 2], &PREFIXES);
        script.step(&[0], &[1]);
        script.step(&[0], &[1]);
        // The same token at the same place, so that nothing but the adapter is stale.
        script.done[0] -= 1;
        script.adapters[0] = Some(1);
        script.watch.no_writes.store(stale, Relaxed);
        Some(script.step(&[0], &[1]))
    };
    let Some(fresh) = rows(false) else { return };
    assert!(rows(true).unwrap() != fresh);
}
