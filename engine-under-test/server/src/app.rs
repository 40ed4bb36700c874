//! What every handler shares.

use std::sync::{Arc, Mutex, PoisonError};

use pb_contract::wire::Prompt;
use pb_contract::{Clock, EngineConfig, Nanos, QueueOrder, Stream, TokenId};
use tokio::sync::watch;

use crate::budget::BodyBudget;
use crate::engine::EngineHandle;
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::phase::Phase;
use crate::text::{ModelAssets, TextModel};
use crate::text_work::TextWork;

/// Name and version of this server, as responses carry it.
pub(crate) const FINGERPRINT: &str = concat!("prefillbench-", env!("CARGO_PKG_VERSION"));

/// State of the server.
pub(crate) struct App {
    pub(crate) engine: EngineHandle,
    pub(crate) config: EngineConfig,
    /// Bytes reserved for the KV pool.
    pub(crate) kv_pool_bytes: usize,
    /// What the names of KV blocks start from.
    pub(crate) identity: [u8; 32],
    pub(crate) assets: ModelAssets,
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// The instant at which `options.unix_at_start_s` was read.
    pub(crate) started: Nanos,
    /// How far the server is on its way to the end.
    pub(crate) phase: watch::Receiver<Phase>,
    /// Memory for request bodies.
    pub(crate) bodies: Arc<BodyBudget>,
    /// Work on the text of requests that go to the engine.
    pub(crate) texts: TextWork,
    /// Work on the text of `/tokenize` and `/detokenize`, apart so that it never makes a request
    /// for the engine wait.
    pub(crate) side_texts: TextWork,
    /// Length in bytes of the longest token.
    pub(crate) longest_token_bytes: usize,
    /// Source of response ids.
    pub(crate) ids: Mutex<Stream>,
}

/// A prompt as tokens, with its text when the answer repeats it.
#[derive(Debug)]
pub(crate) struct PromptInput {
    pub(crate) ids: Vec<TokenId>,
    pub(crate) text: Option<String>,
}

impl App {
    /// The tokenizer.
    pub(crate) fn text(&self) -> &dyn TextModel {
        &*self.assets.text
    }

    /// Unix seconds, by the monotonic clock from the start on.
    pub(crate) fn created(&self) -> u64 {
        let up = self.clock.now().saturating_sub(self.started);
        self.options.unix_at_start_s + up.0 / 1_000_000_000
    }

    /// The name of this server among others.
    pub(crate) fn engine_id(&self) -> String {
        match &self.options.kv {
            Some(kv) => kv.engine_id.clone(),
            None => format!("engine-{:016x}", self.options.id_seed),
        }
    }

    /// A fresh id such as `cmpl-9e4a8f63fadcb1a0`.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{prefix}-{:016x}", ids.next_u64())
    }

    /// Refuses new work while shutting down.
    pub(crate) fn check_accepting(&self) -> Result<(), ApiError> {
        if *self.phase.borrow() >= Phase::Draining {
            return Err(ApiError::shutting_down());
        }
        Ok(())
    }

    /// The adapter that a request for the model `asked` is to be served with. As in vLLM, the name
    /// of an adapter chooses that adapter, and no name means the model itself.
    pub(crate) fn adapter(&self, asked: Option<&str>) -> Result<Option<String>, ApiError> {
        let served = &self.options.model_name;
        let Some(asked) = asked.filter(|asked| asked != served) else {
            return Ok(None);
        };
        let adapters = &self.assets.adapters;
        if let Some(adapter) = adapters.iter().find(|adapter| adapter.name == asked) {
            return Ok(Some(adapter.name.clone()));
        }
        let names = adapters.iter().map(|adapter| &adapter.name);
        let names: Vec<&str> = [served].into_iter().chain(names).map(|n| &**n).collect();
        Err(ApiError::no_such_model(asked, &names.join(", ")))
    }

    /// Refuses a priority that nobody would heed, as vLLM does.
    pub(crate) fn check_priority(&self, priority: i64) -> Result<(), ApiError> {
        if priority == 0 || self.config.scheduling.queue == QueueOrder::Priority {
            return Ok(());
        }
        let message = format!(
            "Got priority {priority} but Priority scheduling is not enabled. \
             (parameter=priority, value={priority})"
        );
        Err(ApiError::field("priority", message))
    }

    /// Turns prompts into tokens. Prompts that cannot fit are refused before any work is done.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        prompt: Prompt,
        add_special: bool,
        want_text: bool,
    ) -> Result<Vec<PromptInput>, ApiError> {
        self.check_lengths(&prompt)?;
        let mut inputs = Vec::new();
        match prompt {
            Prompt::Text(text) => inputs.push(self.tokens_of_text(text, add_special).await?),
            Prompt::Ids(ids) => inputs.push(self.checked_tokens(ids, want_text).await?),
            // One after the other: a client that leaves is noticed in between.
            Prompt::Texts(texts) => {
                for text in texts {
                    inputs.push(self.tokens_of_text(text, add_special).await?);
                }
            }
            Prompt::IdLists(lists) => {
                for ids in lists {
                    inputs.push(self.checked_tokens(ids, want_text).await?);
                }
            }
        }
        Ok(inputs)
    }

    async fn tokens_of_text(
        self: &Arc<Self>,
        text: String,
        add_special: bool,
    ) -> Result<PromptInput, ApiError> {
        let app = Arc::clone(self);
        self.texts
            .run(text.len(), move || {
                let ids = app.text().encode(&text, add_special);
                let ids = ids.map_err(|error| ApiError::field("prompt", error.to_string()))?;
                Ok(PromptInput {
                    ids,
                    text: Some(text),
                })
            })
            .await
    }

    async fn checked_tokens(
        self: &Arc<Self>,
        ids: Vec<TokenId>,
        want_text: bool,
    ) -> Result<PromptInput, ApiError> {
        self.check_vocabulary("prompt", &ids)?;
        if !want_text {
            return Ok(PromptInput { ids, text: None });
        }
        let app = Arc::clone(self);
        self.texts
            .run(ids.len(), move || {
                let text = app.text().decode(&ids);
                let text = text.map_err(|error| ApiError::field("prompt", error.to_string()))?;
                Ok(PromptInput {
                    ids,
                    text: Some(text),
                })
            })
            .await
    }

    /// Refuses ids that are not tokens of the model.
    pub(crate) fn check_vocabulary(&self, name: &str, ids: &[TokenId]) -> Result<(), ApiError> {
        let size = self.text().vocab_size();
        match ids.iter().find(|&&id| id as usize >= size) {
            Some(id) => Err(ApiError::field(
                name,
                format!("Token id {id} is out of vocabulary"),
            )),
            None => Ok(()),
        }
    }
}
