//! A target: where it is, what it is, and how it is spoken to.

use pb_contract::wire::Prompt;
use pb_contract::{Clock, Nanos, WallClock};
use pb_load::Endpoint;
use pb_load::control::{Control, Exchange, Method};
use serde_json::{Map, Value};

use crate::adapter::Adapter;
use crate::detect::Detection;
use crate::error::TargetError;
use crate::kind::ServerKind;
use crate::prometheus::Exposition;
use crate::stats::ServerStats;

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For one route when the kind is detected, and for one metrics page.
    pub ask_ns: Nanos,
    /// Between two tries.
    pub retry_ns: Nanos,
    /// For the server to become idle, and for a reset to be accepted.
    pub limit_ns: Nanos,
    /// For counters to show a request that has ended.
    pub settle_ns: Nanos,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            ask_ns: Nanos::from_secs(5),
            retry_ns: Nanos::from_millis(50),
            limit_ns: Nanos::from_secs(60),
            settle_ns: Nanos::from_secs(2),
        }
    }
}

/// One server under test.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) control: Control,
    pub(crate) patience: Patience,
    adapter: Adapter,
    detection: Detection,
}

impl Target {
    /// Finds out what answers at `endpoint`; `given` overrules what is found.
    ///
    /// # Errors
    /// The HTTP client cannot be set up. A server that does not answer is of unknown kind.
    pub async fn connect(
        endpoint: &Endpoint,
        given: Option<ServerKind>,
        patience: Patience,
    ) -> Result<Target, TargetError> {
        let control = Control::new(endpoint)?;
        let detection = Detection::of(&control, given, patience.ask_ns).await;
        Ok(Target {
            endpoint: endpoint.clone(),
            control,
            patience,
            adapter: Adapter::of(detection.kind),
            detection,
        })
    }

    /// The kind that is used.
    pub fn kind(&self) -> ServerKind {
        self.detection.kind
    }

    /// What was found, and why.
    pub fn detection(&self) -> &Detection {
        &self.detection
    }

    /// How this kind is spoken to.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The server's figures; `None` when it has no metrics page that says anything known.
    ///
    /// # Errors
    /// The request fails.
    pub async fn stats(&self) -> Result<Option<ServerStats>, TargetError> {
        let route = self.adapter.metrics_route;
        let asked = self.control.exchange(Method::GET, route, None);
        let limit = self.patience.ask_ns.to_duration();
        let Ok(answer) = tokio::time::timeout(limit, asked).await else {
            return Ok(None);
        };
        let answer = answer?;
        if answer.status != 200 {
            return Ok(None);
        }
        let stats = ServerStats::read(&Exposition::parse(&answer.body));
        Ok((stats != ServerStats::default()).then_some(stats))
    }

    /// Sends each prompt once, in order, and waits for its answer; `fields` go into every request.
    ///
    /// # Errors
    /// A request fails.
    pub async fn prime(
        &self,
        prompts: &[Prompt],
        fields: &Map<String, Value>,
    ) -> Result<(), TargetError> {
        for prompt in prompts {
            self.complete(prompt, fields).await?;
        }
        Ok(())
    }

    /// One greedy token after a prompt, as the body of the answer.
    pub(crate) async fn complete(
        &self,
        prompt: &Prompt,
        fields: &Map<String, Value>,
    ) -> Result<Value, TargetError> {
        let route = "/v1/completions";
        let mut body = Map::new();
        if let Some(model) = self.endpoint.model() {
            body.insert("model".to_owned(), model.into());
        }
        // OK because a prompt is texts or numbers, which JSON can always hold.
        let prompt = serde_json::to_value(prompt).expect("a prompt is plain JSON");
        body.insert("prompt".to_owned(), prompt);
        body.insert("max_tokens".to_owned(), 1.into());
        body.insert("temperature".to_owned(), 0.into());
        body.extend(fields.clone());
        let body = Value::Object(body);
        let answer = self
            .control
            .exchange(Method::POST, route, Some(&body))
            .await?;
        self.parsed(Method::POST, route, &answer)
    }

    /// The body of a successful answer.
    pub(crate) fn parsed(
        &self,
        method: Method,
        route: &str,
        answer: &Exchange,
    ) -> Result<Value, TargetError> {
        let wrong = |reason: String| self.wrong(&method, route, reason);
        if answer.status != 200 {
            return Err(wrong(format!(
                "HTTP {}: {}",
                answer.status,
                head(&answer.body)
            )));
        }
        serde_json::from_str(&answer.body).map_err(|error| wrong(format!("not JSON: {error}")))
    }

    pub(crate) fn wrong(&self, method: &Method, route: &str, reason: String) -> TargetError {
        TargetError::Answer {
            request: format!("{method} {}", self.endpoint.path(route)),
            reason,
        }
    }

    /// Waits for one try; false when `limit` after `start` has passed.
    pub(crate) async fn again(&self, start: Nanos, limit: Nanos) -> bool {
        let pause = self.patience.retry_ns;
        if WallClock.now() + pause > start + limit {
            return false;
        }
        tokio::time::sleep(pause.to_duration()).await;
        true
    }
}

/// The beginning of a body, for messages.
pub(crate) fn head(body: &str) -> String {
    body.chars().take(300).collect()
}
