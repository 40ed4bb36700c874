//! A server of any kind, with a prefix cache, in the test's own process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use pb_contract::Nanos;
use pb_load::Endpoint;
use pb_target::{Patience, ServerKind, Target};
use serde_json::{Value, json};

/// What an answer says of cached tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Says {
    Always,
    /// Zero is left out (vllm #44377).
    OmitsZero,
    Nothing,
}

/// How the server works.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) kind: ServerKind,
    /// Tokens of a block.
    pub(crate) block: usize,
    pub(crate) says: Says,
    pub(crate) has_metrics: bool,
    pub(crate) cache_on: bool,
    pub(crate) has_reset: bool,
    /// Resets that are refused before one is accepted.
    pub(crate) refusals: u32,
    /// Says that the cache is empty and leaves it as it is.
    pub(crate) reset_lies: bool,
    /// Keeps every prompt in a second tier too.
    pub(crate) has_tier: bool,
    /// The reset of the second tier exists.
    pub(crate) resets_tier: bool,
    pub(crate) honours_salt: bool,
    /// Answers of the metrics page that still show a running request; each takes one away.
    pub(crate) busy_pages: u32,
    /// Preemptions that every request causes.
    pub(crate) preempts: u64,
}

impl Options {
    pub(crate) fn of(kind: ServerKind) -> Options {
        Options {
            kind,
            block: if kind == ServerKind::LlamaCpp { 1 } else { 4 },
            says: Says::Always,
            has_metrics: true,
            cache_on: true,
            has_reset: true,
            refusals: 0,
            reset_lies: false,
            has_tier: false,
            resets_tier: true,
            honours_salt: true,
            busy_pages: 0,
            preempts: 0,
        }
    }
}

type Prompt = (String, Vec<u64>);

#[derive(Debug, Default)]
struct Cache {
    device: Vec<Prompt>,
    tier: Vec<Prompt>,
    hits: usize,
    tier_hits: usize,
    queries: usize,
    requests: u64,
    log: Vec<String>,
}

/// A running server.
pub(crate) struct Fake {
    options: Mutex<Options>,
    cache: Mutex<Cache>,
    address: SocketAddr,
}

impl Fake {
    pub(crate) async fn start(options: Options) -> Arc<Fake> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Arc::new(Fake {
            options: Mutex::new(options),
            cache: Mutex::default(),
            address: listener.local_addr().unwrap(),
        });
        let app = Router::new().fallback(answer).with_state(Arc::clone(&fake));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        fake
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let url = format!("http://{}", self.address);
        Endpoint::parse(&url).unwrap().with_model("m")
    }

    /// Detects the server, in patience that suits a test.
    pub(crate) async fn target(&self) -> Target {
        let patience = Patience {
            retry_ns: Nanos::from_millis(2),
            limit_ns: Nanos::from_secs(3),
            settle_ns: Nanos::from_millis(50),
            ..Patience::default()
        };
        Target::connect(&self.endpoint(), None, patience)
            .await
            .unwrap()
    }

    /// Requests since the last call, as "METHOD path?query".
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.cache.lock().unwrap().log)
    }

    fn hit(&self, list: &[Prompt], prompt: &Prompt) -> usize {
        let block = self.options.lock().unwrap().block;
        let shared = |known: &Prompt| {
            let pairs = known.1.iter().zip(&prompt.1);
            let same = pairs.take_while(|(a, b)| a == b).count();
            if known.0 == prompt.0 { same } else { 0 }
        };
        let longest = list.iter().map(shared).max().unwrap_or(0);
        longest.min(prompt.1.len() - 1) / block * block
    }
}

async fn answer(State(fake): State<Arc<Fake>>, method: Method, uri: Uri, body: Bytes) -> Response {
    let path = uri.path_and_query().unwrap().to_string();
    fake.cache
        .lock()
        .unwrap()
        .log
        .push(format!("{method} {path}"));
    let kind = fake.options.lock().unwrap().kind;
    match (uri.path(), kind) {
        ("/v1/completions", _) => complete(&fake, &serde_json::from_slice(&body).unwrap()),
        ("/metrics", ServerKind::TrtLlm) => missing(),
        ("/metrics", _) | ("/prometheus/metrics", ServerKind::TrtLlm) => metrics(&fake),
        ("/slots", ServerKind::LlamaCpp) => slots(&fake),
        (path, ServerKind::LlamaCpp) if path.starts_with("/slots/") => reset(&fake, false),
        ("/reset_prefix_cache", ServerKind::Vllm | ServerKind::OwnEngine | ServerKind::Mock) => {
            reset(&fake, uri.query() == Some("reset_external=true"))
        }
        ("/flush_cache", ServerKind::Sglang) => reset(&fake, true),
        (path, kind) => describe(path, kind),
    }
}

fn missing() -> Response {
    let body = json!({"detail": "Not Found"}).to_string();
    (StatusCode::NOT_FOUND, body).into_response()
}

