//! The `manager` layer: block memory alone, as the random operations of `pb_kv` drive it.
//!
//! The lines are `pb_kv::script`'s. Here they get what all layers offer: the default cache, token
//! pieces, and names with underscores.

use pb_kv::script::ScriptRunner;
use serde_json::{Value, json};

use crate::config::HYPHENATED;
use crate::error::ReplayError;
use crate::tokens;

/// Answers one line.
pub(crate) fn line(runner: &mut ScriptRunner, line: &Value) -> Result<Value, ReplayError> {
    let text = plain(line)?.to_string();
    let answer = runner
        .line(&text)
        .map_err(|e| ReplayError::Manager(e.to_string().trim_end().to_owned()))?;
    match answer["broken"].as_str() {
        Some(law) => Err(ReplayError::BrokenLaw(law.to_owned())),
        None => Ok(answer),
    }
}

/// The line as the runner reads it.
fn plain(line: &Value) -> Result<Value, ReplayError> {
    let mut line = line.clone();
    match line["op"].as_str() {
        Some("config") => {
            if line["cache"].is_null() {
                line["cache"] = json!("hash_chain");
            }
            for key in HYPHENATED {
                if let Some(name) = line[key].as_str() {
                    line[key] = json!(name.replace('_', "-"));
                }
            }
            // Indexing a key that is not there for writing has put a null in its place.
            if let Some(map) = line.as_object_mut() {
                map.retain(|_, value| !value.is_null());
            }
        }
        Some("add" | "kv.append") if !line["tokens"].is_null() => {
            line["tokens"] = json!(tokens::parse("tokens", &line["tokens"])?);
        }
        _ => {}
    }
    Ok(line)
}
