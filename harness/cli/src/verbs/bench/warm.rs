//! The state of the server's prefix cache: brought about, proved, and compared with what the
//! requests found.
//!
//! *As it is*: nothing is done and nothing is claimed. *Cold*: the cache is emptied, or its keys
//! are salted, and a probe that was found before is not found any more. *Warm*: cold first, so
//! that nothing else is in it; then every prompt that is to be found is sent once, the server is
//! waited for until it is idle, and the prompts are sent again to see that they are found. After
//! the run, what each request found is held against what it must have found ([`expect`]); a run
//! whose cache was not what it claims is void.

mod dress;
mod expect;
mod judge;
mod prime;

use anyhow::{Context, Result};
use pb_bench::Cache;
use pb_contract::plan::{Plan, PlannedBody};
use pb_contract::wire::Prompt;
use pb_contract::{RequestRow, TokenId};
use pb_load::Endpoint;
use pb_target::{CacheProof, ColdMethod, ColdState, SaltMaker, ServerWindow, Target};
use serde_json::{Map, Value, json};

use self::expect::Prefixes;
use self::judge::Claim;
use crate::interrupt::{Interrupt, Interrupted};

/// Ids that salts are made from, at most.
const ALPHABET: u32 = 4096;

/// Tokens that two random prompts may share by chance where a cache finds single tokens.
const CHANCE_TOKENS: u32 = 15;

/// What bringing about a state needs.
#[derive(Clone, Debug)]
pub(crate) struct CacheAsk<'a> {
    /// The server.
    pub(crate) target: &'a Target,
    /// The same server, with everything that measured requests carry.
    pub(crate) endpoint: &'a Endpoint,
    /// Fields that the endpoint adds to every body anyway.
    pub(crate) extra_body: &'a Map<String, Value>,
    /// Whether prompts are chats: the server's template then stands before them.
    pub(crate) chat: bool,
    /// Ordinary token ids of the vocabulary, from the first and without the last: salts are made
    /// of them.
    pub(crate) ids: (TokenId, TokenId),
    /// A prompt longer than two blocks that begins unlike any of the plan.
    pub(crate) probe: Prompt,
    /// Another number in every run.
    pub(crate) nonce: u64,
    /// Tokens of a block, where the server does not say.
    pub(crate) block_size: Option<u32>,
    /// The workload says of each request exactly what it finds, whatever overlaps.
    pub(crate) exact: bool,
    /// The wish to stop.
    pub(crate) interrupt: &'a Interrupt,
}

/// A run's requests with what they must carry, and what is claimed of the cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheCell {
    /// The plan as it must be run.
    pub(crate) plan: Plan,
    /// Fields that every measured request must carry, those of the ask included: give them to
    /// `Endpoint::with_extra_body`.
    pub(crate) fields: Map<String, Value>,
    /// How the state came about, for the manifest.
    pub(crate) receipt: Value,
    claim: Claim,
}

/// What a run's cache came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CacheVerdict {
    /// For the result.
    pub(crate) cache: Cache,
    /// What speaks against the run.
    pub(crate) reasons: Vec<String>,
    /// What must be known with it.
    pub(crate) notes: Vec<String>,
}

impl CacheCell {
    /// Nothing is done.
    pub(crate) fn asis(plan: Plan, extra_body: &Map<String, Value>) -> CacheCell {
        CacheCell {
            plan,
            fields: extra_body.clone(),
            receipt: json!({"state": "asis"}),
            claim: Claim::none(),
        }
    }

    /// The server was started for this run with an empty cache, which never evicts and keeps whole
    /// blocks of `block` tokens.
    pub(crate) fn empty(plan: Plan, block: u32) -> CacheCell {
        let prefixes = Prefixes::new(&plan, &[], block);
        let claim = Claim::of("cold", &plan, prefixes, false).with_server(Some(block), 0, false);
        CacheCell {
            plan,
            fields: Map::new(),
            receipt: json!({"state": "cold", "block_size": block}),
            claim,
        }
    }

    /// The cache is made cold.
    ///
    /// # Errors
    /// [`Interrupted`]; the server cannot be asked, does not become idle or refuses a reset; a
    /// prompt is too short to be salted.
    pub(crate) async fn cold(ask: &CacheAsk<'_>, plan: Plan) -> Result<CacheCell> {
        let state = make_cold(ask).await.context("--cache cold")?;
        let plan = dress::plan(&state, plan).context("--cache cold")?;
        let block = block_size(ask).await?;
        let claim = match &state.proof {
            CacheProof::Unproven { why } => Claim::unproven("cold", why),
            CacheProof::Cold {
                // Nothing is ever found, not even what requests share among themselves.
                method: ColdMethod::CacheOff | ColdMethod::RequestField { .. },
                ..
            } => Claim::nothing("cold"),
            CacheProof::Cold { .. } | CacheProof::Warm { .. } => {
                let prefixes = block.and_then(|block| Prefixes::new(&plan, &[], block));
                Claim::of("cold", &plan, prefixes, ask.exact)
            }
        };
        let receipt = receipt(
            ask,
            "cold",
            json!({"proof": state.proof, "idle": state.idle}),
            block,
        );
        Ok(CacheCell {
            plan,
            fields: over(ask.extra_body, state.request_fields),
            receipt,
            claim: claim.with_server(block, tolerance(ask), ask.chat),
        })
    }

