//! Proving that a cache is cold, or warm.
//!
//! A zero proves something only where a hit would have shown: a server whose cache is off, or
//! that never reports hits, shows zero or nothing whatever it holds. So a probe is sent twice
//! first, and only a channel that has shown a hit can then prove that there is none.

use pb_contract::wire::Prompt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::TargetError;
use crate::probe::{HitSource, ProbeAnswer};
use crate::reset::{IdleReport, ResetOutcome};
use crate::salt::{Salt, SaltMaker};
use crate::target::Target;

/// What is known of the cache at the start of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheProof {
    /// It holds nothing that the cell's prompts begin with.
    Cold {
        /// How that came about.
        method: ColdMethod,
        /// How it was seen.
        evidence: Evidence,
    },
    /// It holds what was planned.
    Warm {
        /// Tokens found, as many as planned.
        hit_tokens: u32,
        /// Where that was read.
        source: HitSource,
    },
    /// Neither could be shown; no claim about the cache may be made.
    Unproven {
        /// Why not.
        why: String,
    },
}

/// How a cache was made cold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColdMethod {
    /// Emptied.
    Reset {
        /// Path of the request.
        route: String,
        /// Requests that it took.
        attempts: u32,
        /// Whether the server said so.
        confirmed: bool,
    },
    /// The cell's requests carry a salt for the cache's keys.
    CacheSalt,
    /// The cell's requests tell the server to leave the cache alone, so they do not find each
    /// other's prompts either.
    RequestField {
        /// The field, which is false.
        field: String,
    },
    /// The first block of every prompt of the cell is new to the server.
    FirstBlockSalt,
    /// The server reuses nothing.
    CacheOff,
}

/// How coldness was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// A probe that was found before was not found any more.
    Measured {
        /// Where that was read.
        source: HitSource,
        /// Tokens that it had found before.
        before_tokens: u32,
        /// Tokens from other tiers, zero; absent when the server does not count them.
        external_tokens: Option<u64>,
    },
    /// The server shows no hits; a prefix cache cannot hold what it was never sent.
    ByConstruction,
}

/// A cache made cold, and what the cell's requests must carry so that it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ColdState {
    /// What was shown.
    pub proof: CacheProof,
    /// How idleness was seen.
    pub idle: IdleReport,
    /// What the probe found when it was sent for the second time.
    pub control: ProbeAnswer,
    /// Fields that every request of the cell must carry.
    pub request_fields: Map<String, Value>,
    /// Salt that every prompt of the cell must be given.
    pub salt: Option<Salt>,
}

impl ColdState {
    /// A prompt as this cell must send it.
    ///
    /// # Errors
    /// It cannot be salted.
    pub fn dress(&self, prompt: &Prompt) -> Result<Prompt, TargetError> {
        match &self.salt {
            Some(salt) => salt.apply(prompt),
            None => Ok(prompt.clone()),
        }
    }
}

impl Target {
    /// Makes the cache cold and proves it, by the first of these that works: the server's resets,
    /// a salt for its cache keys, its field to leave the cache alone, a salted first block.
    /// `probe` must be longer than a block and begin unlike any prompt that is measured; each
    /// call takes one salt from `salts`.
    ///
    /// # Errors
    /// The server does not become idle or refuses a reset beyond the limit: the cell is aborted.
    /// That nothing could be proven is no error but [`CacheProof::Unproven`].
    pub async fn prove_cold(
        &self,
        probe: &Prompt,
        salts: &mut SaltMaker,
    ) -> Result<ColdState, TargetError> {
        let idle = self.wait_idle().await?;
        let salt = salts.next_salt()?;
        let none = Map::new();
        self.probe(probe, &none).await?;
        let control = self.probe(probe, &none).await?;
        let mut state = ColdState {
            proof: CacheProof::Unproven { why: String::new() },
            idle,
            control,
            request_fields: none,
            salt: None,
        };
        if control.found_nothing() == Some(true) {
            state.proof = self.never_found(&control).await?;
            return Ok(state);
        }
        let shown = control.found_nothing() == Some(false);
        if shown && self.by_reset(probe, &mut state).await? {
            return Ok(state);
        }
        if shown && self.by_field(probe, &salt, &mut state).await? {
            return Ok(state);
        }
        self.by_first_block(probe, salt, &mut state).await?;
        Ok(state)
    }

    /// A probe that is not found when it is sent again: the cache is off, or the probe too short.
    async fn never_found(&self, control: &ProbeAnswer) -> Result<CacheProof, TargetError> {
        let stats = self.stats().await?.unwrap_or_default();
        let granule = if self.adapter().token_granular {
            Some(1)
        } else {
            stats.block_size
        };
        let tokens = control.prompt_tokens.unwrap_or(0);
        let (Some(block), Some(source)) = (granule, control.source) else {
            let why = format!(
                "a probe of {tokens} tokens is not found when it is sent twice, and the server \
                 does not say how long its blocks are: give a longer probe, or declare the cache \
                 off"
            );
            return Ok(CacheProof::Unproven { why });
        };
        if tokens <= block {
            let why = format!(
                "a probe of {tokens} tokens shows nothing in blocks of {block}: give a longer one"
            );
            return Ok(CacheProof::Unproven { why });
        }
        let external_tokens = control.external_tokens;
        Ok(CacheProof::Cold {
            method: ColdMethod::CacheOff,
            evidence: Evidence::Measured {
                source,
                before_tokens: 0,
                external_tokens,
            },
        })
    }

