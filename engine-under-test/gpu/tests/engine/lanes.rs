//! Copies beside the computation: whatever order the events leave open, results are the same.

use std::sync::atomic::Ordering::Relaxed;

use pb_contract::BlockId;
use pb_core::{Chunk, Executor};
use pb_kernels_cuda::{Lane, Schedule};
use pb_model::forward::{LogitRows, LogitSink};

use super::*;
use crate::common::{Watch, watched};

/// Tokens before those that are looked at: three blocks, so that both ways of an image are used
/// again.
const PREFIX: usize = 48;

struct Bits(Vec<u32>);

impl LogitSink for Bits {
    fn row(&mut self, _: usize, _: usize, logits: LogitRow<'_>) {
        let LogitRow::F32(row) = logits else {
            panic!("not f32")
        };
        self.0.extend(row.iter().map(|x| x.to_bits()));
    }

    fn token(&mut self, _: usize, _: TokenId) {
        panic!("logits were wanted");
    }
}

/// Logits of tokens from `start` on with the blocks of `table`.
fn compute(
    executor: &mut dyn Executor,
    tokens: &[TokenId],
    start: usize,
    table: &[u32],
) -> Result<Vec<u32>, String> {
    let table: Vec<BlockId> = table.iter().map(|b| BlockId(*b)).collect();
    let chunk = Chunk {
        id: RequestId(1),
        tokens: &tokens[start..],
        start,
        block_table: &table,
        rows: LogitRows::All,
        is_prefill: true,
        is_last: true,
        adapter: None,
    };
    let mut bits = Bits(Vec::new());
    executor.execute(&[chunk], &VirtualClock::new(), &mut bits)?;
    Ok(bits.0)
}

/// A prefix is computed, its blocks are read, lost, put elsewhere and gone on with; a block is
/// copied while its image arrives, and read again. Images and logits.
fn there_and_back(executor: &mut dyn Executor) -> Result<(Vec<Vec<u8>>, Vec<u32>), String> {
    let tokens = prompt(5, PREFIX + 3);
    compute(executor, &tokens[..PREFIX], 0, &[20, 4, 9])?;
    let read = |executor: &dyn Executor, block: u32| {
        let mut image = Vec::new();
        executor.read_block(BlockId(block), &mut image);
        image
    };
    let mut images: Vec<_> = [20, 4, 9].map(|b| read(executor, b)).to_vec();
    executor.resize_kv(16, 24);
    for (image, block) in images.iter().zip([7, 8, 2]) {
        executor.write_block(BlockId(block), image)?;
    }
    // Elsewhere something goes on that waits for none of them.
    compute(executor, &prompt(6, 20), 0, &[12, 13])?;
    executor.copy_block(BlockId(2), BlockId(11));
    let logits = compute(executor, &tokens, PREFIX, &[7, 8, 11, 3])?;
    images.push(read(executor, 11));
    Ok((images, logits))
}

fn schedules() -> Vec<Schedule> {
    let late = Lane::ALL.map(Schedule::Late);
    let random = (1..=4).map(Schedule::Random);
    late.into_iter().chain(random).collect()
}

#[test]
fn images_arrive_before_they_are_used_in_every_order_that_events_allow() {
    let weights = weights();
    let options = options(Numerics::Exact, KvDtype::Bf16);
    let run = |schedule, plant: fn(&Watch)| {
        let (mut executor, watch) = watched(&weights, &options, |d| d.schedule(schedule).unwrap())?;
        plant(&watch);
        Some(there_and_back(executor.as_mut()))
    };
    let Some(want) = run(Schedule::Eager, |_| {}) else {
        return;
    };
    let want = want.unwrap();
    assert!(want.0[2] == want.0[3] && want.0[0] != want.0[1]);
    for schedule in schedules() {
        let got = run(schedule, |_| {}).unwrap();
        assert!(got.as_ref() == Ok(&want), "{schedule:?}");
    }
    // Planted: lanes, or the host, that do not wait. Some order shows it, in the data or by a fault
    // of memory.
    type Plant = fn(&Watch);
    let plants: [(&str, Plant); 2] = [
        ("lanes", |w| w.no_waits.store(true, Relaxed)),
        ("the host", |w| w.no_finish.store(true, Relaxed)),
    ];
    for (what, plant) in plants {
        let differs = |schedule: &Schedule| run(*schedule, plant).unwrap().as_ref() != Ok(&want);
        let caught: Vec<Schedule> = schedules().into_iter().filter(differs).collect();
        println!("without waits of {what}: caught under {caught:?}");
        assert!(!caught.is_empty(), "nothing shows missing waits of {what}");
    }
}

/// The whole engine, short of blocks: swapped requests come back bit for bit in any order.
#[test]
fn swapping_gives_the_same_tokens_in_every_order_that_events_allow() {
    let weights = weights();
    let run_under = |schedule| {
        let mut config = config(13, 16);
        config.scheduling.preemption = Preemption::Swap;
        config.scheduling.swap_blocks = 9;
        let options = GpuOptions {
            block_size: config.block_size,
            num_blocks: config.num_blocks,
            ..options(config.numerics, config.kv_dtype)
        };
        let (executor, _) = watched(&weights, &options, |d| d.schedule(schedule).unwrap())?;
        let parts = EngineParts::new(Arc::new(weights.clone()), [7; 32]);
        let mut engine = Engine::new(config, parts.spec(), executor).unwrap();
        let (tokens, _) = run(&mut engine, &requests());
        assert!(engine.counters().swapped_out_blocks > 0);
        Some(tokens)
    };
    let Some(want) = run_under(Schedule::Eager) else {
        return;
    };
    assert_eq!(run_under(Schedule::Late(Lane::Copy)).unwrap(), want);
    assert_eq!(run_under(Schedule::Random(9)).unwrap(), want);
}
