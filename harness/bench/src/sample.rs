//! Synthetic runs whose numbers are known: for tests, examples and the measurement of memory.
//!
//! They are written through the writer of real runs, and their rows hold everything that a real
//! client's rows hold.

use std::path::Path;

use pb_contract::manifest::{Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion};
use pb_contract::{FailKind, Nanos, RequestId, RequestRow, RequestStatus, RunManifest, TokenRow};
use pb_record::{RecordError, RunWriter};

use crate::conditions::{CONDITIONS_FILE, Conditions};

/// A request and its content events.
pub type Sample = (RequestRow, Vec<TokenRow>);

const MS: u64 = 1_000_000;

/// The stream is closed this long after the intended arrival, or with the last token.
const CLOSED: Nanos = Nanos(416 * MS);

/// A request that is due at `intended` and gets content events, each given as the time after that
/// and its number of tokens. Sent after 0.25 ms; its first event, a role, comes after 50 ms or with
/// the first token.
pub fn record(id: u64, intended: Nanos, events: &[(Nanos, u32)]) -> Sample {
    let (arm, request) = ("target".to_owned(), RequestId(id));
    let tokens = (0..).zip(events).map(|(event, &(after, tokens))| TokenRow {
        arm: arm.clone(),
        block: 0,
        request,
        event,
        at_ns: intended + after,
        tokens,
    });
    let tokens: Vec<TokenRow> = tokens.collect();
    let streamed = events.iter().map(|(_, tokens)| tokens).sum();
    let (first, last) = (
        tokens.first().map(|t| t.at_ns),
        tokens.last().map(|t| t.at_ns),
    );
    let role = intended + Nanos(50 * MS);
    let row = RequestRow {
        arm,
        block: 0,
        request,
        class: "random".into(),
        intended_ns: intended,
        sent_ns: Some(intended + Nanos(MS / 4)),
        headers_ns: Some(intended + Nanos(MS)),
        first_event_ns: Some(first.map_or(role, |first| first.min(role))),
        first_token_ns: first,
        last_token_ns: last,
        closed_ns: last.max(Some(intended + CLOSED)),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("stop".into()),
        prompt_tokens_planned: 12,
        prompt_tokens: Some(13),
        cached_tokens: None,
        max_tokens: 5,
        completion_tokens: Some(streamed),
        streamed_tokens: streamed,
    };
    (row, tokens)
}

/// A request that is due at `intended` and refused with status 503 after 3 ms.
pub fn refused(id: u64, intended: Nanos) -> Sample {
    let (row, _) = record(id, intended, &[]);
    let row = RequestRow {
        status: RequestStatus::Failed,
        fail: Some(FailKind::HttpStatus),
        http_status: Some(503),
        first_event_ns: None,
        closed_ns: Some(intended + Nanos(3 * MS)),
        finish_reason: None,
        prompt_tokens: None,
        completion_tokens: None,
        ..row
    };
    (row, Vec::new())
}

/// The manifest of a run under these conditions.
pub fn manifest(conditions: &Conditions) -> RunManifest {
    let hash = conditions.frame.schedule_sha256.clone();
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "bench".into(),
        state: RunState::Running,
        created: "2030-01-01T00:00:00Z".into(),
        command: Vec::new(),
        tool: ToolVersion::default(),
        machine: Machine::default(),
        model: ModelReceipt::default(),
        seed: conditions.frame.seed,
        schedule_sha256: [("0:target".to_owned(), hash)].into(),
        arms: Vec::new(),
        order: Vec::new(),
        workload: serde_json::Value::Null,
    }
}

/// Writes a run directory. Without a state its writer was killed before it could finish.
///
/// # Errors
/// Whatever the file system says; a directory that holds a run.
pub fn write(
    dir: &Path,
    conditions: &Conditions,
    records: impl IntoIterator<Item = Sample>,
    state: Option<RunState>,
) -> Result<(), RecordError> {
    let mut writer = RunWriter::create(dir, manifest(conditions))?;
    writer.write_json(CONDITIONS_FILE, conditions)?;
    for (row, tokens) in records {
        writer.request(&row, &tokens)?;
    }
    state.map_or(Ok(()), |state| writer.finish(state).map(drop))
}
