//! One answer out of two.
//!
//! The prefill worker answers with the first token and says where its KV is; the decode worker
//! answers with the rest. The client must see what one server would have sent: one id, each token
//! once, one finish, one usage, one end.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The field in which workers speak of KV.
pub(crate) const PARAMS: &str = "kv_transfer_params";

/// What ends a stream.
const DONE: &[u8] = b"[DONE]";

/// What a prefill worker says of a prompt that it has computed. Fields that only the decode worker
/// needs are carried along as they came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TransferParams {
    /// Whether the first token was the last one; then there is nothing to fetch.
    #[serde(default)]
    pub(crate) finished: bool,
    #[serde(flatten)]
    pub(crate) rest: Map<String, Value>,
}

/// Why answers cannot be joined.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JoinError {
    /// The worker reports an error: the object under `error`, and its status.
    Worker { event: Value, status: u16 },
    /// The worker does not keep to the protocol.
    Protocol(String),
}

/// What is to be done with an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Joined {
    /// Send these to the client.
    Events(Vec<Vec<u8>>),
    /// It was the last one of its worker.
    End,
}

fn parse(data: &[u8]) -> Result<Map<String, Value>, JoinError> {
    let event: Value = serde_json::from_slice(data)
        .map_err(|error| JoinError::Protocol(format!("an event is not JSON: {error}")))?;
    let Value::Object(map) = event else {
        return Err(JoinError::Protocol("an event is no object".to_owned()));
    };
    match map.get("error") {
        None | Some(Value::Null) => Ok(map),
        Some(error) => {
            let code = error.get("code").and_then(Value::as_u64).unwrap_or(500);
            Err(JoinError::Worker {
                status: u16::try_from(code).unwrap_or(500),
                event: Value::Object(map),
            })
        }
    }
}

fn bytes(event: Map<String, Value>) -> Vec<u8> {
    // OK because the keys of a JSON object are strings and a Vec takes every write.
    serde_json::to_vec(&Value::Object(event)).unwrap()
}

fn choices(event: &mut Map<String, Value>) -> &mut [Value] {
    match event.get_mut("choices") {
        Some(Value::Array(choices)) => choices,
        _ => &mut [],
    }
}

fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// Whether a choice of an event says nothing new but perhaps that it has ended.
fn says_nothing(choice: &Value) -> bool {
    let delta = choice.get("delta");
    let of_delta = |name| delta.and_then(|delta| delta.get(name));
    let contents = [
        choice.get("text"),
        choice.get("token_ids"),
        of_delta("content"),
        of_delta("role"),
    ];
    contents.into_iter().all(is_nothing)
}

fn finishes(choice: &Value) -> bool {
    choice.get("finish_reason").is_some_and(|f| !f.is_null())
}

/// Makes the event that ends a prefill one in the middle of an answer.
fn unfinish(event: &mut Map<String, Value>) {
    let mut ended = false;
    for choice in choices(event) {
        ended |= finishes(choice);
        let Some(choice) = choice.as_object_mut() else {
            continue;
        };
        if let Some(reason) = choice.get_mut("finish_reason") {
            *reason = Value::Null;
        }
        // A chat has it in its last event only, a completion in each.
        if choice.contains_key("delta") {
            choice.shift_remove("stop_reason");
        } else if let Some(reason) = choice.get_mut("stop_reason") {
            *reason = Value::Null;
        }
    }
    if ended {
        // Of last events only, too.
        event.shift_remove("system_fingerprint");
    }
}

/// Joins two streams, event by event.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    id: Option<Value>,
    created: Option<Value>,
    /// Parts of the prompt count, as the prefill worker saw them: only it knows what it had cached.
    details: Option<Value>,
    params: Option<TransferParams>,
    /// Events that end a choice, until it is known whether that is the end.
    waiting: Vec<Map<String, Value>>,
    forwarded: bool,
}

impl Joiner {
    /// Where the KV is, once the prefill worker has said so.
    pub(crate) fn params(&self) -> Option<&TransferParams> {
        self.params.as_ref()
    }

    /// Whether an event of a worker that does all is one of an answer.
    pub(crate) fn looks_good(&self, data: &[u8]) -> Result<(), JoinError> {
        parse(data).map(drop)
    }

    /// An event of the prefill worker.
    pub(crate) fn prefill(&mut self, data: &[u8]) -> Result<Joined, JoinError> {
        if data == DONE {
            if self.params.is_none() {
                let why = format!("the prefill worker ended without {PARAMS}");
                return Err(JoinError::Protocol(why));
            }
            return Ok(Joined::End);
        }
        let mut event = parse(data)?;
        if self.id.is_none() {
            self.id = event.get("id").cloned();
            self.created = event.get("created").cloned();
        }
        if let Some(details) = event
            .get("usage")
            .and_then(|u| u.get("prompt_tokens_details"))
        {
            self.details = Some(details.clone());
        }
        // In order, so that the rest of the event stays as it was.
        if let Some(params) = event
            .shift_remove(PARAMS)
            .filter(|params| !params.is_null())
        {
            self.params = Some(
                serde_json::from_value(params)
                    .map_err(|error| JoinError::Protocol(format!("{PARAMS}: {error}")))?,
            );
        }
        let mut out = Vec::new();
        let ends = choices(&mut event).is_empty() || choices(&mut event).iter().any(finishes);
        if !ends || (self.params.is_some() && self.waiting.is_empty()) {
            out.extend(self.decided(event));
        } else {
            self.waiting.push(event);
            if self.params.is_some() {
                for event in std::mem::take(&mut self.waiting) {
                    out.extend(self.decided(event));
                }
            }
        }
        Ok(Joined::Events(out))
    }