    /// Tries the resets of this kind, each only when those before did not empty everything.
    async fn by_reset(&self, probe: &Prompt, state: &mut ColdState) -> Result<bool, TargetError> {
        for call in self.adapter().resets {
            let outcome = self.reset_with(*call).await?;
            let ResetOutcome::Done {
                attempts,
                confirmed,
            } = outcome
            else {
                continue;
            };
            let seen = self.probe(probe, &state.request_fields).await?;
            if let Some(evidence) = nothing(&seen, &state.control) {
                // The probe itself is not to stay.
                self.reset_with(*call).await?;
                let route = call.name().to_owned();
                let method = ColdMethod::Reset {
                    route,
                    attempts,
                    confirmed,
                };
                state.proof = CacheProof::Cold { method, evidence };
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tries the request fields of this kind.
    async fn by_field(
        &self,
        probe: &Prompt,
        salt: &Salt,
        state: &mut ColdState,
    ) -> Result<bool, TargetError> {
        let mut tries = Vec::new();
        if self.adapter().cache_salt {
            tries.push(("cache_salt", Value::from(salt.key()), ColdMethod::CacheSalt));
        }
        if let Some(field) = self.adapter().cache_off_field {
            let method = ColdMethod::RequestField {
                field: field.to_owned(),
            };
            tries.push((field, Value::from(false), method));
        }
        for (field, value, method) in tries {
            let fields = Map::from_iter([(field.to_owned(), value)]);
            let seen = self.probe(probe, &fields).await?;
            if let Some(evidence) = nothing(&seen, &state.control) {
                state.proof = CacheProof::Cold { method, evidence };
                state.request_fields = fields;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Salts the first block.
    async fn by_first_block(
        &self,
        probe: &Prompt,
        salt: Salt,
        state: &mut ColdState,
    ) -> Result<(), TargetError> {
        let seen = self
            .probe(&salt.apply(probe)?, &state.request_fields)
            .await?;
        let silent = state.control.found_nothing().is_none() && seen.found_nothing().is_none();
        let evidence = nothing(&seen, &state.control);
        let evidence = evidence.or(silent.then_some(Evidence::ByConstruction));
        match evidence {
            Some(evidence) => {
                let method = ColdMethod::FirstBlockSalt;
                state.proof = CacheProof::Cold { method, evidence };
                state.salt = Some(salt);
            }
            None => {
                let why = format!(
                    "a probe with a new first block was answered {seen:?} after {:?}: the server \
                     does not work as a prefix cache does, or other traffic disturbs its counters",
                    state.control
                );
                state.proof = CacheProof::Unproven { why };
            }
        }
        Ok(())
    }

    /// Sends `prompt`, which was primed before, and compares what was found with what was
    /// planned.
    ///
    /// # Errors
    /// The request fails.
    pub async fn prove_warm(
        &self,
        prompt: &Prompt,
        planned_tokens: u32,
        fields: &Map<String, Value>,
    ) -> Result<CacheProof, TargetError> {
        let seen = self.probe(prompt, fields).await?;
        let (Some(hit_tokens), Some(source)) = (seen.cached_tokens, seen.source) else {
            let why = "the server does not say how much of a prompt it found: no usage details, \
                       no timings, no counters that moved by this request alone";
            return Ok(CacheProof::Unproven {
                why: why.to_owned(),
            });
        };
        if hit_tokens != planned_tokens || planned_tokens == 0 {
            let why = format!(
                "{hit_tokens} of {} tokens were found where {planned_tokens} were planned",
                seen.prompt_tokens.unwrap_or(0)
            );
            return Ok(CacheProof::Unproven { why });
        }
        Ok(CacheProof::Warm { hit_tokens, source })
    }

    /// The whole protocol of a warm cell: make the cache cold and prove it, send the prompts of
    /// `prime` once each, and prove with `verify` that its beginning is there. What must be on
    /// the cell's requests is in the state; `prime` and `verify` are dressed here.
    ///
    /// # Errors
    /// As [`Target::prove_cold`].
    pub async fn prepare_warm(
        &self,
        probe: &Prompt,
        salts: &mut SaltMaker,
        prime: &[Prompt],
        verify: (&Prompt, u32),
    ) -> Result<ColdState, TargetError> {
        let mut state = self.prove_cold(probe, salts).await?;
        if matches!(state.proof, CacheProof::Unproven { .. }) {
            return Ok(state);
        }
        if let CacheProof::Cold {
            method: ColdMethod::RequestField { .. },
            ..
        } = state.proof
        {
            // Requests that leave the cache alone cannot be warm; the first block is salted.
            state.request_fields.clear();
            let salt = salts.next_salt()?;
            self.by_first_block(probe, salt, &mut state).await?;
        }
        let prime: Result<Vec<Prompt>, TargetError> =
            prime.iter().map(|prompt| state.dress(prompt)).collect();
        self.prime(&prime?, &state.request_fields).await?;
        let verified = state.dress(verify.0)?;
        let fields = &state.request_fields;
        state.proof = self.prove_warm(&verified, verify.1, fields).await?;
        Ok(state)
    }
}

/// The evidence of a probe that found nothing, after `control` had found something.
fn nothing(seen: &ProbeAnswer, control: &ProbeAnswer) -> Option<Evidence> {
    if seen.found_nothing() != Some(true) || control.found_nothing() != Some(false) {
        return None;
    }
    let before = u64::from(control.cached_tokens.unwrap_or(0));
    let before = before.max(control.external_tokens.unwrap_or(0));
    Some(Evidence::Measured {
        source: seen.source?,
        before_tokens: u32::try_from(before).unwrap_or(u32::MAX),
        external_tokens: seen.external_tokens,
    })
}
