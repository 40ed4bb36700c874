//! What kind of server answers, from evidence.
//!
//! No single sign is enough: gateways answer for others, and servers copy each other's names for
//! the sake of compatibility. Each sign is a clue with a strength; the kind with the most wins,
//! a tie is unknown, and all clues are reported so that the user can see why and overrule it.

use std::fmt;

use pb_contract::Nanos;
use pb_load::control::{Control, Exchange, Method};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kind::ServerKind;
use crate::prometheus::Exposition;

/// Strength of a sign that several kinds share.
const WEAK: u32 = 1;
/// Strength of a route or a name that one kind has.
const SHAPE: u32 = 2;
/// Strength of a server that names itself.
const NAMES_ITSELF: u32 = 3;

/// Routes that are asked, all with `GET`.
const ROUTES: [&str; 8] = [
    "/v1/models",
    "/version",
    "/server_info",
    "/get_server_info",
    "/props",
    "/info",
    "/metrics",
    "/prometheus/metrics",
];

/// One sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clue {
    /// What it speaks for.
    pub kind: ServerKind,
    /// 1 for weak, 2 for a route or name of its own, 3 for a server that names itself.
    pub strength: u32,
    /// What was seen, and where.
    pub seen: String,
}

/// What kind of server it is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detection {
    /// The kind that is used.
    pub kind: ServerKind,
    /// The kind that the clues speak for.
    pub found: ServerKind,
    /// Clues, in the order in which they were met.
    pub clues: Vec<Clue>,
    /// Version, as the server says.
    pub version: Option<String>,
}

impl fmt::Display for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        if self.kind != self.found {
            write!(f, " (given; the evidence says {})", self.found)?;
        }
        let seen: Vec<&str> = self.clues.iter().map(|clue| clue.seen.as_str()).collect();
        match seen.as_slice() {
            [] => write!(f, ": no evidence"),
            seen => write!(f, ": {}", seen.join("; ")),
        }
    }
}

impl Detection {
    /// Asks a server and judges its answers; `given` overrules the judgement. A route that does
    /// not answer within `limit` gives no clue.
    pub async fn of(control: &Control, given: Option<ServerKind>, limit: Nanos) -> Detection {
        let mut answers = Vec::new();
        for route in ROUTES {
            let asked = control.exchange(Method::GET, route, None);
            let asked = tokio::time::timeout(limit.to_duration(), asked).await;
            if let Ok(Ok(answer)) = asked {
                answers.push((route, answer));
            }
        }
        let mut detection = judge(&answers);
        detection.kind = given.unwrap_or(detection.found);
        detection
    }
}

/// Judges answers by their routes.
pub fn judge(answers: &[(&str, Exchange)]) -> Detection {
    let mut clues = Vec::new();
    let mut version = None;
    for (route, answer) in answers {
        headers(route, answer, &mut clues);
        if answer.status != 200 {
            continue;
        }
        if route.ends_with("/metrics") {
            metrics(route, &answer.body, &mut clues);
        } else if let Ok(body) = serde_json::from_str::<Value>(&answer.body) {
            let before = clues.len();
            json(route, &body, &mut clues);
            if clues.len() > before && version.is_none() {
                version = version_of(&body);
            }
        }
    }
    let found = strongest(&clues);
    Detection {
        kind: found,
        found,
        clues,
        version,
    }
}

fn strongest(clues: &[Clue]) -> ServerKind {
    let score = |kind: ServerKind| -> u32 {
        let of_kind = clues.iter().filter(|clue| clue.kind == kind);
        of_kind.map(|clue| clue.strength).sum()
    };
    let mut ranked = ServerKind::ALL.map(|kind| (score(kind), kind));
    ranked.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    let ((first, kind), (second, _)) = (ranked[0], ranked[1]);
    if first > second {
        kind
    } else {
        ServerKind::Unknown
    }
}

fn headers(route: &str, answer: &Exchange, clues: &mut Vec<Clue>) {
    for (name, value) in &answer.headers {
        let kind = match name.as_str() {
            "server" if value.starts_with("llama.cpp") => ServerKind::LlamaCpp,
            "x-request-id" if value.starts_with("mock-") => ServerKind::Mock,
            _ => continue,
        };
        let seen = format!("header {name}: {value}");
        // Every answer of a server has it; it counts once.
        if !clues
            .iter()
            .any(|clue| clue.kind == kind && clue.seen.starts_with("header"))
        {
            let seen = format!("{seen} at {route}");
            clues.push(Clue {
                kind,
                strength: NAMES_ITSELF,
                seen,
            });
        }
    }
}

fn owner(name: &str) -> Option<ServerKind> {
    Some(match name {
        "vllm" => ServerKind::Vllm,
        "sglang" => ServerKind::Sglang,
        "llamacpp" => ServerKind::LlamaCpp,
        "tensorrt_llm" => ServerKind::TrtLlm,
        "prefillbench" => ServerKind::OwnEngine,
        "prefillbench-mock" => ServerKind::Mock,
        _ => return None,
    })
}

fn json(route: &str, body: &Value, clues: &mut Vec<Clue>) {
    let has = |key: &str| body.get(key).is_some();
    let mut clue = |kind, strength, what: &str| {
        let seen = format!("{what} at {route}");
        clues.push(Clue {
            kind,
            strength,
            seen,
        });
    };
    match route {
        "/v1/models" => {
            let owned_by = body["data"][0]["owned_by"].as_str().unwrap_or_default();
            if let Some(kind) = owner(owned_by) {
                clue(kind, NAMES_ITSELF, &format!("owned_by {owned_by:?}"));
            }
        }
        "/version" if body["version"].is_string() => {
            clue(ServerKind::Vllm, WEAK, "a version");
        }
        "/server_info" if body["name"] == "prefillbench" => {
            clue(ServerKind::OwnEngine, NAMES_ITSELF, "the name prefillbench");
        }
        "/server_info" | "/get_server_info" if has("internal_states") => {
            clue(ServerKind::Sglang, SHAPE, "internal_states");
        }
        "/props" if has("default_generation_settings") => {
            clue(ServerKind::LlamaCpp, SHAPE, "default_generation_settings");
        }
        "/info" if has("model_id") && has("max_concurrent_requests") => {
            clue(
                ServerKind::Tgi,
                SHAPE,
                "model_id and max_concurrent_requests",
            );
        }
        _ => {}
    }
}

fn version_of(body: &Value) -> Option<String> {
    let text = |key: &str| body.get(key).and_then(Value::as_str);
    text("version").or(text("build_info")).map(str::to_owned)
}

fn metrics(route: &str, body: &str, clues: &mut Vec<Clue>) {
    let page = Exposition::parse(body);
    let prefixes = [
        // Others use vLLM's names for compatibility.
        ("vllm:", ServerKind::Vllm, WEAK),
        ("sglang:", ServerKind::Sglang, SHAPE),
        ("llamacpp:", ServerKind::LlamaCpp, SHAPE),
        ("tgi_", ServerKind::Tgi, SHAPE),
        ("trtllm_", ServerKind::TrtLlm, SHAPE),
        ("prefillbench_mock", ServerKind::Mock, NAMES_ITSELF),
        ("prefillbench_step", ServerKind::OwnEngine, NAMES_ITSELF),
    ];
    for (prefix, kind, strength) in prefixes {
        if page.count_prefix(prefix) > 0 {
            let seen = format!("metrics {prefix}* at {route}");
            clues.push(Clue {
                kind,
                strength,
                seen,
            });
        }
    }
}
