//! Scripts that drive the real scheduler, allocator and prefix cache with no model.
//!
//! A script has one JSON object a line and every line has one answer, so that a schedule or a
//! cache state can be compared with another program's, a fault report can be written down, and a
//! failure found by random operations can be handed on. `docs/REPLAY.md` describes the lines.
//!
//! Three layers can be driven: the whole engine (the default), the radix tree alone (`cache`),
//! and block memory alone (`manager`).
//!
//! ```
//! let mut replay = pb_replay::Replay::default();
//! replay.line(r#"{"op":"config","preset":"vllm-v1","block_size":4,"num_blocks":8}"#);
//! replay.line(r#"{"op":"add","id":"r0","tokens":{"range":[1,11]},"max_tokens":1}"#);
//! let answer = replay.line(r#"{"op":"step"}"#);
//! assert_eq!(answer["scheduled"][0]["count"], 10);
//! ```

mod config;
mod engine;
mod error;
mod fields;
mod manager;
mod state;
mod tokens;
mod tree;

use pb_contract::EngineConfig;
use serde_json::{Value, json};

pub use error::ReplayError;

use crate::engine::EngineLayer;
use crate::fields::Fields;
use crate::tree::TreeLayer;

/// The engine configuration that the keys of a `config` line describe.
///
/// # Errors
/// [`ReplayError::Field`] for a key that is missing, unknown or has a wrong value.
pub fn engine_config(keys: &Value) -> Result<EngineConfig, ReplayError> {
    config::parse(Fields::new(keys)?)
}

/// A script in progress.
#[derive(Default)]
pub struct Replay {
    layer: Layer,
    /// A law of the engine that no longer holds, as the answer that said so.
    broken: bool,
}

/// What the `config` line asked for.
#[derive(Default)]
enum Layer {
    #[default]
    Unset,
    Engine(Box<EngineLayer>),
    Tree(TreeLayer),
    Manager(Box<pb_kv::script::ScriptRunner>),
}

impl Replay {
    /// Answers one line. An error is an answer too; the script goes on after it.
    pub fn line(&mut self, text: &str) -> Value {
        self.answer(text).unwrap_or_else(|error| self.refuse(error))
    }

    /// Whether an answer told of a broken law of the engine.
    pub fn broken(&self) -> bool {
        self.broken
    }

    fn refuse(&mut self, error: ReplayError) -> Value {
        self.broken |= error.is_broken_law();
        json!({"error": {"kind": error.kind(), "message": error.to_string()}})
    }

    fn answer(&mut self, text: &str) -> Result<Value, ReplayError> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| ReplayError::Syntax(e.to_string()))?;
        let mut fields = Fields::new(&value)?;
        let op = fields.text("op")?;
        if op == "config" {
            return self.configure(&value, fields);
        }
        match &mut self.layer {
            Layer::Unset => Err(ReplayError::NoConfig(op)),
            Layer::Engine(layer) => layer.answer(&op, fields),
            Layer::Tree(layer) => layer.answer(&op, fields),
            Layer::Manager(runner) => manager::line(runner, &value),
        }
    }

    fn configure(&mut self, line: &Value, mut fields: Fields) -> Result<Value, ReplayError> {
        let layer = fields.optional_text("layer")?;
        self.layer = match layer.as_deref().unwrap_or("engine") {
            "engine" => Layer::Engine(Box::new(EngineLayer::new(fields)?)),
            "cache" => Layer::Tree(TreeLayer::new(fields)?),
            "manager" => {
                let mut runner = pb_kv::script::ScriptRunner::default();
                manager::line(&mut runner, line)?;
                Layer::Manager(Box::new(runner))
            }
            other => {
                return Err(ReplayError::field(
                    "layer",
                    other,
                    "must be engine, cache or manager",
                ));
            }
        };
        Ok(json!({}))
    }
}
