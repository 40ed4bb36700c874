//! A request on its way through the workers.
//!
//! Until the client has been sent something, a failure starts the request again elsewhere. After
//! that it ends the answer with an error: to start again would repeat tokens, and to go on would
//! miss some. A decode worker that is lost before it has said anything has decoded nothing that
//! anybody knows of, so another one takes the request from where it was.

use std::collections::VecDeque;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use bytes::Bytes;

use super::ahead::{Ahead, Kept};
use super::body::HeldBody;
use super::client::{Leg, LegError, LegFault};
use super::error::ApiError;
use super::join::{JoinError, Joined, Joiner, TransferParams};
use super::peek;
use super::shell::Ticket;
use crate::machine::Command;
use crate::stats::Outcome;
use crate::worker::WorkerId;

/// What is asked of the workers.
pub(crate) struct Asked {
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: HeldBody,
}

/// How a request starts.
pub(crate) struct Start {
    pub(crate) at: WorkerId,
    /// Whether `at` does all of it.
    pub(crate) whole: bool,
    /// What is fetched while `at` computes it.
    pub(crate) ahead: Option<Ahead>,
}

impl Start {
    /// What the worker is told beside the request.
    pub(crate) fn params(&self) -> Option<String> {
        let only = || r#"{"do_remote_decode":true}"#.to_owned();
        let params = self.ahead.as_ref().map_or_else(only, Ahead::prefill_params);
        (!self.whole).then_some(params)
    }
}

/// Why a request does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A worker failed; another one might not. `lost`: without an answer.
    Worker {
        at: WorkerId,
        error: ApiError,
        lost: bool,
    },
    /// A worker refuses the request, as any other would.
    Refused {
        status: StatusCode,
        kind: Option<HeaderValue>,
        body: Vec<u8>,
    },
    /// The router refuses it.
    Router(ApiError),
}

/// Whether another worker might answer otherwise.
fn may_retry(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

impl Stop {
    pub(crate) fn leg(at: WorkerId, error: LegError) -> Stop {
        let what = match error.fault {
            LegFault::Connect => "cannot be reached",
            LegFault::Cut => "ended the connection too early",
            LegFault::Silent => "was silent for too long",
            LegFault::Nonsense => "answered with what is no answer",
        };
        let message = format!("worker {at} {what}: {}", error.message);
        let lost = matches!(error.fault, LegFault::Connect | LegFault::Cut);
        let error = match error.fault {
            LegFault::Silent => {
                ApiError::new(StatusCode::GATEWAY_TIMEOUT, "GatewayTimeoutError", message)
            }
            _ => ApiError::bad_gateway(message),
        };
        Stop::Worker { at, error, lost }
    }

    pub(crate) fn join(at: WorkerId, error: JoinError) -> Stop {
        match error {
            JoinError::Protocol(why) => Stop::Worker {
                at,
                error: ApiError::bad_gateway(format!("worker {at}: {why}")),
                lost: false,
            },
            JoinError::Worker { event, status } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                if may_retry(status) {
                    return Stop::failed(at, status, &event.to_string());
                }
                Stop::Refused {
                    status,
                    kind: Some(HeaderValue::from_static("application/json")),
                    body: event.to_string().into_bytes(),
                }
            }
        }
    }

    fn failed(at: WorkerId, status: StatusCode, body: &str) -> Stop {
        let message = serde_json::from_str::<serde_json::Value>(body).ok();
        let message = message
            .as_ref()
            .and_then(|body| body["error"]["message"].as_str());
        let message = format!(
            "worker {at} answered {}: {}",
            status.as_u16(),
            message.unwrap_or("no reason given")
        );
        Stop::Worker {
            at,
            error: ApiError::new(status, "UpstreamError", message),
            lost: false,
        }
    }

    /// As an event that ends a stream.
    fn event(&self) -> Vec<u8> {
        match self {
            Stop::Worker { error, .. } | Stop::Router(error) => error.event(),
            Stop::Refused { body, .. } => body.clone(),
        }
    }
}

