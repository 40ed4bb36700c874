//! The whole engine over a generated model: a prompt after a cache hit and in chunks, against an
//! engine that has neither.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use pb_contract::{EngineConfig, Fault, Numerics, PrefixCacheKind, RequestId, Stream, TokenId};
use pb_core::EngineParts;
use pb_model::synth::{self, Kind, Size};

use super::outputs::run;
use super::{Check, Outcome, Row, caught_panic};
use crate::engine::{Rows, Tap, config, greedy};

/// Tokens of a prompt, and how many of them the two prompts share: 12 blocks and a half.
const PROMPT: usize = 230;
const SHARED: usize = 200;

/// Tokens to generate.
const OUTPUT: u32 = 8;

/// Tokens in a chunk.
const CHUNK: usize = 50;

/// The model with what the second prompt must give.
pub struct Subject {
    parts: EngineParts,
    first: Vec<TokenId>,
    second: Vec<TokenId>,
    rows: Rows,
    text: Vec<TokenId>,
}

impl Subject {
    /// Computes the reference: no cache, no chunks.
    ///
    /// # Errors
    /// The engine cannot be built or does not end.
    pub fn new() -> Result<Subject> {
        let model = synth::model(Kind::Sharp, Size::Tiny, 3)?;
        let vocab = model.config.vocab as u64;
        let mut stream = Stream::new(23, "cached prompts");
        let mut draw = |n| -> Vec<TokenId> {
            let token = |_| stream.below(vocab) as TokenId;
            (0..n).map(token).collect()
        };
        let first = draw(PROMPT);
        let second = [&first[..SHARED], &draw(PROMPT - SHARED)].concat();
        let mut subject = Subject {
            parts: EngineParts::new(Arc::new(model.weights), [7; 32]),
            first,
            second,
            rows: Rows::new(),
            text: Vec::new(),
        };
        let plain = config(Numerics::Exact, 32, 256);
        (subject.rows, subject.text) = subject.run(plain)?;
        Ok(subject)
    }

    /// Logits and text of the second prompt, after the first.
    fn run(&self, config: EngineConfig) -> Result<(Rows, Vec<TokenId>)> {
        let tap = Tap::default();
        let mut engine = self
            .parts
            .build_under_test(config)
            .map_err(|e| anyhow!(e))?;
        engine.set_tap(Some(Box::new(tap.clone())));
        let mut after = |id, prompt| run(&mut engine, &[greedy(id, prompt, OUTPUT)]);
        after(0, &self.first).map_err(|e| anyhow!(e))?;
        tap.take();
        let mut given = after(1, &self.second).map_err(|e| anyhow!(e))?;
        let text = given.tokens.remove(&RequestId(1)).unwrap_or_default();
        Ok((tap.take(), text))
    }

    /// The outcomes of both checks.
    ///
    /// # Errors
    /// The engine cannot be built.
    pub fn observe(&self, fault: Fault) -> Result<Row> {
        let cached = EngineConfig {
            chunked: true,
            max_batched_tokens: CHUNK,
            prefix_cache: PrefixCacheKind::HashChain,
            fault,
            ..config(Numerics::Exact, 32, 256)
        };
        let ran = caught_panic(|| self.run(cached)).map_err(|panic| anyhow!(panic));
        let (bits, text) = match ran.and_then(|ran| ran) {
            Ok((rows, text)) => (self.compare_rows(&rows), self.compare_text(&text)),
            Err(error) => (Err(format!("{error:#}")), Err(format!("{error:#}"))),
        };
        let pairs = [(Check::CachedBits, bits), (Check::GreedyText, text)];
        Ok(pairs.map(|(c, law)| (c, Outcome::of(law))).into())
    }

    /// Rows of the prompt that were computed, bit by bit.
    fn compare_rows(&self, rows: &Rows) -> Result<(), String> {
        let prompt = rows.iter().filter(|((_, at), _)| *at < PROMPT);
        let bits = |row: &[f64]| row.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
        let differs = |(key, row): &(&(RequestId, usize), &Vec<f64>)| {
            self.rows
                .get(*key)
                .is_none_or(|want| bits(want) != bits(row))
        };
        let seen = prompt.clone().count();
        let last = (RequestId(1), PROMPT - 1);
        if seen == 0 || seen > PROMPT - SHARED + 16 || !rows.contains_key(&last) {
            return Err(format!("{seen} rows of the prompt were computed"));
        }
        match prompt.filter(differs).count() {
            0 => Ok(()),
            rows => Err(format!("{rows} of {seen} rows differ")),
        }
    }

    fn compare_text(&self, text: &[TokenId]) -> Result<(), String> {
        let same = text.iter().zip(&self.text).take_while(|(a, b)| a == b);
        match same.count() {
            n if n == self.text.len() && n == text.len() => Ok(()),
            n => Err(format!("the text differs from token {n} on")),
        }
    }
}
