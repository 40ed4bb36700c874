//! A run on a cold prefix cache: made cold, proved, and compared with what the requests found.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::wire::Prompt;
use pb_load::Endpoint;
use pb_target::{CacheProof, ColdState, HitVerdict, Patience, SaltMaker, Target, check_hits};
use serde_json::{Value, json};

use super::document::Cache;
use super::settings::Settings;
use super::tally::Tally;
use super::workload;
use crate::args::Api;

/// Longer than two blocks of any server that was looked at.
const PROBE_LEN: usize = 288;

/// Ids that salts are made from, at most.
const ALPHABET: u32 = 4096;

/// Tokens that two random prompts may share by chance where a cache finds single tokens.
const CHANCE_TOKENS: u32 = 15;

/// A cache that was made cold, or could not be shown to be.
#[derive(Debug)]
pub(crate) struct Cold {
    state: ColdState,
    tolerance_tokens: u32,
    /// What the server is and how its cache was made cold, for the manifest.
    pub(crate) receipt: Value,
}

/// Makes the cache cold. `nonce` differs in every run.
///
/// # Errors
/// The server cannot be asked, does not become idle or refuses a reset.
pub(crate) async fn prepare(endpoint: &Endpoint, settings: &Settings, nonce: u64) -> Result<Cold> {
    let target = Target::connect(endpoint, None, Patience::default()).await?;
    let (lo, hi) = settings.ids;
    let alphabet: Vec<u32> = (lo..hi.min(lo.saturating_add(ALPHABET))).collect();
    let mut salts = SaltMaker::new(nonce, &alphabet)?;
    let probe = workload::probe(settings, PROBE_LEN, nonce);
    let mut state = target
        .prove_cold(&probe, &mut salts)
        .await
        .context("--cache cold")?;
    if settings.api == Api::Chat && state.salt.is_some() {
        let why = "only a salted first block would help, and the server's template comes before \
                   the text of a chat: use --api completions";
        state.proof = CacheProof::Unproven {
            why: why.to_owned(),
        };
    }
    let tolerance_tokens = match target.adapter().token_granular {
        true => CHANCE_TOKENS,
        false => 0,
    };
    let receipt = json!({
        "server": target.detection().to_string(),
        "nonce": nonce,
        "proof": state.proof,
    });
    Ok(Cold {
        state,
        tolerance_tokens,
        receipt,
    })
}

impl Cold {
    /// The plan and the endpoint with what the requests must carry.
    ///
    /// # Errors
    /// A prompt that is too short to be salted.
    pub(crate) fn dress(&self, mut plan: Plan, endpoint: Endpoint) -> Result<(Plan, Endpoint)> {
        let open = plan.open.iter_mut().map(|request| &mut request.body);
        let closed = plan.closed.iter_mut().flat_map(|part| &mut part.bodies);
        for body in open.chain(closed) {
            self.dress_body(body)?;
        }
        let fields = self.state.request_fields.clone();
        Ok((plan, endpoint.with_extra_body(fields)))
    }

    fn dress_body(&self, body: &mut PlannedBody) -> Result<()> {
        match &mut body.prompt {
            PlannedPrompt::Ids(ids) => {
                if let Prompt::Ids(salted) = self.state.dress(&Prompt::Ids(std::mem::take(ids)))? {
                    *ids = salted;
                }
            }
            PlannedPrompt::Text(text) => self.dress_text(text)?,
            PlannedPrompt::Chat(turns) => {
                for turn in turns.iter_mut().take(1) {
                    self.dress_text(&mut turn.content)?;
                }
            }
        }
        Ok(())
    }

    fn dress_text(&self, text: &mut String) -> Result<()> {
        if let Prompt::Text(salted) = self.state.dress(&Prompt::Text(std::mem::take(text)))? {
            *text = salted;
        }
        Ok(())
    }

    /// The cache as planned and as found, and what is wrong with it.
    pub(crate) fn judge(&self, tally: &Tally) -> (Cache, Vec<String>) {
        // Random prompts share nothing that was planned.
        let planned = BTreeMap::new();
        let check = check_hits(&planned, tally.rows(), None, self.tolerance_tokens);
        let mut reasons = Vec::new();
        if let CacheProof::Unproven { why } = &self.state.proof {
            reasons.push(format!("the cache was not shown to be cold: {why}"));
        }
        if let HitVerdict::Differs { reason } = check.verdict {
            reasons.push(format!("prefix hits that were not planned: {reason}"));
        }
        let state = match self.state.proof {
            CacheProof::Unproven { .. } => "unproven",
            CacheProof::Cold { .. } => "cold",
            CacheProof::Warm { .. } => "warm",
        };
        let cache = Cache {
            state,
            planned_hit_tokens: Some(check.planned_hit_tokens),
            measured_hit_tokens: check.measured_hit_tokens,
            known_rows: check.known_rows,
        };
        (cache, reasons)
    }
}

/// The cache of a run that did nothing about it and claims nothing.
pub(crate) fn as_it_is(tally: &Tally) -> Cache {
    let known = || tally.ok().filter_map(|row| row.cached_tokens);
    let known_rows = known().count();
    Cache {
        state: "asis",
        planned_hit_tokens: None,
        measured_hit_tokens: (known_rows > 0).then(|| known().map(u64::from).sum()),
        known_rows,
    }
}
