//! Scripts of cache operations, judged as they run.
//!
//! A script is a list of JSON lines: a configuration, then operations. It drives any
//! [`PrefixCache`](crate::PrefixCache) through the trait alone, follows in a model of the blocks'
//! contents what each slot must hold, and verifies every law after every operation. Every
//! sub-list of a script is a script as well (an operation that does not apply is skipped), so a
//! failing one can be shrunk mechanically, see [`shrink()`].
//!
//! ```
//! let script = r#"{"op":"config","cache":"hash_chain","block_size":4,"num_blocks":8}
//! {"op":"add","id":"a","tokens":[1,2,3,4,5]}
//! {"op":"kv.allocate","id":"a","tokens":5}
//! {"op":"kv.commit"}
//! {"op":"add","id":"b","tokens":[1,2,3,4,9]}
//! {"op":"kv.lookup","id":"b"}"#;
//! let answers = pb_kv::script::run_script(script.lines())?;
//! assert_eq!(answers[5], serde_json::json!({"hit_tokens": 4}));
//! # Ok::<(), pb_kv::script::ScriptError>(())
//! ```

mod contents;
mod laws;
mod ops;
mod session;
mod shrink;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

pub use ops::{ConfigLine, Layer, Op};
pub use session::{Answer, Broken, Counted, Session, Stage};
pub use shrink::shrink;

use crate::KvError;
use crate::cache::build;

/// Token slots of the largest pool that a script may ask for.
pub const MAX_SLOTS: usize = 1 << 24;

/// Why a line cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The line is no operation of a script, or a field of it is wrong.
    #[error("line {line}: {source}: {text}")]
    Malformed {
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The configuration makes no cache.
    #[error("line {line}: {source}")]
    Config {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        source: KvError,
    },
    /// The model of the blocks' contents would not fit into memory.
    #[error(
        "line {line}: block_size * num_blocks = {block_size} * {num_blocks}: a script follows at \
         most {MAX_SLOTS} slots"
    )]
    TooLarge {
        /// Number of the line, from 1.
        line: usize,
        /// Tokens in a block.
        block_size: usize,
        /// Blocks in the pool.
        num_blocks: usize,
    },
    /// The first line must say which cache.
    #[error(
        "line {line}: an operation before the configuration: begin with \
         {{\"op\":\"config\",\"cache\":..,\"block_size\":..,\"num_blocks\":..}}"
    )]
    NoConfig {
        /// Number of the line, from 1.
        line: usize,
    },
    /// A script has one configuration.
    #[error("line {line}: a second configuration: begin a new script")]
    SecondConfig {
        /// Number of the line, from 1.
        line: usize,
    },
    /// A law was broken before.
    #[error("line {line}: the cache broke a law before: nothing after that has a meaning")]
    Over {
        /// Number of the line, from 1.
        line: usize,
    },
}

/// Carries out a script line by line.
#[derive(Debug, Default)]
pub struct ScriptRunner {
    session: Option<Session>,
    lines: usize,
    broken: bool,
}

impl ScriptRunner {
    /// Whether a law was broken.
    pub fn broken(&self) -> bool {
        self.broken
    }

    /// Carries out one line. A broken law is an answer: `{"broken": "the law"}`.
    ///
    /// # Errors
    /// When the line is malformed or out of place.
    pub fn line(&mut self, text: &str) -> Result<Value, ScriptError> {
        self.lines += 1;
        let line = self.lines;
        let malformed = |source| ScriptError::Malformed {
            line,
            text: text.to_owned(),
            source,
        };
        if self.broken {
            return Err(ScriptError::Over { line });
        }
        let mut value: Value = serde_json::from_str(text).map_err(malformed)?;
        if value["op"] == "config" {
            // The name has told which type the other fields are of.
            value.as_object_mut().map(|fields| fields.remove("op"));
            if self.session.is_some() {
                return Err(ScriptError::SecondConfig { line });
            }
            let config: ConfigLine = serde_json::from_value(value).map_err(malformed)?;
            let (block_size, num_blocks) = (config.block_size, config.num_blocks);
            if block_size.saturating_mul(num_blocks) > MAX_SLOTS {
                return Err(ScriptError::TooLarge {
                    line,
                    block_size,
                    num_blocks,
                });
            }
            let cache =
                build(config.kv_config()).map_err(|source| ScriptError::Config { line, source })?;
            self.session = Some(Session::new(cache));
            return Ok(json!({}));
        }
        let Some(session) = &mut self.session else {
            return Err(ScriptError::NoConfig { line });
        };
        let op: Op = serde_json::from_value(value).map_err(malformed)?;
        Ok(match session.apply(&op) {
            Ok(answer) => answer.to_json(),
            Err(law) => {
                self.broken = true;
                json!({ "broken": law.0 })
            }
        })
    }
}

/// Carries out a whole script and returns one answer a line; it ends early with the answer that
/// names a broken law.
///
/// # Errors
/// When a line is malformed or out of place.
pub fn run_script<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Value>, ScriptError> {
    let mut runner = ScriptRunner::default();
    let mut answers = Vec::new();
    for line in lines {
        answers.push(runner.line(line)?);
        if runner.broken() {
            break;
        }
    }
    Ok(answers)
}

/// The lines of a script: the configuration, then the operations.
pub fn to_lines(config: &ConfigLine, ops: &[Op]) -> Vec<String> {
    let config = json!(config).to_string();
    let ops = ops.iter().map(|op| json!(op).to_string());
    std::iter::once(config).chain(ops).collect()
}

impl Answer {
    /// The answer as it stands in a script's output.
    pub fn to_json(&self) -> Value {
        match self {
            Answer::Done => json!({}),
            Answer::Skipped(why) => json!({ "skipped": why }),
            Answer::Found { hit_tokens } => json!({ "hit_tokens": hit_tokens }),
            Answer::Allocated {
                hit_tokens,
                new_tokens,
                blocks,
                copies,
            } => json!({
                "allocated": true,
                "hit_tokens": hit_tokens,
                "new_tokens": new_tokens,
                "blocks": blocks,
                "copies": copies,
            }),
            Answer::Refused => json!({ "allocated": false }),
            Answer::Committed(names) => json!({ "committed": names }),
            Answer::Forked(blocks) => json!({ "blocks": blocks }),
            Answer::Restarted(names) => json!({ "restarted": names }),
            Answer::Reset(done) => json!({ "reset": done }),
            Answer::State {
                buckets,
                free_queue,
                requests,
            } => {
                let request = |(name, (computed, blocks)): (&String, &(usize, Vec<_>))| {
                    let state = json!({ "computed": computed, "blocks": blocks });
                    (name.clone(), state)
                };
                let requests: serde_json::Map<String, Value> =
                    requests.iter().map(request).collect();
                json!({ "buckets": buckets, "free_queue": free_queue, "requests": requests })
            }
        }
    }
}
