//! Running a request: choices in, pieces out, and the token counts that go with them.

use std::sync::Arc;

use pb_contract::wire::{PromptTokensDetails, Usage};
use pb_contract::{EngineRequest, FinishReason, Nanos, RequestId, SamplingParams};

use crate::app::{App, PromptInput};
use crate::collector::{Failure, Finish, Piece, Reader};
use crate::engine::Member;
use crate::error::ApiError;
use crate::job::Common;
use crate::kv::KvRequest;
use crate::output::OutputState;

/// The choices of one request while they are generated. Choice `i` belongs to prompt `i / n`.
pub(crate) struct Generation {
    reader: Reader,
    n: usize,
    /// Prompt tokens by prompt.
    prompt_tokens: Vec<u32>,
    /// Prompt tokens from the cache by prompt, as its first choice found them.
    cached_tokens: Vec<u32>,
    /// Output tokens by choice.
    output_tokens: Vec<u32>,
    open: usize,
    /// News that came before the answer began.
    early: Option<Vec<(usize, Piece)>>,
    /// Characters of text that another engine has given out.
    given_chars: usize,
    /// Leave the output out: only the prompt was asked for.
    prompt_only: bool,
}

/// What the request leaves open about its length.
pub(crate) struct Length {
    /// Output tokens when the request does not say; none means as many as there is room for.
    pub(crate) default: Option<u32>,
    /// Only the prompt was asked for.
    pub(crate) prompt_only: bool,
}

impl Generation {
    /// Checks the prompts against the model's limits and sends the choices to the engine.
    pub(crate) fn start(
        app: &App,
        prompts: &[PromptInput],
        common: &Common,
        length: &Length,
        arrival: Nanos,
    ) -> Result<Self, ApiError> {
        app.check_vocabulary("stop_token_ids", &common.params.stop_token_ids)?;
        app.check_priority(common.priority)?;
        if let KvRequest::Take(params) = &common.kv {
            app.check_vocabulary("kv_transfer_params", &[params.first_token])?;
        }
        let mut members = Vec::with_capacity(prompts.len().saturating_mul(common.n));
        let mut given_chars = 0;
        for prompt in prompts {
            let max_tokens =
                app.output_room(prompt.ids.len(), common.max_tokens, length.default)?;
            let min_tokens = common.params.min_tokens;
            if min_tokens > max_tokens {
                let message = format!(
                    "min_tokens must be less than or equal to max_tokens={max_tokens}, got \
                     {min_tokens}. (parameter=min_tokens, value={min_tokens})"
                );
                return Err(ApiError::field("min_tokens", message));
            }
            let first = members.len() as u64;
            for choice in 0..common.n {
                let mut one = member(app, prompt, common, max_tokens, choice, arrival);
                // The prompt is computed once. Ids count from zero until the submission.
                one.request.fork_of = (choice > 0).then_some(RequestId(first));
                if let KvRequest::Take(params) = &common.kv {
                    given_chars = one.output.prime(params.first_token).chars().count();
                }
                members.push(one);
            }
        }
        let count = |prompt: &PromptInput| u32::try_from(prompt.ids.len()).unwrap_or(u32::MAX);
        let open = members.len();
        Ok(Generation {
            reader: app.engine.submit(members, common.stream)?,
            n: common.n,
            prompt_tokens: prompts.iter().map(count).collect(),
            cached_tokens: vec![0; prompts.len()],
            // The first token of a request that goes on here counts.
            output_tokens: vec![u32::from(matches!(common.kv, KvRequest::Take(_))); open],
            open,
            early: None,
            given_chars,
            prompt_only: length.prompt_only,
        })
    }

    /// The prompt of a choice.
    pub(crate) fn prompt_of(&self, choice: usize) -> usize {
        choice / self.n
    }

    /// Characters of text that another engine has given out.
    pub(crate) fn given_chars(&self) -> usize {
        self.given_chars
    }

    /// Waits for the first news, so that a failure before them can still be the answer's status.
    pub(crate) async fn wait_for_start(&mut self) -> Result<(), Failure> {
        if let Some(news) = self.next().await {
            self.early = Some(news?);
        }
        Ok(())
    }

