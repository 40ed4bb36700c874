//! Waiting until a server is idle, and emptying its cache.
//!
//! A reset that comes before the server is idle is refused, and servers disagree on how they say
//! so: with an error status, or with 200 and a body that says `false`. Both are retried until
//! the limit; a refusal beyond it aborts the cell, because nobody would know what its cache held.

use pb_contract::{Clock, WallClock};
use pb_load::control::{Exchange, Method};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapter::ResetCall;
use crate::error::TargetError;
use crate::kind::ServerKind;
use crate::target::{Target, head};

/// How it was seen that the server is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleReport {
    /// Its metrics say that nothing runs and nothing waits.
    Metrics,
    /// None of its slots is processing.
    Slots,
    /// Its metrics say that requests run, but no token moved for half the limit: a gauge that is
    /// not renewed after the last request (vLLM renews it with the next step).
    Stale,
    /// It says nothing about it.
    Unknown,
}

/// How a reset went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetOutcome {
    /// Accepted.
    Done {
        /// Requests that it took.
        attempts: u32,
        /// The answer says so; false when it says nothing but a good status.
        confirmed: bool,
    },
    /// The server has no such route.
    NoRoute,
}

/// One answer to a reset.
enum Said {
    Done(bool),
    NotNow(String),
    NoRoute,
}

impl Target {
    /// Waits until nothing runs and nothing waits.
    ///
    /// # Errors
    /// [`TargetError::NotIdle`] when requests go on beyond the limit.
    pub async fn wait_idle(&self) -> Result<IdleReport, TargetError> {
        let start = WallClock.now();
        let limit = self.patience.limit_ns;
        // When the counters of tokens were last seen to move.
        let mut moved = (start, None);
        loop {
            let Some(stats) = self.stats().await? else {
                return self.slots_idle().await;
            };
            let Some(busy) = stats.busy() else {
                return self.slots_idle().await;
            };
            if busy == 0.0 {
                return Ok(IdleReport::Metrics);
            }
            let tokens = (
                stats.counters.prompt_tokens,
                stats.counters.generation_tokens,
            );
            if moved.1 != Some(tokens) {
                moved = (WallClock.now(), Some(tokens));
            }
            if self.again(start, limit).await {
                continue;
            }
            let still = WallClock.now().saturating_sub(moved.0);
            if tokens.1.is_some() && still.0 >= limit.0 / 2 {
                return Ok(IdleReport::Stale);
            }
            return Err(TargetError::NotIdle {
                seconds: limit.as_secs_f64(),
                running: stats.running.unwrap_or(0.0),
                waiting: stats.waiting.unwrap_or(0.0),
            });
        }
    }

    /// Waits for idle slots, where the server shows slots.
    async fn slots_idle(&self) -> Result<IdleReport, TargetError> {
        let start = WallClock.now();
        loop {
            let Some(slots) = self.slots().await? else {
                return Ok(IdleReport::Unknown);
            };
            let busy = slots.iter().filter(|s| s["is_processing"] == true).count();
            if busy == 0 {
                return Ok(IdleReport::Slots);
            }
            if !self.again(start, self.patience.limit_ns).await {
                return Err(TargetError::NotIdle {
                    seconds: self.patience.limit_ns.as_secs_f64(),
                    running: busy as f64,
                    waiting: 0.0,
                });
            }
        }
    }

    /// What `GET /slots` lists; `None` when the server has no slots or does not show them.
    pub(crate) async fn slots(&self) -> Result<Option<Vec<Value>>, TargetError> {
        // Only this kind has them.
        if !self.adapter().resets.contains(&ResetCall::EraseSlots) {
            return Ok(None);
        }
        let answer = self.control.exchange(Method::GET, "/slots", None).await?;
        if answer.status != 200 {
            return Ok(None);
        }
        match self.parsed(Method::GET, "/slots", &answer)? {
            Value::Array(slots) => Ok(Some(slots)),
            _ => Ok(None),
        }
    }

    /// Sends a reset until it is accepted.
    ///
    /// # Errors
    /// [`TargetError::ResetRefused`] when it is refused beyond the limit.
    pub async fn reset_with(&self, call: ResetCall) -> Result<ResetOutcome, TargetError> {
        let start = WallClock.now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let answer = match self.reset_once(call).await? {
                Said::NoRoute => return Ok(ResetOutcome::NoRoute),
                Said::Done(confirmed) => {
                    return Ok(ResetOutcome::Done {
                        attempts,
                        confirmed,
                    });
                }
                Said::NotNow(answer) => answer,
            };
            if !self.again(start, self.patience.limit_ns).await {
                return Err(TargetError::ResetRefused {
                    route: format!("POST {}", self.endpoint.path(call.name())),
                    attempts,
                    seconds: self.patience.limit_ns.as_secs_f64(),
                    answer,
                });
            }
        }
    }

    async fn reset_once(&self, call: ResetCall) -> Result<Said, TargetError> {
        let (route, refusals) = match call {
            ResetCall::Post { route, refusals } => (route, refusals),
            ResetCall::EraseSlots => return self.erase_slots().await,
        };
        let answer = self.control.exchange(Method::POST, route, None).await?;
        let body: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        let success = body.get("success").and_then(Value::as_bool);
        let refused = refusals.contains(&answer.status) || success == Some(false);
        if refused {
            return Ok(Said::NotNow(format!(
                "HTTP {} {}",
                answer.status,
                head(&answer.body)
            )));
        }
        self.said(route, &answer, success == Some(true))
    }

    /// Erases every slot; all of them or it does not count.
    async fn erase_slots(&self) -> Result<Said, TargetError> {
        let Some(slots) = self.slots().await? else {
            return Ok(Said::NoRoute);
        };
        for slot in &slots {
            let route = format!("/slots/{}?action=erase", slot["id"]);
            let answer = self.control.exchange(Method::POST, &route, None).await?;
            let said = self.said(&route, &answer, true)?;
            if !matches!(said, Said::Done(_)) {
                return Ok(said);
            }
        }
        Ok(Said::Done(!slots.is_empty()))
    }

    fn said(&self, route: &str, answer: &Exchange, confirmed: bool) -> Result<Said, TargetError> {
        match answer.status {
            200..300 => Ok(Said::Done(confirmed)),
            // 501 is a route that the server was started without.
            404 | 405 | 501 => Ok(Said::NoRoute),
            // Its routes are guesses.
            _ if self.kind() == ServerKind::Unknown => Ok(Said::NoRoute),
            status => {
                let reason = format!("HTTP {status}: {}", head(&answer.body));
                Err(self.wrong(&Method::POST, route, reason))
            }
        }
    }
}
