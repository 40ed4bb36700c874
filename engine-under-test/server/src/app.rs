//! What every handler shares.

use std::sync::{Arc, Mutex, PoisonError};

use pb_contract::wire::Prompt;
use pb_contract::{Clock, EngineConfig, Nanos, Stream, TokenId};
use tokio::sync::watch;

use crate::engine::EngineHandle;
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::text::{ModelAssets, TextModel};

/// Name and version of this server, as responses carry it.
pub(crate) const FINGERPRINT: &str = concat!("prefillbench-", env!("CARGO_PKG_VERSION"));

/// State of the server.
pub(crate) struct App {
    pub(crate) engine: EngineHandle,
    pub(crate) config: EngineConfig,
    pub(crate) assets: ModelAssets,
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// The instant at which `options.unix_at_start_s` was read.
    pub(crate) started: Nanos,
    /// True once the server is shutting down.
    pub(crate) draining: watch::Receiver<bool>,
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

    /// A fresh id such as `cmpl-9e4a8f63fadcb1a0`.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{prefix}-{:016x}", ids.next_u64())
    }

    /// Refuses new work while shutting down.
    pub(crate) fn check_accepting(&self) -> Result<(), ApiError> {
        if *self.draining.borrow() {
            return Err(ApiError::unavailable("The server is shutting down."));
        }
        Ok(())
    }

    /// Refuses requests for another model; no name means this one, as in vLLM.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if asked != self.options.model_name => {
                Err(ApiError::no_such_model(asked, &self.options.model_name))
            }
            _ => Ok(()),
        }
    }

    /// Turns prompts into tokens, off the threads that serve connections: a long text takes a
    /// while and other streams must not wait for it.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        prompt: Prompt,
        add_special: bool,
        want_text: bool,
    ) -> Result<Vec<PromptInput>, ApiError> {
        let app = Arc::clone(self);
        self.blocking(move || match prompt {
            Prompt::Text(text) => Ok(vec![app.tokens_of_text(text, add_special)?]),
            Prompt::Ids(ids) => Ok(vec![app.checked_tokens(ids, want_text)?]),
            Prompt::Texts(texts) => texts
                .into_iter()
                .map(|text| app.tokens_of_text(text, add_special))
                .collect(),
            Prompt::IdLists(lists) => lists
                .into_iter()
                .map(|ids| app.checked_tokens(ids, want_text))
                .collect(),
        })
        .await
    }

    /// Runs a computation off the threads that serve connections.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(ApiError::internal(format!("tokenizing failed: {error}"))))
    }

    fn tokens_of_text(&self, text: String, add_special: bool) -> Result<PromptInput, ApiError> {
        let ids = self.text().encode(&text, add_special);
        let ids = ids.map_err(|error| ApiError::field("prompt", error.to_string()))?;
        Ok(PromptInput {
            ids,
            text: Some(text),
        })
    }

    fn checked_tokens(&self, ids: Vec<TokenId>, want_text: bool) -> Result<PromptInput, ApiError> {
        self.check_vocabulary("prompt", &ids)?;
        if !want_text {
            return Ok(PromptInput { ids, text: None });
        }
        let text = self.text().decode(&ids);
        let text = text.map_err(|error| ApiError::field("prompt", error.to_string()))?;
        Ok(PromptInput {
            ids,
            text: Some(text),
        })
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

    /// How many tokens a request may generate: what it asks for, else `default`, else all that
    /// the context has room for.
    pub(crate) fn output_room(
        &self,
        prompt: usize,
        asked: Option<u32>,
        default: Option<u32>,
    ) -> Result<u32, ApiError> {
        let refuse = |message: String| {
            Err(ApiError::field(
                "input_tokens",
                format!("{message} (parameter=input_tokens, value={prompt})"),
            ))
        };
        if prompt == 0 {
            return Err(ApiError::field(
                "prompt",
                "The decoder prompt cannot be empty",
            ));
        }
        let context = self.config.max_model_len;
        if prompt > context {
            return refuse(format!(
                "This model's maximum context length is {context} tokens. However, your prompt \
                 contains {prompt} input tokens, which exceeds this limit even without any output \
                 tokens. Please reduce the length of the input prompt."
            ));
        }
        let pool = self
            .config
            .num_blocks
            .saturating_mul(self.config.block_size);
        if prompt > pool {
            return refuse(format!(
                "The KV cache holds {pool} tokens and your prompt contains {prompt} input tokens."
            ));
        }
        let room = u32::try_from(context - prompt).unwrap_or(u32::MAX);
        let wanted = asked.unwrap_or(default.unwrap_or(room).min(room).max(1));
        if wanted > room {
            let total = prompt as u64 + u64::from(wanted);
            return refuse(format!(
                "This model's maximum context length is {context} tokens. However, you requested \
                 {wanted} output tokens and your prompt contains {prompt} input tokens, for a \
                 total of {total} tokens. Please reduce the length of the input prompt or the \
                 number of requested output tokens."
            ));
        }
        Ok(wanted)
    }
}
