//! Requests around a run: is the server there, what is it, and is its cache empty.
//!
//! These are not measured: each takes a connection of its own. What they claim is checked: a reset
//! that answers 200 may still have been refused (`{"success": false}`), and only a probe whose
//! usage says zero cached tokens proves a cold cache. How long one may take is the endpoint's to
//! say ([`crate::ControlLimits`]); an answer may have 16 MiB, a page of metrics too.

use bytes::Bytes;
pub use hyper::Method;
use pb_contract::wire::{
    CompletionRequest, CompletionResponse, Prompt, SamplingFields, TokenizeRequest,
    TokenizeResponse, Usage,
};
use pb_contract::{Clock, Nanos, TokenId, WallClock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::endpoint::Endpoint;
use crate::error::LoadError;
use crate::error_body::error_text;
use crate::http::{Conn, Read};
use crate::timer_wall::pause;
use crate::wire::request;

/// Time between two tries.
const RETRY: Nanos = Nanos::from_millis(50);

/// Longest answer that is read: more than any page of metrics or list of models.
const MAX_BODY_BYTES: usize = 16 << 20;

/// The control plane of one endpoint.
#[derive(Clone, Debug)]
pub struct Control {
    endpoint: Endpoint,
}

/// What a probe request was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Prompt tokens as the server counts them.
    pub prompt_tokens: u32,
    /// Prompt tokens from its prefix cache; `None` when it does not say, which is not zero.
    pub cached_tokens: Option<u32>,
    /// Output tokens.
    pub completion_tokens: u32,
    /// Output text.
    pub text: String,
}

/// The answer to a control request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// HTTP status.
    pub status: u16,
    /// Header names, in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

/// What llama.cpp's server answers to `POST /tokenize`.
#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<TokenId>,
}

/// How a cache reset went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// Requests that it took.
    pub attempts: u32,
    /// The server said `success: true`; false when it said nothing at all.
    pub confirmed: bool,
}

impl Control {
    /// The control plane of an endpoint. Proxy settings of the environment are not used: they
    /// would send loopback requests through another machine.
    ///
    /// # Errors
    /// None today; a caller need not change when one comes.
    pub fn new(endpoint: &Endpoint) -> Result<Control, LoadError> {
        Ok(Control {
            endpoint: endpoint.clone(),
        })
    }

    /// Waits until `GET /health` answers 200.
    ///
    /// # Errors
    /// It does not within `limit`; the message has what was seen last.
    pub async fn wait_healthy(&self, limit: Nanos) -> Result<(), LoadError> {
        let start = WallClock.now();
        loop {
            let left = (start + limit).saturating_sub(WallClock.now());
            let last = match self.call(Method::GET, "/health", NO_BODY, Some(left)).await {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            };
            self.pause_within(start, limit, "a healthy server", last)
                .await?;
        }
    }