    /// Waits for news; none when every choice has ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<(usize, Piece)>, Failure>> {
        if let Some(early) = self.early.take() {
            return Some(Ok(early));
        }
        if self.open == 0 {
            return None;
        }
        let mut pieces = match self.reader.next().await {
            Ok(pieces) => pieces,
            Err(failure) => return Some(Err(failure)),
        };
        for (choice, piece) in &mut pieces {
            if self.prompt_only {
                hide_output(piece);
            }
            if let Some(cached) = piece.cached_tokens
                && choice.is_multiple_of(self.n)
            {
                self.cached_tokens[*choice / self.n] = cached;
            }
            let tokens = u32::try_from(piece.tokens.len()).unwrap_or(u32::MAX);
            self.output_tokens[*choice] = self.output_tokens[*choice].saturating_add(tokens);
            self.open -= usize::from(piece.finish.is_some());
        }
        Some(Ok(pieces))
    }

    /// Waits for the end; one piece a choice.
    pub(crate) async fn finish(&mut self) -> Result<Vec<Piece>, Failure> {
        let mut whole: Vec<Piece> = self
            .output_tokens
            .iter()
            .map(|_| Piece::default())
            .collect();
        while let Some(news) = self.next().await {
            for (choice, piece) in news? {
                whole[choice] = piece;
            }
        }
        Ok(whole)
    }

    /// Token counts of the whole request: a prompt counts once however many choices it has.
    pub(crate) fn usage(&self) -> Usage {
        let sum = |counts: &[u32]| counts.iter().fold(0u32, |a, &b| a.saturating_add(b));
        usage(
            sum(&self.prompt_tokens),
            sum(&self.output_tokens),
            sum(&self.cached_tokens),
        )
    }

    /// Token counts of one choice so far.
    pub(crate) fn choice_usage(&self, choice: usize) -> Usage {
        let prompt = self.prompt_of(choice);
        let cached = self.cached_tokens[prompt];
        usage(
            self.prompt_tokens[prompt],
            self.output_tokens[choice],
            cached,
        )
    }

    /// Token counts of a choice before its first token.
    pub(crate) fn opening_usage(&self, choice: usize) -> Usage {
        let prompt = self.prompt_of(choice);
        usage(self.prompt_tokens[prompt], 0, self.cached_tokens[prompt])
    }
}

fn member(
    app: &App,
    prompt: &PromptInput,
    common: &Common,
    max_tokens: u32,
    choice: usize,
    arrival: Nanos,
) -> Member {
    let sampling = SamplingParams {
        max_tokens,
        // As in vLLM, the choices of a seeded request use successive seeds.
        seed: common
            .params
            .seed
            .map(|seed| seed.wrapping_add(choice as u64)),
        ..common.params.clone()
    };
    let request = EngineRequest {
        id: RequestId(0),
        prompt: prompt.ids.clone(),
        sampling,
        cache_salt: common.cache_salt.clone(),
        adapter: common.adapter.clone(),
        priority: common.priority,
        fork_of: None,
        arrival,
    };
    let detokenizer = app.text().detokenizer();
    let output = OutputState::new(
        detokenizer,
        Arc::clone(&common.stop),
        common.params.min_tokens,
    );
    Member {
        request,
        output,
        task: common.kv.task(),
    }
}

/// The one token that is computed for its prompt's sake is not part of the answer.
fn hide_output(piece: &mut Piece) {
    piece.text.clear();
    piece.tokens.clear();
    piece.logprobs.clear();
    if let Some(finish) = &mut piece.finish
        && finish.reason == FinishReason::Stop
    {
        *finish = Finish {
            reason: FinishReason::Length,
            cause: None,
        };
    }
}

fn usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Usage {
    Usage {
        prompt_tokens,
        total_tokens: prompt_tokens.saturating_add(completion_tokens),
        completion_tokens,
        prompt_tokens_details: Some(PromptTokensDetails {
            cached_tokens: Some(cached_tokens),
        }),
    }
}
