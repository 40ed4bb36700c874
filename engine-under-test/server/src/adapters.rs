//! The engine core and the tokenizer of this project behind the server's two traits.

use std::sync::Arc;

use pb_contract::{Clock, EngineConfig, EngineRequest, Nanos, RequestId, TokenId};
use pb_core::disagg::{HandedOff, KvEngine, KvTask};
use pb_core::{DeviceMemory, Engine, ExecError, StepOutput};
use pb_kv::CacheEvent;
use pb_model::{ChatMessage, DetokenizeStream, Tokenizer};
use pb_transfer::TransferRow;

use crate::core_api::{Core, CoreFailure, CoreStatus, CoreStep, Refusal};
use crate::text::{ChatTurn, Detokenizer, TextError, TextModel};

impl Core for Engine {
    fn add(&mut self, request: EngineRequest) -> Result<(), Refusal> {
        Engine::add(self, request).map_err(|error| Refusal(error.to_string()))
    }

    fn abort(&mut self, id: RequestId) -> bool {
        Engine::abort(self, id)
    }

    fn has_work(&self) -> bool {
        Engine::has_work(self)
    }

    fn set_lock_wait(&mut self, waited: Nanos) {
        Engine::set_lock_wait(self, waited);
    }

    fn step(&mut self, clock: &dyn Clock) -> Result<CoreStep, CoreFailure> {
        step_of(Engine::step(self, clock))
    }

    fn reset_prefix_cache(&mut self) -> bool {
        Engine::reset_prefix_cache(self)
    }

    fn status(&self) -> CoreStatus {
        CoreStatus {
            buckets: Engine::buckets(self),
            counters: Engine::counters(self),
            cache: *self.kv().stats(),
            tiers: self.tiers().stats(),
            kv: None,
            kernels: self.kernel_totals(),
        }
    }

    fn kv_pool_bytes(&self) -> usize {
        self.kv_bytes()
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Engine::device_memory(self)
    }

    fn config(&self) -> &EngineConfig {
        Engine::config(self)
    }

    fn record_cache_events(&mut self) {
        Engine::record_cache_events(self);
    }

    fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        Engine::take_cache_events(self)
    }

    fn identity(&self) -> [u8; 32] {
        Engine::identity(self)
    }
}

fn step_of(step: Result<StepOutput, ExecError>) -> Result<CoreStep, CoreFailure> {
    match step {
        Ok(step) => Ok(CoreStep {
            row: step.row,
            events: step.events,
        }),
        Err(error) => Err(CoreFailure {
            message: error.to_string(),
            failed: error.failed,
        }),
    }
}

impl Core for KvEngine {
    fn add(&mut self, request: EngineRequest) -> Result<(), Refusal> {
        self.add_part(request, KvTask::Whole)
    }

    fn add_part(&mut self, request: EngineRequest, task: KvTask) -> Result<(), Refusal> {
        KvEngine::add(self, request, task).map_err(|error| Refusal(error.to_string()))
    }

    fn abort(&mut self, id: RequestId) -> bool {
        KvEngine::abort(self, id)
    }

    fn has_work(&self) -> bool {
        KvEngine::has_work(self)
    }

    fn set_lock_wait(&mut self, waited: Nanos) {
        self.engine_mut().set_lock_wait(waited);
    }

    fn step(&mut self, clock: &dyn Clock) -> Result<CoreStep, CoreFailure> {
        step_of(KvEngine::step(self, clock))
    }

    fn reset_prefix_cache(&mut self) -> bool {
        self.engine_mut().reset_prefix_cache()
    }

    fn set_waker(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        KvEngine::set_waker(self, wake);
    }

    fn hear(&mut self) -> Vec<(RequestId, String)> {
        self.take_news();
        self.take_failed()
    }

    fn is_blocked(&self) -> bool {
        KvEngine::is_blocked(self)
    }

    fn take_handed_off(&mut self) -> Vec<HandedOff> {
        KvEngine::take_handed_off(self)
    }

    fn take_fetched(&mut self) -> Vec<RequestId> {
        KvEngine::take_fetched(self)
    }

    fn release(&mut self, ticket: u64) -> bool {
        KvEngine::release(self, ticket)
    }

    fn take_transfers(&mut self) -> Vec<TransferRow> {
        self.take_rows()
    }

    fn record_cache_events(&mut self) {
        self.engine_mut().record_cache_events();
    }

    fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.engine_mut().take_cache_events()
    }

    fn identity(&self) -> [u8; 32] {
        self.engine().identity()
    }

    fn status(&self) -> CoreStatus {
        CoreStatus {
            kv: Some(self.stats()),
            ..Core::status(self.engine())
        }
    }

    fn kv_pool_bytes(&self) -> usize {
        self.engine().kv_bytes()
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        self.engine().device_memory()
    }

    fn config(&self) -> &EngineConfig {
        self.engine().config()
    }
}

/// A model's tokenizer with the size of the model's own vocabulary, which may be larger.
pub struct TokenizerText {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
}

impl TokenizerText {
    /// `vocab_size` is the number of rows of the model's embedding.
    pub fn new(tokenizer: Tokenizer, vocab_size: usize) -> Self {
        TokenizerText {
            tokenizer: Arc::new(tokenizer),
            vocab_size,
        }
    }
}

fn text_error(error: pb_model::ModelError) -> TextError {
    TextError(error.to_string())
}

impl TextModel for TokenizerText {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode(text, add_special).map_err(text_error)
    }

    fn decode(&self, ids: &[TokenId]) -> Result<String, TextError> {
        Ok(self.tokenizer.decode(ids, false))
    }

    fn token_text(&self, id: TokenId) -> String {
        self.tokenizer.token_str(id)
    }

    fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.tokenizer.token_bytes(id).to_vec()
    }

    fn detokenizer(&self) -> Box<dyn Detokenizer> {
        let stream = DetokenizeStream::new(&self.tokenizer, true);
        Box::new(Incremental {
            tokenizer: Arc::clone(&self.tokenizer),
            stream,
        })
    }

    fn render_chat(
        &self,
        turns: &[ChatTurn],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let messages: Vec<ChatMessage> = turns
            .iter()
            .map(|turn| ChatMessage::new(&turn.role, &turn.content))
            .collect();
        let text = self
            .tokenizer
            .apply_chat_template(&messages, add_generation_prompt);
        text.map_err(text_error)
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn longest_token_bytes(&self) -> usize {
        self.tokenizer.longest_token_bytes()
    }
}

struct Incremental {
    tokenizer: Arc<Tokenizer>,
    stream: DetokenizeStream,
}

impl Detokenizer for Incremental {
    fn push(&mut self, token: TokenId) -> String {
        self.stream.push(&self.tokenizer, token)
    }
}
