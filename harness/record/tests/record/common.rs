//! Rows and manifests for the tests.

use pb_contract::manifest::{Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, RunManifest, TokenRow};

/// A manifest with nothing in it.
pub(crate) fn manifest() -> RunManifest {
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "test".into(),
        state: RunState::Running,
        created: "2030-01-01T00:00:00Z".into(),
        command: vec!["prefillbench".into()],
        tool: ToolVersion::default(),
        machine: Machine::default(),
        model: ModelReceipt::default(),
        seed: 7,
        schedule_sha256: Default::default(),
        arms: Vec::new(),
        order: Vec::new(),
        workload: serde_json::Value::Null,
    }
}

/// A successful request with every instant set, `id` seconds after the origin.
pub(crate) fn row(id: u64) -> RequestRow {
    let at = |ms| Some(Nanos::from_secs(id) + Nanos::from_millis(ms));
    RequestRow {
        arm: "A".into(),
        block: 0,
        request: RequestId(id),
        class: "background".into(),
        intended_ns: Nanos::from_secs(id),
        sent_ns: at(1),
        headers_ns: at(2),
        first_event_ns: at(50),
        first_token_ns: at(200),
        last_token_ns: at(400),
        closed_ns: at(416),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("length".into()),
        prompt_tokens_planned: 32,
        prompt_tokens: Some(32),
        cached_tokens: Some(0),
        max_tokens: 5,
        completion_tokens: Some(5),
        streamed_tokens: 5,
    }
}

/// Content events of request `id`: `(milliseconds, tokens)` after its intended arrival.
pub(crate) fn tokens(id: u64, events: &[(u64, u32)]) -> Vec<TokenRow> {
    let make = |(index, &(ms, tokens)): (usize, &(u64, u32))| TokenRow {
        arm: "A".into(),
        block: 0,
        request: RequestId(id),
        event: index as u32,
        at_ns: Nanos::from_secs(id) + Nanos::from_millis(ms),
        tokens,
    };
    events.iter().enumerate().map(make).collect()
}
