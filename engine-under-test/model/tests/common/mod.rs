//! Running a decoder in a test.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pb_contract::{BlockId, KvDtype, Numerics, Stream, TokenId, WallClock};
use pb_kernels_cpu::Dot;
use pb_model::Weights;
use pb_model::forward::{Decoder, ForwardOptions, LogitRow, LogitRows, LogitSink, SeqInput, build};
use pb_model::lora::AdapterSet;

/// Logits by batch entry and position.
pub(crate) type Rows = BTreeMap<(usize, usize), Vec<f64>>;

struct Sink<'a>(&'a mut Rows);

impl LogitSink for Sink<'_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        self.0.insert((seq, position), logits.to_f64());
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {
        panic!("a model has logits");
    }
}

/// A prompt and the index of its adapter.
pub(crate) type Prompt = (Vec<TokenId>, Option<usize>);

/// `n` random tokens.
pub(crate) fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut stream = Stream::new(seed, "prompt");
    (0..n).map(|_| stream.below(288) as TokenId).collect()
}

/// A decoder with 64 blocks of 16 tokens; `fast` with f32 activations.
pub(crate) fn decoder(
    weights: &Arc<Weights>,
    adapters: &Arc<AdapterSet>,
    numerics: Numerics,
) -> Box<dyn Decoder> {
    let options = ForwardOptions {
        numerics,
        kv_dtype: if numerics == Numerics::F64 {
            KvDtype::F64
        } else {
            KvDtype::F32
        },
        dot: Some(Dot::F32),
        ..ForwardOptions::default()
    };
    build(weights, adapters, options).unwrap()
}

/// Logits of every position of every prompt; each prompt is cut into chunks of its own size, and
/// the chunks with the same number share a batch. Blocks are interleaved over prompts.
pub(crate) fn logits(decoder: &mut dyn Decoder, prompts: &[Prompt], chunks: &[usize]) -> Rows {
    let mut rows = Rows::new();
    let block = |seq: usize, i: usize| BlockId((seq + prompts.len() * i) as u32);
    let tables: Vec<Vec<BlockId>> = (0..prompts.len())
        .map(|seq| (0..8).map(|i| block(seq, i)).collect())
        .collect();
    for step in 0.. {
        let mut entries = Vec::new();
        let mut batch = Vec::new();
        for (seq, (tokens, adapter)) in prompts.iter().enumerate() {
            let start = step * chunks[seq];
            let end = (start + chunks[seq]).min(tokens.len());
            if start >= end {
                continue;
            }
            entries.push(seq);
            batch.push(SeqInput {
                tokens: &tokens[start..end],
                start,
                block_table: &tables[seq],
                rows: LogitRows::All,
                is_prefill: true,
                adapter: *adapter,
            });
        }
        if batch.is_empty() {
            return rows;
        }
        let mut some = Rows::new();
        decoder.forward(&batch, &WallClock, &mut Sink(&mut some));
        rows.extend(some.into_iter().map(|((i, p), row)| ((entries[i], p), row)));
    }
    unreachable!("the steps have no end but the prompts'")
}

/// Euclidean distance of two sets of rows over the norm of the second.
pub(crate) fn distance(got: &Rows, want: &Rows) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut error, mut size) = (0.0, 0.0);
    for (key, want) in want {
        for (g, w) in got[key].iter().zip(want) {
            error += (g - w).powi(2);
            size += w * w;
        }
    }
    (error / size).sqrt()
}

/// The SmolLM2 file in the cache directory, or `None` with a message when it is not there.
pub(crate) fn real_model() -> Option<PathBuf> {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let home = var("PREFILLBENCH_HOME")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("prefillbench")))
        .or_else(|| Some(var("HOME")?.join(".cache/prefillbench")));
    let path = var("PREFILLBENCH_TEST_MODEL")
        .or_else(|| Some(home?.join("models/SmolLM2-135M-Instruct.Q4_1.gguf")))
        .filter(|path| path.is_file());
    if path.is_none() {
        eprintln!("skipped: needs `prefillbench model fetch smollm2-135m`");
    }
    path
}

/// A folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}
