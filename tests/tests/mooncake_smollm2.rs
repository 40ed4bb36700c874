//! Mooncake traces as SmolLM2 gets them: lengths by 1/32, so that a name of 512 tokens is one
//! block of 16 and every row fits into 8,192 tokens, prompts of the tokens of a real text in its
//! own tokenizer. The scheduler and the cache of the engine must find exactly the blocks that the
//! names share, request by request. The engine computes in virtual time: hits do not depend on
//! weights. `tests/peers/trace_hits.py` asks the same of servers with the weights.
//!
//! Skipped with a message when the traces or the model file (for its tokenizer) are absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pb_contract::{
    EngineConfig, EngineEvent, EngineRequest, Numerics, PrefixCacheKind, VirtualClock,
};
use pb_core::{CostModel, Engine, EngineSpec, SimExecutor};
use pb_model::tokenizer::Tokenizer;
use pb_tests::engine::greedy;
use pb_workloads::text::PROSE;
use pb_workloads::trace::{LengthScale, PromptTokens, TraceFormat, TraceReader, TraceRow, fits};

const VOCAB: u32 = 49_152;
const CONTEXT: usize = 8192;
/// Tokens of a name in the trace, and after scaling.
const NAMED: usize = 512;
const BLOCK: usize = 16;

/// An accelerator that keeps up; hits do not depend on it.
const COST: &str = "source = \"made up: keeps up with the traces\"\n\
    [prefill]\nstep_ns = 5e6\ntoken_ns = 1e4\npair_ns = 0.1\n\
    [decode]\nstep_ns = 1e7\ncontext_token_ns = 1\nsequence_ns = 1e4\n";

fn tokenizer() -> Option<Tokenizer> {
    let model = pb_model::load(&pb_tests::real_model()?).expect("the model loads");
    Some(model.tokenizer)
}

/// Recorded and scaled rows of a trace.
fn rows(name: &str) -> Option<(Vec<TraceRow>, Vec<TraceRow>)> {
    let path = pb_tests::shared_data(&format!("mooncake/{name}_trace.jsonl"))?;
    let reader = TraceReader::open(&path, TraceFormat::Mooncake).expect("a readable trace");
    let recorded: Vec<TraceRow> = reader.collect::<Result<_, _>>().expect("good rows");
    let scale = LengthScale::new(1.0 / 32.0, NAMED).expect("a whole number of tokens");
    let mut scaled = recorded.clone();
    for row in &mut scaled {
        scale.apply(row);
    }
    Some((recorded, scaled))
}

/// What the names say, worked out from the recorded rows alone: a prompt of `n` recorded tokens
/// has `n / 512` whole blocks, the leading ones that occurred before are found, and never the one
/// that holds the last token.
fn planned(recorded: &[TraceRow]) -> Vec<usize> {
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut found = |row: &TraceRow| {
        let leading = row
            .block_ids
            .iter()
            .take_while(|id| seen.contains(*id))
            .count();
        seen.extend(&row.block_ids);
        // Blocks that are whole after scaling and end before the last token.
        let usable = match row.input_tokens % NAMED {
            0 => row.input_tokens / NAMED - 1,
            _ => row.input_tokens / NAMED,
        };
        leading.min(usable) * BLOCK
    };
    recorded.iter().map(&mut found).collect()
}

fn engine(blocks: usize, clock: &Arc<VirtualClock>) -> Engine {
    let config = EngineConfig {
        chunked: true,
        max_batched_tokens: 512,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size: BLOCK,
        ..pb_tests::engine::config(Numerics::Exact, blocks, CONTEXT)
    };
    let cost = CostModel::from_toml(COST).expect("good figures");
    let executor = SimExecutor::new(cost, Arc::clone(clock), VOCAB as usize);
    let spec = EngineSpec::simulated(VOCAB as usize, CONTEXT);
    Engine::new(config, spec, Box::new(executor)).expect("an engine")
}

/// Tokens found by each request, one request after the other.
fn served(rows: &[TraceRow], prompts: &PromptTokens) -> Vec<usize> {
    let clock = Arc::new(VirtualClock::new());
    let blocks = 1 + rows
        .iter()
        .map(|row| (row.input_tokens + row.output_tokens).div_ceil(BLOCK))
        .sum::<usize>();
    let mut engine = engine(blocks, &clock);
    let mut cached: BTreeMap<u64, usize> = BTreeMap::new();
    for (id, row) in rows.iter().enumerate() {
        // The output adds no block that another prompt could begin with.
        let request: EngineRequest = greedy(id as u64, &prompts.realise(row), 1);
        assert_eq!(request.prompt.len(), row.input_tokens);
        engine.add(request).expect("the request fits");
        while engine.has_work() {
            for event in engine.step(&*clock).expect("a step").events {
                if let EngineEvent::Admitted { id, cached_tokens } = event {
                    cached.insert(id.0, cached_tokens);
                }
            }
        }
    }
    engine.check().expect("a sound engine");
    cached.into_values().collect()
}

#[test]
fn scaled_traces_hit_exactly_the_planned_blocks_with_the_tokens_of_smollm2() {
    let Some(tokenizer) = tokenizer() else {
        return;
    };
    let text = tokenizer.encode(PROSE, false).expect("tokens");
    assert!(
        text.iter()
            .all(|id| *id < VOCAB && !tokenizer.is_special(*id))
    );
    for (name, count) in [("conversation", 12_031), ("synthetic", 3_993)] {
        let Some((recorded, scaled)) = rows(name) else {
            return;
        };
        assert_eq!(recorded.len(), count, "rows of {name}");
        let long = scaled.iter().filter(|row| !fits(row, CONTEXT)).count();
        assert_eq!(long, 0, "every row of {name} fits");
        let prompts = PromptTokens::from_text(text.clone(), 1).expect("enough tokens");
        let (planned, found) = (planned(&recorded), served(&scaled, &prompts));
        let wrong = (0..count).find(|&at| planned[at] != found[at]);
        assert_eq!(wrong, None, "{name}: the first request with other hits");
        let sum: usize = found.iter().sum();
        assert!(sum > 0, "{name} shares blocks");
        eprintln!("{name}: {sum} of {} prompt tokens found", total(&scaled));
    }
}

fn total(rows: &[TraceRow]) -> usize {
    rows.iter().map(|row| row.input_tokens).sum()
}
