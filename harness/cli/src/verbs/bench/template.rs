//! What the target puts around a prompt: the tokens of its chat template, a begin token.

use anyhow::{Context, Result};
use pb_contract::plan::{PlannedBody, PlannedPrompt};
use pb_load::Endpoint;
use pb_load::control::{Control, Method};
use serde_json::{Value, json};

/// Prompt tokens that the server counts beyond those that were planned for `body`, by sending it
/// once with one token of output.
///
/// # Errors
/// The request fails, or its answer does not count the prompt.
pub(crate) async fn overhead(endpoint: &Endpoint, body: &PlannedBody) -> Result<u32> {
    let (route, request) = probe(endpoint.model(), &body.prompt);
    let route = endpoint.route().unwrap_or(route);
    let place = || format!("--adapt-input: POST {}", endpoint.path(route));
    let control = Control::new(endpoint)?;
    let answer = control.exchange(Method::POST, route, Some(&request)).await;
    let answer = answer.with_context(place)?;
    let served = served(&answer.body).with_context(|| {
        format!(
            "{}: HTTP {}: the answer has no usage.prompt_tokens",
            place(),
            answer.status
        )
    })?;
    Ok(served.saturating_sub(body.planned_tokens))
}

fn served(answer: &str) -> Option<u32> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    u32::try_from(answer["usage"]["prompt_tokens"].as_u64()?).ok()
}

fn probe(model: Option<&str>, prompt: &PlannedPrompt) -> (&'static str, Value) {
    let mut body = json!({ "model": model, "max_tokens": 1, "temperature": 0 });
    let route = match prompt {
        PlannedPrompt::Ids(ids) => {
            body["prompt"] = json!(ids);
            "/v1/completions"
        }
        PlannedPrompt::Text(text) => {
            body["prompt"] = json!(text);
            "/v1/completions"
        }
        PlannedPrompt::Chat(turns) => {
            body["messages"] = json!(turns);
            "/v1/chat/completions"
        }
    };
    (route, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_is_a_count() {
        assert_eq!(served(r#"{"usage":{"prompt_tokens":46}}"#), Some(46));
        for other in [
            "",
            "{}",
            r#"{"usage":null}"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
        ] {
            assert_eq!(served(other), None, "{other}");
        }
    }
}