/// What each kind says of itself.
fn describe(path: &str, kind: ServerKind) -> Response {
    let models = |owner: &str| json!({"data": [{"id": "m", "owned_by": owner}]});
    let body = match (path, kind) {
        ("/v1/models", ServerKind::Vllm) => models("vllm"),
        ("/v1/models", ServerKind::Sglang) => models("sglang"),
        ("/v1/models", ServerKind::LlamaCpp) => models("llamacpp"),
        ("/v1/models", ServerKind::Tgi) => models("org/model"),
        ("/v1/models", ServerKind::TrtLlm) => models("tensorrt_llm"),
        ("/v1/models", ServerKind::OwnEngine) => models("prefillbench"),
        ("/v1/models", ServerKind::Mock) => models("prefillbench-mock"),
        ("/v1/models", ServerKind::Unknown) => models("openai"),
        ("/version", ServerKind::Vllm) => json!({"version": "0.32.0"}),
        ("/server_info", ServerKind::OwnEngine) => {
            json!({"name": "prefillbench", "version": "0.1.0"})
        }
        ("/get_server_info", ServerKind::Sglang) => {
            json!({"internal_states": [], "version": "0.5.23"})
        }
        ("/props", ServerKind::LlamaCpp) => {
            json!({"default_generation_settings": {}, "build_info": "b1"})
        }
        ("/info", ServerKind::Tgi) => {
            json!({"model_id": "org/model", "max_concurrent_requests": 128, "version": "3.3"})
        }
        _ => return missing(),
    };
    axum::Json(body).into_response()
}

fn complete(fake: &Fake, body: &Value) -> Response {
    let options = fake.options.lock().unwrap().clone();
    let tokens: Vec<u64> = match &body["prompt"] {
        Value::String(text) => text.bytes().map(u64::from).collect(),
        ids => ids
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap())
            .collect(),
    };
    let salt = body["cache_salt"].as_str().filter(|_| options.honours_salt);
    let prompt = (salt.unwrap_or_default().to_owned(), tokens);
    let mut cache = fake.cache.lock().unwrap();
    let usable = options.cache_on && body.get("cache_prompt") != Some(&json!(false));
    let (mut hit, mut tier_hit) = (0, 0);
    if usable {
        hit = fake.hit(&cache.device, &prompt);
        tier_hit = fake.hit(&cache.tier, &prompt).saturating_sub(hit);
        if options.has_tier {
            cache.tier.push(prompt.clone());
        }
        cache.device.push(prompt.clone());
    }
    let length = prompt.1.len();
    cache.hits += hit;
    cache.tier_hits += tier_hit;
    cache.queries += length;
    cache.requests += 1;
    let mut details = json!({});
    let silent = options.says == Says::Nothing || (options.says == Says::OmitsZero && hit == 0);
    if !silent {
        details["cached_tokens"] = json!(hit);
    }
    let usage = json!({"prompt_tokens": length, "prompt_tokens_details": details});
    axum::Json(json!({"choices": [], "usage": usage})).into_response()
}

fn reset(fake: &Fake, all_tiers: bool) -> Response {
    let mut options = fake.options.lock().unwrap();
    if !options.has_reset || (all_tiers && !options.resets_tier) {
        let status = match options.kind {
            ServerKind::LlamaCpp => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::NOT_FOUND,
        };
        return (status, "").into_response();
    }
    let sglang = options.kind == ServerKind::Sglang;
    if options.refusals > 0 {
        options.refusals -= 1;
        return if sglang {
            (StatusCode::BAD_REQUEST, "Cache not flushed.").into_response()
        } else {
            axum::Json(json!({"success": false})).into_response()
        };
    }
    if !options.reset_lies {
        let mut cache = fake.cache.lock().unwrap();
        cache.device.clear();
        if all_tiers {
            cache.tier.clear();
        }
    }
    if sglang {
        "Cache flushed.".into_response()
    } else {
        axum::Json(json!({"success": true})).into_response()
    }
}

fn slots(fake: &Fake) -> Response {
    let last = fake.cache.lock().unwrap().requests;
    let slots = json!([
        {"id": 0, "id_task": 0, "is_processing": false},
        {"id": 1, "id_task": last, "is_processing": false},
    ]);
    axum::Json(slots).into_response()
}

fn metrics(fake: &Fake) -> Response {
    let mut options = fake.options.lock().unwrap();
    if !options.has_metrics {
        return missing();
    }
    let busy = options.busy_pages.min(1);
    options.busy_pages = options.busy_pages.saturating_sub(1);
    let c = fake.cache.lock().unwrap();
    let page = match options.kind {
        ServerKind::Sglang => format!(
            "sglang:num_running_reqs {busy}\nsglang:num_queue_reqs 0\n\
             sglang:prompt_tokens_total {}\n\
             sglang:cached_tokens_total{{cache_source=\"device\"}} {}\n\
             sglang:cached_tokens_total{{cache_source=\"host\"}} {}\n\
             sglang:cache_config_info{{page_size=\"{}\"}} 1\n",
            c.queries, c.hits, c.tier_hits, options.block
        ),
        ServerKind::LlamaCpp => format!(
            "llamacpp:requests_processing {busy}\nllamacpp:prompt_tokens_total {}\n\
             llamacpp:prompt_tokens_cached_total {}\n",
            c.queries - c.hits,
            c.hits
        ),
        ServerKind::Tgi => format!("tgi_queue_size 0\ntgi_batch_current_size {busy}\n"),
        ServerKind::TrtLlm => "trtllm_kv_cache_utilization 0.5\n".to_owned(),
        ServerKind::Unknown => return missing(),
        ServerKind::Vllm | ServerKind::OwnEngine | ServerKind::Mock => format!(
            "vllm:num_requests_running {busy}\nvllm:num_requests_waiting 0\n\
             vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total {}\n\
             vllm:external_prefix_cache_hits_total {}\nvllm:num_preemptions_total {}\n\
             vllm:generation_tokens_total {}\n\
             vllm:cache_config_info{{block_size=\"{}\"}} 1\n",
            c.queries,
            c.hits,
            c.tier_hits,
            c.requests * options.preempts,
            c.requests,
            options.block
        ),
    };
    page.into_response()
}
