//! One request that shows what the cache holds.
//!
//! Servers say it in different places, and some say nothing. The answer's own usage is asked
//! first, then the timings that llama.cpp adds, then the difference of the server's counters, and
//! that only if they moved by exactly this request, so that other traffic cannot pass for it.

use pb_contract::wire::Prompt;
use pb_contract::{Clock, WallClock};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::TargetError;
use crate::stats::Counters;
use crate::target::Target;

/// Where a number of cached tokens comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitSource {
    /// `usage.prompt_tokens_details.cached_tokens` of the answer.
    Usage,
    /// `timings.cache_n` of the answer.
    Timings,
    /// The server's counters before and after.
    Counters,
}

/// What a probe was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    /// Prompt tokens as the server counts them.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens from the cache; `None` when the server does not say, which is not zero.
    pub cached_tokens: Option<u32>,
    /// Where that was read.
    pub source: Option<HitSource>,
    /// Tokens from another tier, by counters or by the usage's own division.
    pub external_tokens: Option<u64>,
    /// The slot that served it, where the server has slots.
    pub slot: Option<u64>,
}

impl ProbeAnswer {
    /// Whether it shows that nothing was found, in the device's cache or in another tier; `None`
    /// when it shows neither that nor the opposite.
    pub fn found_nothing(&self) -> Option<bool> {
        if self.external_tokens.is_some_and(|tokens| tokens > 0) {
            return Some(false);
        }
        self.cached_tokens.map(|tokens| tokens == 0)
    }
}

impl Target {
    /// Sends `prompt` with one token of output and says how much of it was cached. It leaves the
    /// prompt in the cache. `fields` go into the request.
    ///
    /// # Errors
    /// A request fails.
    pub async fn probe(
        &self,
        prompt: &Prompt,
        fields: &Map<String, Value>,
    ) -> Result<ProbeAnswer, TargetError> {
        let before = self.stats().await?.map(|stats| stats.counters);
        let body = self.complete(prompt, fields).await?;
        let mut answer = read_answer(&body);
        if let (Some(before), Some(tokens)) = (before, answer.prompt_tokens) {
            let delta = self.settled(&before, u64::from(tokens)).await?;
            let Some(delta) = delta else {
                return Ok(answer);
            };
            if let Some(external) = delta.external_hit_tokens {
                answer.external_tokens = Some(external);
            }
            if answer.cached_tokens.is_none()
                && let Some(hits) = delta.all_hit_tokens()
            {
                answer.cached_tokens = u32::try_from(hits).ok();
                answer.source = Some(HitSource::Counters);
            }
        }
        answer.slot = self.last_slot().await?;
        Ok(answer)
    }

    /// What the counters say of one request of `tokens` prompt tokens; `None` when they do not
    /// come to show exactly that.
    async fn settled(
        &self,
        before: &Counters,
        tokens: u64,
    ) -> Result<Option<Counters>, TargetError> {
        let start = WallClock.now();
        loop {
            let Some(stats) = self.stats().await? else {
                return Ok(None);
            };
            let delta = stats.counters.since(before);
            match delta.query_tokens {
                Some(seen) if seen == tokens => return Ok(Some(delta)),
                Some(seen) if seen < tokens => {}
                Some(_) | None => return Ok(None),
            }
            if !self.again(start, self.patience.settle_ns).await {
                return Ok(None);
            }
        }
    }

    /// The slot that worked last.
    async fn last_slot(&self) -> Result<Option<u64>, TargetError> {
        let slots = self.slots().await?.unwrap_or_default();
        let last = slots.iter().max_by_key(|slot| slot["id_task"].as_i64());
        Ok(last.and_then(|slot| slot["id"].as_u64()))
    }
}

/// What an answer says by itself.
fn read_answer(body: &Value) -> ProbeAnswer {
    let count = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let usage = &body["usage"];
    let details = &usage["prompt_tokens_details"];
    let timings = &body["timings"];
    let (cached_tokens, source) = match (count(&details["cached_tokens"]), &timings["cache_n"]) {
        (Some(tokens), _) => (Some(tokens), Some(HitSource::Usage)),
        (None, cache_n) => {
            let tokens = count(cache_n);
            (tokens, tokens.map(|_| HitSource::Timings))
        }
    };
    let tiers = ["host", "storage"].map(|tier| details[tier].as_u64());
    ProbeAnswer {
        prompt_tokens: count(&usage["prompt_tokens"]),
        cached_tokens,
        source,
        external_tokens: tiers.into_iter().flatten().reduce(|a, b| a + b),
        slot: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// vllm #44377, #16162: a server that leaves the field out has not said zero.
    #[test]
    fn row_64_absent_is_unknown_and_zero_is_zero() {
        let details = |details: Value| {
            let body = json!({"usage": {"prompt_tokens": 9, "prompt_tokens_details": details}});
            read_answer(&body)
        };
        for absent in [Value::Null, json!({}), json!({"cached_tokens": null})] {
            let answer = details(absent);
            assert_eq!((answer.cached_tokens, answer.source), (None, None));
            assert_eq!(answer.found_nothing(), None);
        }
        let zero = details(json!({"cached_tokens": 0}));
        assert_eq!(
            (zero.cached_tokens, zero.source),
            (Some(0), Some(HitSource::Usage))
        );
        assert_eq!(zero.found_nothing(), Some(true));
        assert_eq!(
            details(json!({"cached_tokens": 4})).found_nothing(),
            Some(false)
        );
        let host = details(json!({"cached_tokens": 0, "host": 3, "storage": 1}));
        assert_eq!(host.external_tokens, Some(4));
        assert_eq!(host.found_nothing(), Some(false));
    }

    #[test]
    fn timings_speak_when_usage_does_not() {
        let body = json!({"usage": {"prompt_tokens": 5}, "timings": {"cache_n": 4}});
        let answer = read_answer(&body);
        assert_eq!(
            (answer.cached_tokens, answer.source),
            (Some(4), Some(HitSource::Timings))
        );
    }
}
