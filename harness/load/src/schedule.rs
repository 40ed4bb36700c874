//! The schedule of a run as bytes, so that two runs can prove that they asked for the same.
//!
//! The canonical form is JSON lines: a header, the open-loop requests, then each closed loop with
//! its requests, then each session with its turns. Prompts stand in it as their length and the
//! sha256 of their token ids or text, which keeps the file readable and still ties every token
//! down.

use std::fmt::Write;

use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Version of the canonical form.
const VERSION: u32 = 1;

/// The canonical bytes of a plan.
pub fn canonical(plan: &Plan) -> Vec<u8> {
    let mut lines = vec![json!({
        "prefillbench_schedule": VERSION,
        "horizon_ns": plan.horizon_ns,
        "drain_ns": plan.drain_ns,
        "open": plan.open.len(),
        "closed": plan.closed.len(),
    })];
    for request in &plan.open {
        let place = json!({ "id": request.id, "offset_ns": request.offset_ns });
        lines.push(joined(place, body(&request.body)));
    }
    for part in &plan.closed {
        let requests = part.bodies.len();
        lines.push(json!({ "streams": part.streams, "requests": requests }));
        for (index, request) in part.bodies.iter().enumerate() {
            let place = json!({ "id": part.first_id.0 + index as u64 });
            lines.push(joined(place, body(request)));
        }
    }
    for session in &plan.sessions {
        let turns = session.turns.len();
        lines.push(json!({ "offset_ns": session.offset_ns, "turns": turns }));
        for turn in &session.turns {
            let place = json!({
                "id": turn.id,
                "think_ns": turn.think_ns,
                "history": turn.history,
            });
            lines.push(joined(place, body(&turn.body)));
        }
    }
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text.into_bytes()
}

/// sha256 of the canonical bytes, in lower-case hexadecimal.
pub fn sha256_hex(plan: &Plan) -> String {
    hex(&Sha256::digest(canonical(plan)))
}

fn body(body: &PlannedBody) -> Value {
    let mut fields = json!({
        "class": body.class,
        "prompt_tokens": body.planned_tokens,
        "prompt_sha256": prompt_sha256(&body.prompt),
        "max_tokens": body.max_tokens,
        "cache_salt": body.cache_salt,
    });
    // What is as usual is left out, so that a schedule of usual requests keeps its hash.
    let kind = match body.prompt {
        PlannedPrompt::Ids(_) => None,
        PlannedPrompt::Text(_) => Some("text"),
        PlannedPrompt::Chat(_) => Some("chat"),
    };
    if let Some(kind) = kind {
        fields["prompt_kind"] = kind.into();
    }
    if !body.ignore_eos {
        fields["ignore_eos"] = false.into();
    }
    fields
}

/// Of token ids their little-endian bytes; of a text its bytes; of a chat each message's role and
/// content, each ended by a zero byte.
fn prompt_sha256(prompt: &PlannedPrompt) -> String {
    let mut hash = Sha256::new();
    match prompt {
        PlannedPrompt::Ids(ids) => ids.iter().for_each(|id| hash.update(id.to_le_bytes())),
        PlannedPrompt::Text(text) => hash.update(text),
        PlannedPrompt::Chat(turns) => {
            for part in turns.iter().flat_map(|turn| [&turn.role, &turn.content]) {
                hash.update(part);
                hash.update([0]);
            }
        }
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // OK because writing into a String cannot fail.
        write!(out, "{byte:02x}").expect("a String takes any text");
        out
    })
}

/// Two objects as one, the first one's keys first.
fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}
