//! The body of a measured request: greedy, of the planned length, streamed, with usage.

use bytes::Bytes;
use pb_contract::wire::{CompletionRequest, Prompt, SamplingFields, StreamOptions};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::driver::SendOrder;
use crate::endpoint::Endpoint;

/// The route and the body of an order.
pub(crate) fn payload<'a>(endpoint: &'a Endpoint, order: &SendOrder) -> (&'a str, Bytes) {
    let route = endpoint.route().unwrap_or("/v1/completions");
    let body = CompletionRequest {
        model: endpoint.model().map(str::to_owned),
        prompt: Prompt::Ids(order.body.prompt.clone()),
        echo: None,
        logprobs: None,
        sampling: sampling(order),
    };
    (route, bytes(&body, endpoint.extra_body()))
}

fn sampling(order: &SendOrder) -> SamplingFields {
    SamplingFields {
        temperature: Some(0.0),
        max_tokens: Some(order.body.max_tokens),
        ignore_eos: Some(true),
        stream: Some(true),
        stream_options: Some(StreamOptions {
            include_usage: true,
            continuous_usage_stats: false,
        }),
        cache_salt: order.body.cache_salt.clone(),
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
