//! What is looked at: the rows of one arm, and what is known beside them.

use pb_bench::server::Server;
use pb_contract::{RequestRow, RequestStatus};
use pb_record::RunData;
use serde_json::{Map, Value};

/// One arm of a run.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// What messages call the run.
    pub run: String,
    /// The rows.
    pub data: &'a RunData,
    /// The arm; its rows are those that count.
    pub arm: &'a str,
    /// Why the run must not be used; empty for a valid one.
    pub void: Vec<String>,
    /// What the server says of its configuration.
    pub engine: EngineFacts,
    /// What the server's metrics page said of the window.
    pub server: Option<Server>,
    /// Prompt tokens that an endless cache would have found, by the plan.
    pub ideal_hit_tokens: Option<u64>,
    /// Demands on the run that were not met, as the user wrote them.
    pub gates_missed: Vec<String>,
    /// Where the server listens, for a server that is not started by a suite.
    pub base_url: Option<String>,
}

impl<'a> Case<'a> {
    /// The requests of the arm, in their order.
    pub(super) fn requests(&self) -> impl Iterator<Item = &'a RequestRow> {
        let arm = self.arm;
        self.data.requests.iter().filter(move |row| row.arm == arm)
    }

    /// Those that ended well.
    pub(super) fn ended_well(&self) -> impl Iterator<Item = &'a RequestRow> {
        self.requests()
            .filter(|row| row.status == RequestStatus::Ok)
    }
}

/// The settings of an engine that a diagnosis needs. What is absent is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineFacts {
    /// Tokens in a KV block.
    pub block_size: Option<usize>,
    /// Blocks in the pool.
    pub num_blocks: Option<usize>,
    /// Sequences that may run at once.
    pub max_num_seqs: Option<usize>,
    /// Token budget of a step.
    pub max_batched_tokens: Option<usize>,
    /// This project's engine: its settings by the names that a suite knows them by.
    pub own: Option<Map<String, Value>>,
}

/// How much of the output that requests ask for is kept free for them.
pub(super) const CONSERVATIVENESS: &str = "schedule_conservativeness";

/// Settings of this project's engine that a suite repeats, by their place in its configuration.
const REPEATED: [(&str, &str); 12] = [
    ("/numerics", "numerics"),
    ("/kv_dtype", "kv_dtype"),
    ("/threads", "threads"),
    ("/chunked", "chunked"),
    ("/max_batched_tokens", "max_batched_tokens"),
    ("/max_num_seqs", "max_num_seqs"),
    ("/prefix_cache", "prefix_cache"),
    ("/block_size", "block_size"),
    ("/num_blocks", "num_blocks"),
    ("/max_model_len", "max_model_len"),
    ("/scheduling/policy", "policy"),
    (
        "/scheduling/reserved_decode/conservativeness",
        CONSERVATIVENESS,
    ),
];

impl EngineFacts {
    /// From the configuration that a manifest keeps of an arm's server; `model` is what its weights
    /// are called.
    pub fn of(config: &Value, model: &str) -> EngineFacts {
        let count = |key: &str| {
            let value = config.get(key).and_then(Value::as_u64);
            // More is no setting of an engine, and a suite file could not hold twice as much.
            value
                .and_then(|value| u32::try_from(value).ok())
                .map(|value| value as usize)
        };
        let is_own = config.get("scheduling").is_some_and(Value::is_object);
        let own = is_own.then(|| {
            let settings = REPEATED.iter().filter_map(|(place, name)| {
                let value = config.pointer(place)?;
                // A default that only one policy heeds is no setting of the others.
                let reserves = config.pointer("/scheduling/reserved_decode/enabled");
                let is_kept = *name == CONSERVATIVENESS;
                let heeded = !is_kept || reserves.and_then(Value::as_bool) == Some(true);
                // What is none of these is no setting, and TOML may not hold it.
                let is_number = value.is_i64() || (is_kept && value.is_f64());
                let is_plain = value.is_string() || value.is_boolean() || is_number;
                (heeded && is_plain).then(|| ((*name).to_owned(), value.clone()))
            });
            let mut own: Map<String, Value> = settings.collect();
            own.insert("model".to_owned(), Value::from(model));
            if own.contains_key(CONSERVATIVENESS) {
                own.insert("preset".to_owned(), Value::from("sglang"));
            }
            own
        });
        EngineFacts {
            block_size: count("block_size"),
            num_blocks: count("num_blocks"),
            max_num_seqs: count("max_num_seqs"),
            max_batched_tokens: count("max_batched_tokens"),
            own,
        }
    }
}
