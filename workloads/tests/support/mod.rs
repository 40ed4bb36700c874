//! Tokenizers whose counts are plain to see, and short ways to a plan.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use pb_contract::TokenId;
use pb_contract::plan::{ChatTurn, Plan, PlannedBody, PlannedPrompt};
use pb_workloads::{
    Dataset, DatasetError, Form, LoadShape, PlanOptions, Planned, Source, Tokenizer,
};

/// One token for each word behind a token at the start; a chat has three more for each message and
/// two at its end.
#[derive(Clone, Debug)]
pub(crate) struct WordTokenizer {
    pub(crate) identity: &'static str,
    /// Added to every id, so that two of them differ.
    pub(crate) shift: TokenId,
}

pub(crate) const WORDS: WordTokenizer = WordTokenizer {
    identity: "words",
    shift: 0,
};

impl WordTokenizer {
    fn words(&self, text: &str, ids: &mut Vec<TokenId>) {
        for word in text.split_whitespace() {
            let hash = word.bytes().fold(17u64, |hash, byte| {
                hash.wrapping_mul(1_000_003).wrapping_add(u64::from(byte)) % 4_000_000_007
            });
            ids.push(10 + self.shift + hash as TokenId);
        }
    }
}

impl Tokenizer for WordTokenizer {
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let mut ids = vec![1];
        self.words(text, &mut ids);
        ids
    }

    fn decode(&self, ids: &[TokenId]) -> String {
        format!("{ids:?}")
    }

    fn encode_chat(&self, turns: &[ChatTurn]) -> Option<Vec<TokenId>> {
        let mut ids = Vec::new();
        for turn in turns {
            ids.extend([2, 100 + turn.role.len() as TokenId]);
            self.words(&turn.content, &mut ids);
            ids.push(3);
        }
        ids.extend([2, 109]);
        Some(ids)
    }

    fn identity(&self) -> String {
        self.identity.to_owned()
    }
}

pub(crate) fn dataset(text: &str) -> Dataset {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn shape(text: &str) -> LoadShape {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn ids() -> Source<'static> {
    Source::ids(100..30_000)
}

pub(crate) fn seeded(seed: u64) -> PlanOptions {
    PlanOptions {
        seed,
        ..PlanOptions::default()
    }
}

/// A plan of token ids.
pub(crate) fn planned(
    data: &str,
    load: &str,
    options: &PlanOptions,
) -> Result<Planned, DatasetError> {
    pb_workloads::plan(&dataset(data), &shape(load), &ids(), options)
}

/// Every body by its id.
pub(crate) fn bodies(plan: &Plan) -> Vec<&PlannedBody> {
    let mut all: Vec<(u64, &PlannedBody)> = Vec::new();
    all.extend(plan.open.iter().map(|r| (r.id.0, &r.body)));
    for part in &plan.closed {
        all.extend((part.first_id.0..).zip(&part.bodies));
    }
    let turns = plan.sessions.iter().flat_map(|session| &session.turns);
    all.extend(turns.map(|turn| (turn.id.0, &turn.body)));
    all.sort_by_key(|(id, _)| *id);
    let numbered = all.iter().zip(0..).all(|((id, _), n)| *id == n);
    assert!(numbered, "ids are 0, 1, ...");
    all.into_iter().map(|(_, body)| body).collect()
}

pub(crate) fn prompt(body: &PlannedBody) -> &[TokenId] {
    body.prompt.ids().expect("a prompt of token ids")
}

pub(crate) fn shared(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Hits by comparing every prompt with every one before it.
pub(crate) fn hits_by_pairs(prompts: &[&[TokenId]], block_size: usize) -> Vec<usize> {
    let found = |at: usize| {
        let most = prompts[at].len().saturating_sub(1);
        let common = prompts[..at].iter().map(|other| shared(prompts[at], other));
        common.max().unwrap_or(0).min(most) / block_size * block_size
    };
    (0..prompts.len()).map(found).collect()
}

/// A small trace made by hand.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(name)
}

/// The settings of a data set that is a file.
pub(crate) fn file(kind: &str, path: &Path, more: &str) -> String {
    format!("dataset_name = \"{kind}\"\npath = {path:?}\n{more}")
}

/// Options for prompts that are sent as text.
pub(crate) fn text(form: Form) -> PlanOptions {
    PlanOptions { form, ..seeded(3) }
}

/// A plan of texts, with the tokenizer that counts words.
pub(crate) fn told(data: &str, load: &str, form: Form) -> Result<Planned, DatasetError> {
    let source = Source::words().with_tokenizer(&WORDS);
    pb_workloads::plan(&dataset(data), &shape(load), &source, &text(form))
}

/// A prompt as text.
pub(crate) fn said(body: &PlannedBody) -> String {
    match &body.prompt {
        PlannedPrompt::Text(text) => text.clone(),
        PlannedPrompt::Chat(turns) => {
            let turns = turns.iter().map(|t| format!("{}: {}", t.role, t.content));
            turns.collect::<Vec<_>>().join(" / ")
        }
        PlannedPrompt::Ids(ids) => format!("{ids:?}"),
    }
}

/// A public file or directory, or `None` with a message.
pub(crate) fn public(inside: &str) -> Option<PathBuf> {
    let inside = PathBuf::from("data").join(inside);
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| PathBuf::from(dir).join(&inside));
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(&inside);
    let path = [named, Some(beside)]
        .into_iter()
        .flatten()
        .find(|path| path.exists());
    if path.is_none() {
        let what = inside.display();
        eprintln!("skipped: no {what}; set PREFILLBENCH_SHARED to the folder that holds data/");
    }
    path
}
