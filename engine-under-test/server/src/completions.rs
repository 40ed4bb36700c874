//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use pb_contract::TokenId;
use pb_contract::wire::{CompletionLogprobs, Prompt, Usage};

use crate::app::{App, FINGERPRINT, PromptInput};
use crate::body;
use crate::collector::Piece;
use crate::error::ApiError;
use crate::generation::{Generation, Length};
use crate::job::CompletionJob;
use crate::kv::KvTransferParams;
use crate::logprobs::{self, Names};
use crate::shape::{Completion, CompletionChoice, CompletionDelta, Event};
use crate::sse::{self, EventWriter, Events, Usages};

/// Output tokens when the request does not say.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// The handler.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrival = app.clock.now();
    let body::Whole { bytes, share } =
        body::read(&app, request, app.options.body_limit_bytes).await?;
    app.check_accepting()?;
    let job = CompletionJob::parse(&bytes, app.options.max_logprobs)?;
    drop(bytes);
    let CompletionJob {
        mut common,
        prompt,
        mut echo,
        echo_only,
        tokens_as_ids,
    } = job;
    common.adapter = app.adapter(common.model.as_deref())?;
    check_choices(&app, prompt_count(&prompt), common.n)?;
    app.check_kv(&common.kv, prompt_count(&prompt) * common.n)?;
    let taken = common.go_on();
    // What comes before the first token was in the other engine's answer.
    echo &= !taken;
    let add_special = common.add_special_tokens.unwrap_or(true);
    let prompts = app.prepare(prompt, add_special, echo).await?;
    let length = Length {
        default: Some(DEFAULT_MAX_TOKENS),
        prompt_only: echo_only,
    };
    let mut generation = Generation::start(&app, &prompts, &common, &length, arrival)?;
    // What is left of the body now is bounded by the model's context.
    drop(share);
    if taken {
        generation.wait_for_start().await?;
    }
    let choices = prompts.len() * common.n;
    let answer = Answer {
        id: app.new_id("cmpl"),
        created: app.created(),
        model: common.answering(&app.options.model_name).to_owned(),
        prompts,
        n: common.n,
        echo,
        tokens_as_ids,
        logprobs: common.params.logprobs,
        prompt_logprobs: common.params.prompt_logprobs.is_some(),
        return_token_ids: common.return_token_ids,
        app,
    };
    if common.stream {
        let progress = |_| Progress {
            opened: taken,
            text_chars: generation.given_chars(),
        };
        let writer = Writer {
            answer,
            choices: (0..choices).map(progress).collect(),
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

/// Refuses requests with more choices than one request may have.
pub(crate) fn check_choices(app: &App, prompts: usize, n: usize) -> Result<(), ApiError> {
    let most = app.options.max_choices;
    if prompts.saturating_mul(n) > most {
        let message = format!(
            "n must leave at most {most} choices (prompts times n), got {prompts} times {n}. \
             (parameter=n, value={n})"
        );
        return Err(ApiError::field("n", message));
    }
    Ok(())
}

fn prompt_count(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Text(_) | Prompt::Ids(_) => 1,
        Prompt::Texts(texts) => texts.len(),
        Prompt::IdLists(lists) => lists.len(),
    }
}

/// What every body of this answer needs.
struct Answer {
    app: Arc<App>,
    id: String,
    created: u64,
    /// The name of what answers: the model or an adapter.
    model: String,
    prompts: Vec<PromptInput>,
    n: usize,
    echo: bool,
    /// Whether the lists of log-probabilities name tokens by their ids.
    tokens_as_ids: bool,
    /// Candidates a token when log-probabilities were asked for.
    logprobs: Option<u32>,
    prompt_logprobs: bool,
    return_token_ids: bool,
}

impl Answer {
    fn prompt(&self, choice: usize) -> &PromptInput {
        &self.prompts[choice / self.n]
    }

    /// The prompt's text when it is to be repeated.
    fn echoed(&self, choice: usize) -> &str {
        if self.echo {
            self.prompt(choice).text.as_deref().unwrap_or_default()
        } else {
            ""
        }
    }

    /// Log-probabilities of a piece; of the prompt too when it is repeated and `opening`.
    fn lists(
        &self,
        choice: usize,
        piece: &Piece,
        opening: bool,
        offset: &mut usize,
    ) -> Option<CompletionLogprobs> {
        let count = self.logprobs?;
        let names = Names {
            text: self.app.text(),
            as_ids: self.tokens_as_ids,
        };
        let mut lists = CompletionLogprobs::default();
        if self.echo && opening {
            if let Some(&first) = self.prompt(choice).ids.first() {
                logprobs::push_unpredicted(names, &mut lists, offset, first);
            }
            logprobs::push_completion(names, &mut lists, offset, &piece.prompt_logprobs, count);
        }
        logprobs::push_completion(names, &mut lists, offset, &piece.logprobs, count);
        Some(lists)
    }

    fn ids(&self, ids: &[TokenId]) -> Option<Vec<TokenId>> {
        self.return_token_ids.then(|| ids.to_vec())
    }

    fn whole(&self, mut pieces: Vec<Piece>, usage: Usage) -> Response {
        let kv_transfer_params = pieces.iter_mut().find_map(|piece| piece.transfer.take());
        let choices = pieces.into_iter().enumerate().map(|(index, piece)| {
            let text = self.app.text();
            let lists = self.lists(index, &piece, true, &mut 0);
            let prompt_logprobs = self
                .prompt_logprobs
                .then(|| logprobs::prompt_list(text, &piece.prompt_logprobs));
            let (finish_reason, stop_reason) = split_finish(piece.finish);
            CompletionChoice {
                index,
                text: format!("{}{}", self.echoed(index), piece.text),
                logprobs: lists,
                finish_reason,
                stop_reason,
                token_ids: self.ids(&piece.tokens),
                prompt_logprobs,
                prompt_token_ids: self.ids(&self.prompt(index).ids),
            }
        });
        Json(Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices: choices.collect(),
            service_tier: None,
            system_fingerprint: FINGERPRINT,
            usage,
            kv_transfer_params,
        })
        .into_response()
    }

    fn event(&self, choices: Vec<CompletionDelta>) -> Event<'_, CompletionDelta> {
        Event {
            id: &self.id,
            object: "text_completion",
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

/// The two fields that say how a choice ended.
pub(crate) fn split_finish(
    finish: Option<crate::collector::Finish>,
) -> (Option<&'static str>, Option<crate::shape::StopReason>) {
    match finish {
        Some(finish) => (Some(finish.reason.as_str()), finish.cause.map(Into::into)),
        None => (None, None),
    }
}

/// What has been streamed of a choice.
struct Progress {
    opened: bool,
    /// Characters of text given out.
    text_chars: usize,
}

struct Writer {
    answer: Answer,
    choices: Vec<Progress>,
    include_usage: bool,
    /// Told with the end, and again in whatever event is the last.
    transfer: Option<KvTransferParams>,
}

impl EventWriter for Writer {
    fn piece(&mut self, events: &mut Events, index: usize, piece: Piece, usage: Option<Usages>) {
        let answer = &self.answer;
        let progress = &mut self.choices[index];
        let opening = !std::mem::replace(&mut progress.opened, true);
        // As in vLLM, offsets start anew from the text given out, token by token within an event.
        let mut offset = progress.text_chars;
        let lists = answer.lists(index, &piece, opening, &mut offset);
        let text = if opening {
            format!("{}{}", answer.echoed(index), piece.text)
        } else {
            piece.text
        };
        progress.text_chars += text.chars().count();
        let last = piece.finish.is_some();
        self.transfer = piece.transfer.or(self.transfer.take());
        let (finish_reason, stop_reason) = split_finish(piece.finish);
        let prompt_ids = if opening {
            answer.ids(&answer.prompt(index).ids)
        } else {
            None
        };
        let mut event = answer.event(vec![CompletionDelta {
            index,
            text,
            logprobs: lists,
            finish_reason,
            stop_reason,
            prompt_token_ids: prompt_ids,
            token_ids: answer.ids(&piece.tokens),
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