    /// An event for the client out of one of the prefill worker, now that it is known whether the
    /// request goes on, or none.
    fn decided(&mut self, mut event: Map<String, Value>) -> Option<Vec<u8>> {
        let finished = self.params.as_ref().is_some_and(|params| params.finished);
        if !finished {
            if choices(&mut event).is_empty() {
                // Usage: that of the whole request comes from the decode worker.
                return None;
            }
            unfinish(&mut event);
            if self.forwarded && choices(&mut event).iter().all(says_nothing) {
                return None;
            }
        }
        self.forwarded = true;
        Some(bytes(event))
    }

    /// An event of the decode worker.
    pub(crate) fn decode(&mut self, data: &[u8]) -> Result<Joined, JoinError> {
        if data == DONE {
            return Ok(Joined::End);
        }
        let mut event = parse(data)?;
        event.shift_remove(PARAMS);
        self.rename(&mut event);
        for choice in choices(&mut event) {
            if let Some(ids) = choice.get_mut("prompt_token_ids") {
                *ids = Value::Null;
            }
        }
        let roles = choices(&mut event).iter_mut().filter_map(|choice| {
            let delta = choice.get_mut("delta")?.as_object_mut()?;
            delta.shift_remove("role")
        });
        // The client knows the role: an event that has nothing else is not for it.
        let opened = roles.count() > 0;
        let idle = |choice: &Value| says_nothing(choice) && !finishes(choice);
        if opened && choices(&mut event).iter().all(idle) {
            return Ok(Joined::Events(Vec::new()));
        }
        Ok(Joined::Events(vec![bytes(event)]))
    }

    /// Makes an event of the decode worker one of this answer.
    fn rename(&self, event: &mut Map<String, Value>) {
        for (name, value) in [("id", &self.id), ("created", &self.created)] {
            if let (Some(place), Some(value)) = (event.get_mut(name), value) {
                *place = value.clone();
            }
        }
        set_details(event, self.details.as_ref());
    }
}

fn set_details(event: &mut Map<String, Value>, details: Option<&Value>) {
    let usage = event.get_mut("usage").and_then(Value::as_object_mut);
    if let (Some(usage), Some(details)) = (usage, details) {
        usage.insert("prompt_tokens_details".to_owned(), details.clone());
    }
}

/// Takes what the prefill worker says of its KV out of a whole answer.
pub(crate) fn take_params(
    answer: &[u8],
) -> Result<(Map<String, Value>, TransferParams), JoinError> {
    let mut answer = parse(answer)?;
    let params = answer.shift_remove(PARAMS).unwrap_or_default();
    let params = serde_json::from_value(params)
        .map_err(|error| JoinError::Protocol(format!("{PARAMS}: {error}")))?;
    Ok((answer, params))
}

/// Joins two whole answers.
pub(crate) fn join_whole(prefill: Map<String, Value>, decode: &[u8]) -> Result<Vec<u8>, JoinError> {
    let mut prefill = prefill;
    let mut decode = parse(decode)?;
    let [first] = choices(&mut prefill) else {
        return Err(JoinError::Protocol("not one choice".to_owned()));
    };
    let [rest] = choices(&mut decode) else {
        return Err(JoinError::Protocol("not one choice".to_owned()));
    };
    append(first, rest, "text");
    append(first, rest, "token_ids");
    if let (Some(first), Some(rest)) = (first.get_mut("message"), rest.get_mut("message")) {
        append(first, rest, "content");
    }
    for name in ["finish_reason", "stop_reason"] {
        if let (Some(place), Some(value)) = (first.get_mut(name), rest.get(name)) {
            *place = value.clone();
        }
    }
    if let Some(mut usage) = decode.shift_remove("usage") {
        let details = prefill
            .get("usage")
            .and_then(|u| u.get("prompt_tokens_details"));
        if let (Some(usage), Some(details)) = (usage.as_object_mut(), details) {
            usage.insert("prompt_tokens_details".to_owned(), details.clone());
        }
        prefill.insert("usage".to_owned(), usage);
    }
    Ok(bytes(prefill))
}

/// Appends the text or the list `name` of `rest` to that of `first`.
fn append(first: &mut Value, rest: &mut Value, name: &str) {
    match (first.get_mut(name), rest.get_mut(name)) {
        (Some(Value::String(text)), Some(Value::String(more))) => text.push_str(more),
        (Some(Value::Array(items)), Some(Value::Array(more))) => items.append(more),
        _ => {}
    }
}