/// Sends the request to a worker and takes only a good answer.
pub(crate) async fn ask(
    ticket: &Ticket,
    asked: &Asked,
    at: WorkerId,
    params: Option<&str>,
) -> Result<Leg, Stop> {
    let body = match params {
        Some(params) => Bytes::from(peek::with_params(&asked.body.bytes, params)),
        None => asked.body.bytes.clone(),
    };
    let headers = &asked.headers;
    let sent = ticket
        .shared
        .send(at, Method::POST, asked.path, headers, body);
    let leg = sent.await.map_err(|error| Stop::leg(at, error))?;
    if leg.status == StatusCode::OK {
        return Ok(leg);
    }
    let (status, kind) = (leg.status, leg.kind.clone());
    let body = leg.whole().await.map_err(|error| Stop::leg(at, error))?;
    if may_retry(status) {
        return Err(Stop::failed(at, status, &String::from_utf8_lossy(&body)));
    }
    Err(Stop::Refused { status, kind, body })
}

/// Waits for the word to go on at a decode worker.
async fn handed(ticket: &mut Ticket) -> Result<WorkerId, Stop> {
    match ticket.next().await {
        Command::Hand { to, .. } => Ok(to),
        Command::Refuse { why, .. } => Err(Stop::Router(why.into())),
        Command::Start { at, .. } => Err(Stop::Worker {
            at,
            error: ApiError::bad_gateway("the request was started twice"),
            lost: false,
        }),
    }
}

/// Hands a computed request to a decode worker, and to another one when that is lost at once.
pub(crate) async fn hand_over(
    ticket: &mut Ticket,
    asked: &Asked,
    params: &TransferParams,
) -> Result<(WorkerId, Leg), Stop> {
    let text = params_text(params);
    loop {
        let to = handed(ticket).await?;
        let answer = tokio::select! {
            answer = ask(ticket, asked, to, Some(&text)) => answer,
            () = ticket.shared.until_out(to) => Err(out(to)),
        };
        match answer {
            Ok(leg) => return Ok((to, leg)),
            Err(Stop::Worker { lost: true, .. }) if ticket.hand_again(to) => {}
            Err(stop) => return Err(stop),
        }
    }
}

/// The field that a decode worker gets.
fn params_text(params: &TransferParams) -> String {
    // OK because the type has string keys only.
    serde_json::to_string(params).unwrap()
}

/// Who is streaming.
enum Stage {
    Whole(WorkerId, Leg),
    Prefill(WorkerId, Leg),
    Decode(WorkerId, Leg, bool),
    Ended,
}

/// A streamed answer.
pub(crate) struct Flow {
    ticket: Ticket,
    asked: Asked,
    stage: Stage,
    joiner: Joiner,
    out: VecDeque<Vec<u8>>,
    begun: bool,
    /// Until the decode worker has its KV.
    ahead: Option<Ahead>,
    kept: Option<Kept>,
}

impl Flow {
    /// Starts a request at a worker.
    pub(crate) async fn start(
        ticket: Ticket,
        asked: Asked,
        start: Start,
    ) -> Result<Flow, (Ticket, Asked, Stop)> {
        let (at, params) = (start.at, start.params());
        let leg = match ask(&ticket, &asked, at, params.as_deref()).await {
            Ok(leg) => leg,
            Err(stop) => return Err((ticket, asked, stop)),
        };
        let stage = if start.whole {
            Stage::Whole(at, leg)
        } else {
            Stage::Prefill(at, leg)
        };
        Ok(Flow {
            ticket,
            asked,
            stage,
            joiner: Joiner::default(),
            out: VecDeque::new(),
            begun: false,
            ahead: start.ahead,
            kept: None,
        })
    }

    /// Gives the request back when nothing of it has been sent.
    pub(crate) fn into_parts(self) -> (Ticket, Asked) {
        (self.ticket, self.asked)
    }

    /// How often it was started again.
    pub(crate) fn retries(&self) -> u32 {
        self.ticket.retries()
    }