    /// Empties the server's prefix cache, retrying while it refuses because requests run.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] when the server has no such route; [`LoadError::TimedOut`] when
    /// it refuses beyond `limit`.
    pub async fn reset_prefix_cache(&self, limit: Nanos) -> Result<ResetReport, LoadError> {
        let start = WallClock.now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let left = (start + limit).saturating_sub(WallClock.now());
            let body = self
                .call(Method::POST, "/reset_prefix_cache", NO_BODY, Some(left))
                .await?;
            let answer: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
            match answer.get("success").and_then(Value::as_bool) {
                Some(false) => {}
                said => {
                    return Ok(ResetReport {
                        attempts,
                        confirmed: said == Some(true),
                    });
                }
            }
            self.pause_within(start, limit, "the cache reset", body)
                .await?;
        }
    }

    /// Sends one short greedy request and returns the server's counts.
    ///
    /// # Errors
    /// The request fails, or its answer has no usage.
    pub async fn probe(
        &self,
        prompt: &[TokenId],
        max_tokens: u32,
        cache_salt: Option<&str>,
    ) -> Result<Probe, LoadError> {
        let body = CompletionRequest {
            model: self.endpoint.model().map(str::to_owned),
            prompt: Prompt::Ids(prompt.to_vec()),
            echo: None,
            logprobs: None,
            sampling: SamplingFields {
                temperature: Some(0.0),
                max_tokens: Some(max_tokens),
                ignore_eos: Some(true),
                cache_salt: cache_salt.map(str::to_owned),
                ..SamplingFields::default()
            },
        };
        let route = "/v1/completions";
        let answer: CompletionResponse = self.json(Method::POST, route, Some(&body)).await?;
        let usage: Usage = answer.usage.ok_or_else(|| LoadError::Control {
            request: format!("POST {}", self.endpoint.path(route)),
            reason: "the answer has no usage: cached tokens cannot be proven".to_owned(),
        })?;
        Ok(Probe {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage
                .prompt_tokens_details
                .and_then(|details| details.cached_tokens),
            completion_tokens: usage.completion_tokens,
            text: answer
                .choices
                .into_iter()
                .next()
                .map_or(String::new(), |choice| choice.text),
        })
    }

    /// What the server says of itself (`GET /server_info`); `None` when it has no such route.
    ///
    /// # Errors
    /// Anything else that goes wrong.
    pub async fn server_info(&self) -> Result<Option<Value>, LoadError> {
        match self.json(Method::GET, "/server_info", NO_BODY).await {
            Ok(info) => Ok(Some(info)),
            Err(LoadError::Unsupported { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Token ids of a text in the server's tokenizer, without special tokens.
    ///
    /// # Errors
    /// The request fails.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<TokenId>, LoadError> {
        let route = "/tokenize";
        let body = TokenizeRequest {
            model: self.endpoint.model().map(str::to_owned),
            prompt: text.to_owned(),
            add_special_tokens: Some(false),
        };
        let answer = self.call(Method::POST, route, Some(&body), None).await?;
        if let Ok(answer) = serde_json::from_str::<TokenizeResponse>(&answer) {
            return Ok(answer.tokens);
        }
        // llama.cpp's server reads `content`, and answers a request without it with no tokens.
        let body = json!({"content": text, "add_special": false});
        let answer: Tokens = self.json(Method::POST, route, Some(&body)).await?;
        Ok(answer.tokens)
    }

    /// Names of the models that the server offers.
    ///
    /// # Errors
    /// The request fails.
    pub async fn model_names(&self) -> Result<Vec<String>, LoadError> {
        let answer: Value = self.json(Method::GET, "/v1/models", NO_BODY).await?;
        let list = answer
            .get("data")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let name = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
        Ok(list.iter().filter_map(name).collect())
    }

    /// The Prometheus text of `GET /metrics`.
    ///
    /// # Errors
    /// The request fails.
    pub async fn metrics(&self) -> Result<String, LoadError> {
        self.call(Method::GET, "/metrics", NO_BODY, None).await
    }

    async fn pause_within(
        &self,
        start: Nanos,
        limit: Nanos,
        what: &str,
        last: String,
    ) -> Result<(), LoadError> {
        if WallClock.now() + RETRY > start + limit {
            let what = format!("{what} at {}", self.endpoint.url(""));
            return Err(LoadError::TimedOut {
                what,
                seconds: limit.as_secs_f64(),
                last,
            });
        }
        pause(RETRY).await.map_err(|source| LoadError::System {
            what: "cannot wait",
            source,
        })
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, LoadError> {
        let request = format!("{method} {}", self.endpoint.path(route));
        let text = self.call(method, route, body, None).await?;
        serde_json::from_str(&text).map_err(|error| LoadError::Control {
            request,
            reason: format!("the answer is not what it should be: {error}"),
        })
    }

    /// Sends any control request and returns its answer, whatever its status.
    ///
    /// # Errors
    /// The request cannot be made or its answer cannot be read.
    pub async fn exchange(
        &self,
        method: Method,
        route: &str,
        body: Option<&Value>,
    ) -> Result<Exchange, LoadError> {
        self.send(method, route, body, None).await
    }

    /// Sends a request that may take as long as the endpoint allows, or only `limit`. Keys are
    /// hidden in all that comes back.
    async fn send(
        &self,
        method: Method,
        route: &str,
        body: Option<&impl Serialize>,
        limit: Option<Nanos>,
    ) -> Result<Exchange, LoadError> {
        let name = format!("{method} {}", self.endpoint.path(route));
        let secrets = self.endpoint.secrets();
        let failed = |reason: String| LoadError::Control {
            request: name.clone(),
            reason: secrets.hide(&reason).into_owned(),
        };
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| failed(error.to_string()))?;
        let exchange = self.exchanged(method, route, body.unwrap_or_default().into());
        let total = self.endpoint.control_limits().total_ns;
        let total = total.min(limit.unwrap_or(total));
        let Ok(answer) = tokio::time::timeout(total.to_duration(), exchange).await else {
            return Err(failed(format!("no answer within {total}")));
        };
        let mut answer = answer.map_err(failed)?;
        answer.body = secrets.hide(&answer.body).into_owned();
        for (_, value) in &mut answer.headers {
            *value = secrets.hide(value).into_owned();
        }
        Ok(answer)
    }

    /// One request on a new connection, to the end of its answer.
    async fn exchanged(
        &self,
        method: Method,
        route: &str,
        body: Bytes,
    ) -> Result<Exchange, String> {
        let limit = self.endpoint.control_limits().connect_ns;
        let opened = Conn::open(&self.endpoint, limit).await;
        let mut conn = opened.map_err(|failure| format!("cannot connect: {}", failure.message))?;
        let built = request(&self.endpoint, method, route, "*/*", body, None);
        let sent = conn.send(built.map_err(|error| error.to_string())?).await;
        let head = sent.map_err(|failure| failure.text())?;
        let mut body = Vec::new();
        loop {
            match conn.read(|_, bytes| body.extend_from_slice(bytes)).await {
                Read::Data | Read::End if body.len() > MAX_BODY_BYTES => {
                    let most = MAX_BODY_BYTES >> 20;
                    return Err(format!("the answer is larger than {most} MiB"));
                }
                Read::Data => {}
                Read::End => break,
                Read::Broken(broken) => return Err(broken.text),
            }
        }
        Ok(Exchange {
            status: head.status,
            headers: head.fields().collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// The body of a successful answer.
    async fn call(
        &self,
        method: Method,
        route: &str,
        body: Option<&impl Serialize>,
        limit: Option<Nanos>,
    ) -> Result<String, LoadError> {
        let request = format!("{method} {}", self.endpoint.path(route));
        let answer = self.send(method, route, body, limit).await?;
        let (status, text) = (answer.status, answer.body);
        if (200..300).contains(&status) {
            return Ok(text);
        }
        // A 404 that has an error body speaks of a model, not of the route.
        let routeless = status == 404 && !text.contains("\"error\"");
        if routeless || status == 405 {
            return Err(LoadError::Unsupported { request });
        }
        let message = error_text(&text);
        Err(LoadError::Status {
            request,
            status,
            message,
        })
    }
}

/// No request body.
const NO_BODY: Option<&Value> = None;