    /// The cache is made cold and then warm: with `prime`, or when that is empty with every
    /// prompt of the plan.
    ///
    /// # Errors
    /// As [`CacheCell::cold`]; a request that primes the cache fails.
    pub(crate) async fn warm(
        ask: &CacheAsk<'_>,
        plan: Plan,
        prime: Vec<PlannedBody>,
    ) -> Result<CacheCell> {
        let mut state = make_cold(ask).await.context("--cache warm")?;
        let cold = state.proof.clone();
        if let CacheProof::Cold {
            method: ColdMethod::RequestField { .. },
            ..
        } = cold
        {
            // Requests that leave the cache alone would not warm it either. What it holds is
            // then not known, and what is found beyond the plan shows.
            state.request_fields.clear();
        }
        let plan = dress::plan(&state, plan).context("--cache warm")?;
        let prime = match prime.is_empty() {
            true => expect::distinct(&plan),
            false => dress::bodies(&state, prime).context("--cache warm")?,
        };
        let block = block_size(ask).await?;
        let fields = over(ask.extra_body, state.request_fields);
        let primed = prime::prime_and_verify(ask, &fields, &prime, block).await;
        let primed = primed.context("--cache warm")?;
        let claim = match &primed.unproven {
            Some(why) => Claim::unproven("warm", why),
            None => {
                let prefixes = block.and_then(|block| Prefixes::new(&plan, &prime, block));
                Claim::of("warm", &plan, prefixes, true).or_found(&plan, &prime, &primed.found)
            }
        };
        let detail = json!({"cold": cold, "warm": primed.receipt()});
        Ok(CacheCell {
            plan,
            fields,
            receipt: receipt(ask, "warm", detail, block),
            claim: claim.with_server(block, tolerance(ask), ask.chat),
        })
    }

    /// Holds what the requests of the run found against what was claimed. `window` is what the
    /// server's counters say of it.
    pub(crate) fn judge(&self, rows: &[RequestRow], window: Option<&ServerWindow>) -> CacheVerdict {
        self.claim.judge(&self.plan, rows, window)
    }
}

/// Makes the cache cold and proves it as far as the server lets itself be seen.
async fn make_cold(ask: &CacheAsk<'_>) -> Result<ColdState> {
    let (lo, hi) = ask.ids;
    let alphabet: Vec<TokenId> = (lo..hi.min(lo.saturating_add(ALPHABET))).collect();
    let mut salts = SaltMaker::new(ask.nonce, &alphabet)?;
    let proved = ask.target.prove_cold(&ask.probe, &mut salts);
    let mut state = ask.interrupt.guard(proved).await??;
    if ask.chat && state.salt.is_some() {
        let why = "only a salted first block would help, and the server's template comes before \
                   the text of a chat: use --api completions";
        state.proof = CacheProof::Unproven { why: why.into() };
        state.salt = None;
    }
    Ok(state)
}

/// Tokens of a block of the server's cache, as far as they are known.
async fn block_size(ask: &CacheAsk<'_>) -> Result<Option<u32>> {
    if ask.target.adapter().token_granular {
        return Ok(Some(1));
    }
    let stats = ask.interrupt.guard(ask.target.stats()).await?;
    // A page that cannot be read tells nothing.
    let said = stats.ok().flatten().and_then(|stats| stats.block_size);
    Ok(said.or(ask.block_size).filter(|&block| block > 0))
}

/// Tokens by which a request may find more or less than expected.
fn tolerance(ask: &CacheAsk<'_>) -> u32 {
    match ask.target.adapter().token_granular {
        true => CHANCE_TOKENS,
        false => 0,
    }
}

/// The fields of both; those of `fields` win.
fn over(extra_body: &Map<String, Value>, fields: Map<String, Value>) -> Map<String, Value> {
    let mut all = extra_body.clone();
    all.extend(fields);
    all
}

fn receipt(ask: &CacheAsk<'_>, state: &str, detail: Value, block: Option<u32>) -> Value {
    json!({
        "state": state,
        "server": ask.target.detection().to_string(),
        "nonce": ask.nonce,
        "block_size": block,
        "detail": detail,
    })
}

/// The error of a run loop that was stopped while it primed.
fn stopped() -> anyhow::Error {
    Interrupted.into()
}

#[cfg(test)]
mod tests;
