//! The body of a measured request: greedy, of the planned length, streamed, with usage.

use bytes::Bytes;
use pb_contract::chat::{ChatMessage, ChatRequest};
use pb_contract::plan::{ChatTurn, PlannedBody, PlannedPrompt};
use pb_contract::wire::{CompletionRequest, Prompt, SamplingFields, StreamOptions};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::endpoint::Endpoint;

/// The route and the body of a planned request. A chat goes to the chat route, anything else to
/// the one of completions, unless the endpoint names another.
pub(crate) fn payload<'a>(endpoint: &'a Endpoint, planned: &PlannedBody) -> (&'a str, Bytes) {
    let (model, sampling) = (endpoint.model().map(str::to_owned), sampling(planned));
    let prompt = match &planned.prompt {
        PlannedPrompt::Ids(ids) => Prompt::Ids(ids.clone()),
        PlannedPrompt::Text(text) => Prompt::Text(text.clone()),
        PlannedPrompt::Chat(turns) => {
            let body = chat(model, turns, sampling);
            let route = endpoint.route().unwrap_or("/v1/chat/completions");
            return (route, bytes(&body, endpoint.extra_body()));
        }
    };
    let body = CompletionRequest {
        model,
        prompt,
        echo: None,
        logprobs: None,
        sampling,
    };
    let route = endpoint.route().unwrap_or("/v1/completions");
    (route, bytes(&body, endpoint.extra_body()))
}

fn chat(model: Option<String>, turns: &[ChatTurn], sampling: SamplingFields) -> ChatRequest {
    let message = |turn: &ChatTurn| ChatMessage {
        role: turn.role.clone(),
        content: turn.content.clone().into(),
    };
    ChatRequest {
        model,
        messages: turns.iter().map(message).collect(),
        max_completion_tokens: None,
        logprobs: None,
        top_logprobs: None,
        add_generation_prompt: None,
        sampling,
    }
}

fn sampling(planned: &PlannedBody) -> SamplingFields {
    SamplingFields {
        temperature: Some(0.0),
        max_tokens: Some(planned.max_tokens),
        // False is the default, and servers that do not know the field may refuse it.
        ignore_eos: planned.ignore_eos.then_some(true),
        stream: Some(true),
        stream_options: Some(StreamOptions {
            include_usage: true,
            continuous_usage_stats: false,
        }),
        cache_salt: planned.cache_salt.clone(),
        return_token_ids: Some(true),
        ..SamplingFields::default()
    }
}

/// A body as JSON, with the endpoint's own fields over it.
fn bytes(body: &impl Serialize, extra: &Map<String, Value>) -> Bytes {
    // OK because the types hold only strings, numbers and lists, which JSON can always hold.
    const PLAIN: &str = "a request body is plain JSON";
    if extra.is_empty() {
        return serde_json::to_vec(body).expect(PLAIN).into();
    }
    let mut value = serde_json::to_value(body).expect(PLAIN);
    if let Value::Object(fields) = &mut value {
        for (name, value) in extra {
            if value.is_null() {
                fields.shift_remove(name);
            } else {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
    value.to_string().into()
}
