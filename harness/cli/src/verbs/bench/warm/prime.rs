//! Filling a cache, and seeing that it is filled.
//!
//! The requests that prime go the same way as measured ones, so that what they leave in the cache
//! is what measured ones will look for, a chat's template included. Only their output is one
//! token.

use anyhow::{Result, bail};
use pb_contract::plan::{ClosedLoop, Plan, PlannedBody, PlannedPrompt};
use pb_contract::wire::Prompt;
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus};
use pb_load::{Limits, RunContext, RunOptions, run_plan_by};
use pb_target::{CacheProof, IdleReport, ServerKind};
use serde_json::{Map, Value, json};

use super::{CacheAsk, stopped};

/// Prompts at once while the cache is primed.
const STREAMS: usize = 4;

/// Longer than any priming takes.
const FOREVER: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// A cache that was primed.
#[derive(Clone, Debug)]
pub(crate) struct Primed {
    /// Why nothing is shown; absent when every prompt was found.
    pub(crate) unproven: Option<String>,
    /// Tokens that each prompt found when it was sent again, where the server says so.
    pub(crate) found: Vec<Option<u32>>,
    idle: IdleReport,
    prompts: usize,
    source: &'static str,
}

impl Primed {
    /// For the manifest.
    pub(crate) fn receipt(&self) -> Value {
        let known = || self.found.iter().flatten();
        json!({
            "primed_prompts": self.prompts,
            "idle": self.idle,
            "verified_prompts": known().count(),
            "found_tokens": known().map(|&tokens| u64::from(tokens)).sum::<u64>(),
            "source": self.source,
            "unproven": self.unproven,
        })
    }
}

/// Sends every prompt once, waits until the server is idle, and sends them again. `fields` go
/// into every request; `block` is the length of a block, where it is known.
///
/// # Errors
/// A request fails, the server does not become idle, or the wish to stop came.
pub(crate) async fn prime_and_verify(
    ask: &CacheAsk<'_>,
    fields: &Map<String, Value>,
    prime: &[PlannedBody],
    block: Option<u32>,
) -> Result<Primed> {
    if prime.is_empty() {
        bail!("there is no prompt that the cache could be primed with");
    }
    send(ask, fields, prime, STREAMS).await?;
    let idle = ask.interrupt.guard(ask.target.wait_idle()).await??;
    // One after the other: what is found must not depend on what overlaps.
    let rows = send(ask, fields, prime, 1).await?;
    ask.interrupt.guard(ask.target.wait_idle()).await??;
    let mut primed = Primed {
        unproven: None,
        found: rows.iter().map(|row| row.cached_tokens).collect(),
        idle,
        prompts: prime.len(),
        source: "usage",
    };
    if primed.found.iter().all(Option::is_none) {
        by_counters(ask, fields, &prime[prime.len() - 1], block, &mut primed).await?;
        return Ok(primed);
    }
    let wrong = |(row, found): &(&RequestRow, &Option<u32>)| {
        let tokens = row.prompt_tokens.unwrap_or(row.prompt_tokens_planned);
        !is_found(**found, tokens, block)
    };
    let pairs = rows.iter().zip(&primed.found);
    let missing: Vec<_> = pairs.filter(wrong).collect();
    if let Some((row, found)) = missing.first() {
        primed.unproven = Some(format!(
            "{} of {} prompts were not found when they were sent again; the first found {:?} of \
             {} tokens: the cache is off, too small for them, or its blocks are longer",
            missing.len(),
            prime.len(),
            found,
            row.prompt_tokens.unwrap_or(row.prompt_tokens_planned)
        ));
    }
    Ok(primed)
}

/// Whether a prompt of `tokens` tokens that was sent before was found whole: all blocks but the
/// one of its last token, where their length is known, else anything.
fn is_found(found: Option<u32>, tokens: u32, block: Option<u32>) -> bool {
    let shareable = tokens.saturating_sub(1);
    match (found, block) {
        // A server that leaves out a count may leave out a zero.
        (found, Some(block)) => found.unwrap_or(0) == shareable / block * block,
        (found, None) => found.is_some_and(|found| found > 0),
    }
}

