//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use pb_contract::TokenId;
use pb_contract::chat::ChatLogprobs;
use pb_contract::wire::{Prompt, Usage};

use crate::app::{App, FINGERPRINT};
use crate::body;
use crate::collector::Piece;
use crate::completions::{check_choices, split_finish};
use crate::error::ApiError;
use crate::generation::{Generation, Length};
use crate::job::ChatJob;
use crate::kv::KvTransferParams;
use crate::logprobs;
use crate::shape::{Chat, ChatChoice, ChatDelta, ChatMessage, Delta, Event};
use crate::sse::{self, EventWriter, Events, Usages};

/// The handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrival = app.clock.now();
    let body::Whole { bytes, share } =
        body::read(&app, request, app.options.body_limit_bytes).await?;
    app.check_accepting()?;
    let job = ChatJob::parse(&bytes, app.options.max_logprobs)?;
    drop(bytes);
    let ChatJob {
        mut common,
        turns,
        add_generation_prompt,
    } = job;
    common.adapter = app.adapter(common.model.as_deref())?;
    check_choices(&app, 1, common.n)?;
    app.check_kv(&common.kv, common.n)?;
    let taken = common.go_on();
    let renderer = Arc::clone(&app);
    let length = turns.iter().map(|turn| turn.content.len()).sum();
    let render = move || {
        let text = renderer.text().render_chat(&turns, add_generation_prompt);
        text.map_err(|error| ApiError::field("messages", error.to_string()))
    };
    let text = app.texts.run(length, render).await?;
    // The template writes the special tokens itself.
    let add_special = common.add_special_tokens.unwrap_or(false);
    let prompts = app.prepare(Prompt::Text(text), add_special, false).await?;
    let length = Length {
        default: None,
        prompt_only: false,
    };
    let mut generation = Generation::start(&app, &prompts, &common, &length, arrival)?;
    // What is left of the body now is bounded by the model's context.
    drop(share);
    if taken {
        generation.wait_for_start().await?;
    }
    let answer = Answer {
        id: app.new_id("chatcmpl"),
        created: app.created(),
        model: common.answering(&app.options.model_name).to_owned(),
        prompt_ids: prompts.into_iter().flat_map(|prompt| prompt.ids).collect(),
        logprobs: common.params.logprobs,
        prompt_logprobs: common.params.prompt_logprobs.is_some(),
        return_token_ids: common.return_token_ids,
        app,
    };
    if common.stream {
        let opened = vec![taken; common.n];
        let writer = Writer {
            answer,
            opened,
            include_usage: common.include_usage,
            transfer: None,
        };
        return Ok(sse::respond(
            generation,
            writer,
            common.include_usage,
            common.continuous_usage,
        ));
    }
    let pieces = generation.finish().await?;
    Ok(answer.whole(pieces, generation.usage()))
}

/// What every body of this answer needs.
struct Answer {
    app: Arc<App>,
    id: String,
    created: u64,
    /// The name of what answers: the model or an adapter.
    model: String,
    prompt_ids: Vec<TokenId>,
    /// Candidates a token when log-probabilities were asked for.
    logprobs: Option<u32>,
    prompt_logprobs: bool,
    return_token_ids: bool,
}

impl Answer {
    fn lists(&self, piece: &Piece) -> Option<ChatLogprobs> {
        self.logprobs
            .map(|count| logprobs::chat(self.app.text(), &piece.logprobs, count))
    }

    fn ids(&self, ids: &[TokenId]) -> Option<Vec<TokenId>> {
        self.return_token_ids.then(|| ids.to_vec())
    }

    fn whole(&self, mut pieces: Vec<Piece>, usage: Usage) -> Response {
        let kv_transfer_params = pieces.iter_mut().find_map(|piece| piece.transfer.take());
        let text = self.app.text();
        let first = pieces.first().filter(|_| self.prompt_logprobs);
        let prompt_logprobs =
            first.map(|piece| logprobs::prompt_list(text, &piece.prompt_logprobs));
        let choices = pieces.into_iter().enumerate().map(|(index, piece)| {
            let lists = self.lists(&piece);
            let token_ids = self.ids(&piece.tokens);
            let (finish_reason, stop_reason) = split_finish(piece.finish);
            let message = ChatMessage {
                role: "assistant",
                content: piece.text,
                ..ChatMessage::default()
            };
            ChatChoice {
                index,
                message,
                logprobs: lists,
                finish_reason,
                stop_reason,
                token_ids,
            }
        });
        Json(Chat {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            choices: choices.collect(),
            service_tier: None,
            system_fingerprint: FINGERPRINT,
            usage,
            prompt_logprobs,
            prompt_token_ids: self.ids(&self.prompt_ids),
            kv_transfer_params,
        })
        .into_response()
    }

    fn event(&self, choices: Vec<ChatDelta>) -> Event<'_, ChatDelta> {
        Event {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
            prompt_token_ids: None,
            system_fingerprint: None,
            kv_transfer_params: None,
        }
    }
}

struct Writer {
    answer: Answer,
    /// Choices whose role has been sent.
    opened: Vec<bool>,
    include_usage: bool,
    /// Told with the end, and again in whatever event is the last.
    transfer: Option<KvTransferParams>,
}

impl Writer {
    /// The event that names the role, sent with the first token as vLLM does, so that nobody
    /// takes it for a sign that a token exists.
    fn open(&self, events: &mut Events, index: usize, usage: Option<Usages>) {
        let delta = Delta {
            role: Some("assistant"),
            content: String::new(),
        };
        let mut event = self.answer.event(vec![ChatDelta {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        }]);
        event.usage = usage.map(|usage| usage.opening);
        event.prompt_token_ids = Some(self.answer.ids(&self.answer.prompt_ids));
        events.push(&event);
    }
}

impl EventWriter for Writer {
    fn piece(&mut self, events: &mut Events, index: usize, piece: Piece, usage: Option<Usages>) {
        if !std::mem::replace(&mut self.opened[index], true) {
            self.open(events, index, usage);
        }
        let answer = &self.answer;
        let lists = answer.lists(&piece);
        let token_ids = answer.ids(&piece.tokens);
        let last = piece.finish.is_some();
        self.transfer = piece.transfer.or(self.transfer.take());
        let (finish_reason, stop_reason) = split_finish(piece.finish);
        let mut event = answer.event(vec![ChatDelta {
            index,
            delta: Delta {
                role: None,
                content: piece.text,
            },
            logprobs: lists,
            finish_reason,
            stop_reason: last.then_some(stop_reason),
            token_ids: Some(token_ids),
        }]);
        event.usage = usage.map(|usage| usage.current);
        event.system_fingerprint = (last && !self.include_usage).then_some(FINGERPRINT);
        event.kv_transfer_params.clone_from(&self.transfer);
        events.push(&event);
    }

    fn usage(&mut self, events: &mut Events, usage: Usage) {
        let mut event = self.answer.event(Vec::new());
        event.usage = Some(usage);
        event.system_fingerprint = Some(FINGERPRINT);
        event.kv_transfer_params.clone_from(&self.transfer);
        events.push(&event);
    }
}