    /// The next event for the client; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        loop {
            if let Some(event) = self.out.pop_front() {
                self.begun = true;
                return Ok(Some(event));
            }
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Ended => return Ok(None),
                Stage::Whole(at, leg) => self.whole(at, leg).await?,
                Stage::Prefill(at, leg) => self.prefill(at, leg).await?,
                Stage::Decode(at, leg, fetched) => self.decode(at, leg, fetched).await?,
            }
        }
    }

    async fn whole(&mut self, at: WorkerId, mut leg: Leg) -> Result<(), Stop> {
        let event = leg.event().await.map_err(|error| Stop::leg(at, error))?;
        let Some(event) = event else {
            return Err(cut(at));
        };
        if event == b"[DONE]" {
            self.end();
            return Ok(());
        }
        if !self.begun {
            // The first event is looked at: an error may still be mended elsewhere.
            self.joiner
                .looks_good(&event)
                .map_err(|error| Stop::join(at, error))?;
            self.ticket.prefilled();
        }
        self.out.push_back(event);
        self.stage = Stage::Whole(at, leg);
        Ok(())
    }

    async fn prefill(&mut self, at: WorkerId, mut leg: Leg) -> Result<(), Stop> {
        let event = leg.event().await.map_err(|error| Stop::leg(at, error))?;
        // A stream may end without the word for it once all has been said.
        let event = match event {
            Some(event) => event,
            None if self.joiner.params().is_some() => b"[DONE]".to_vec(),
            None => return Err(cut(at)),
        };
        let joined = self.joiner.prefill(&event);
        match joined.map_err(|error| Stop::join(at, error))? {
            Joined::Events(events) => {
                self.out.extend(events);
                self.stage = Stage::Prefill(at, leg);
                return Ok(());
            }
            Joined::End => drop(leg),
        }
        // OK because the end is only told once the parameters are there.
        let params = self.joiner.params().expect("parameters").clone();
        if params.finished {
            self.end();
            return Ok(());
        }
        self.kept = Kept::of(&self.ticket, &self.asked, at, &params);
        self.ticket.prefilled();
        self.hand_over(&params).await
    }

    async fn hand_over(&mut self, params: &TransferParams) -> Result<(), Stop> {
        let (to, leg) = hand_over(&mut self.ticket, &self.asked, params).await?;
        self.stage = Stage::Decode(to, leg, false);
        Ok(())
    }

    async fn decode(&mut self, at: WorkerId, mut leg: Leg, fetched: bool) -> Result<(), Stop> {
        let event = tokio::select! {
            event = leg.event() => event.map_err(|error| Stop::leg(at, error)),
            // One that hangs would hold the request for as long as silence is borne.
            () = self.ticket.shared.until_out(at), if !fetched => Err(out(at)),
        };
        let event = match event.and_then(|event| event.ok_or_else(|| cut(at))) {
            Ok(event) => event,
            Err(Stop::Worker { lost: true, .. }) if !fetched && self.ticket.hand_again(at) => {
                drop(leg);
                // OK because nothing is decoded before the parameters are there.
                let params = self.joiner.params().expect("parameters").clone();
                return self.hand_over(&params).await;
            }
            Err(stop) => return Err(stop),
        };
        let joined = self.joiner.decode(&event);
        match joined.map_err(|error| Stop::join(at, error))? {
            Joined::Events(events) => {
                if !fetched {
                    self.ticket.fetched();
                    self.ahead = None;
                    if let Some(kept) = self.kept.take() {
                        kept.fetched();
                    }
                }
                self.out.extend(events);
                self.stage = Stage::Decode(at, leg, true);
            }
            Joined::End => self.end(),
        }
        Ok(())
    }

    fn end(&mut self) {
        self.ticket.set_outcome(Outcome::Completed);
        self.stage = Stage::Ended;
    }

    /// The event that tells a client of an error in the middle of its answer.
    pub(crate) fn fail(&mut self, stop: &Stop) -> Vec<u8> {
        self.ticket.set_outcome(Outcome::Failed);
        self.stage = Stage::Ended;
        stop.event()
    }
}

/// A decode worker has not begun to answer, and does not answer the router either.
fn out(at: WorkerId) -> Stop {
    Stop::Worker {
        at,
        error: ApiError::bad_gateway(format!("worker {at} does not answer any more")),
        lost: true,
    }
}

fn cut(at: WorkerId) -> Stop {
    Stop::leg(
        at,
        LegError::new(LegFault::Cut, "the stream ended without [DONE]"),
    )
}