/// A server whose answers do not say what was found may have counters that do.
async fn by_counters(
    ask: &CacheAsk<'_>,
    fields: &Map<String, Value>,
    body: &PlannedBody,
    block: Option<u32>,
    primed: &mut Primed,
) -> Result<()> {
    let prompt = match &body.prompt {
        PlannedPrompt::Ids(ids) => Prompt::Ids(ids.clone()),
        PlannedPrompt::Text(text) => Prompt::Text(text.clone()),
        PlannedPrompt::Chat(_) => {
            let why = "the server's answers do not say how much of a chat it found";
            primed.unproven = Some(why.to_owned());
            return Ok(());
        }
    };
    let mut fields = fields.clone();
    if let Some(salt) = &body.cache_salt {
        fields.insert("cache_salt".to_owned(), Value::from(salt.as_str()));
    }
    let seen = ask
        .interrupt
        .guard(ask.target.probe(&prompt, &fields))
        .await??;
    let planned = seen.prompt_tokens.zip(block).map(|(tokens, block)| {
        let shareable = tokens.saturating_sub(1);
        shareable / block * block
    });
    let planned = planned.or(seen.cached_tokens).unwrap_or(0);
    let proved = ask.target.prove_warm(&prompt, planned, &fields);
    primed.source = "counters";
    if let CacheProof::Unproven { why } = ask.interrupt.guard(proved).await?? {
        primed.unproven = Some(why);
    }
    Ok(())
}

/// Sends requests as a closed loop and returns their rows in the order of the requests.
async fn send(
    ask: &CacheAsk<'_>,
    fields: &Map<String, Value>,
    bodies: &[PlannedBody],
    streams: usize,
) -> Result<Vec<RequestRow>> {
    let one_token = |body: &PlannedBody| PlannedBody {
        max_tokens: 1,
        ..body.clone()
    };
    let part = ClosedLoop {
        streams: streams.min(bodies.len()),
        first_id: RequestId(0),
        bodies: bodies.iter().map(one_token).collect(),
    };
    let plan = Plan {
        closed: vec![part],
        horizon_ns: FOREVER,
        drain_ns: Limits::default().total_ns,
        ..Plan::default()
    };
    let context = RunContext {
        arm: "prime".to_owned(),
        block: 0,
    };
    let endpoint = ask.endpoint.clone().with_extra_body(fields.clone());
    let mut rows: Vec<RequestRow> = Vec::new();
    let options = RunOptions {
        stop: ask.interrupt.signal(),
        reuse_connections: ask.target.kind() != ServerKind::LlamaCpp,
        ..RunOptions::default()
    };
    let emit = |record: pb_load::Record| rows.push(record.row);
    let run = run_plan_by(plan, context, &endpoint, options, emit).await?;
    if run.stopped {
        return Err(stopped());
    }
    rows.sort_by_key(|row| row.request);
    if let Some(row) = rows.iter().find(|row| row.status != RequestStatus::Ok) {
        let message = row.fail_message.as_deref().unwrap_or("no message");
        bail!(
            "request {} that primes the cache failed: {message}",
            row.request.0
        );
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_without_the_last_token_are_found() {
        for (found, tokens, block, expected) in [
            (Some(32), 33, Some(16), true),
            (Some(16), 32, Some(16), true),
            (Some(32), 32, Some(16), false),
            (Some(16), 33, Some(16), false),
            // Shorter than a block: nothing to find, and nothing said.
            (None, 9, Some(16), true),
            (None, 33, Some(16), false),
            (Some(1), 33, None, true),
            (Some(0), 33, None, false),
            (None, 33, None, false),
        ] {
            let is = is_found(found, tokens, block);
            assert_eq!(is, expected, "{found:?} of {tokens} in {block:?}");
        }
    }
}
