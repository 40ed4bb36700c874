//! What the router is asked to be.

use pb_contract::Nanos;

use crate::cost::CostParams;

/// How a worker is chosen among those that may take a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The next in order of number.
    RoundRobin,
    /// Fewest prompt tokens to compute (prefill), fewest blocks in use (decode).
    LeastLoaded,
    /// Lowest cost by Dynamo's formula, see [`CostParams`].
    #[default]
    KvAware,
}

impl Policy {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::LeastLoaded => "least-loaded",
            Policy::KvAware => "kv-aware",
        }
    }
}

/// Splitwise's pools (splitwise-sim, `MixedPoolScheduler` and `mixed_pool.yml`): a worker with more
/// pending than this is passed over, and one of the other pool comes to help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolParams {
    /// Tokens pending at a prefill worker.
    pub prefill_max_pending_tokens: usize,
    /// Tokens pending at a decode worker; a decode counts as one.
    pub decode_max_pending_tokens: usize,
}

impl Default for PoolParams {
    fn default() -> Self {
        PoolParams {
            prefill_max_pending_tokens: 8192,
            decode_max_pending_tokens: 2048,
        }
    }
}

/// Every rule of the router.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterConfig {
    /// How a worker is chosen.
    pub policy: Policy,
    /// The cost that [`Policy::KvAware`] minimises.
    pub cost: CostParams,
    /// A prompt with at most this many tokens to compute is prefilled where it is decoded; 0 sends
    /// every prompt to a prefill worker.
    pub local_prefill_max_tokens: usize,
    /// With more prompt tokens than this waiting for every prefill worker, a prompt is prefilled
    /// where it is decoded.
    pub prefill_backlog_max_tokens: Option<usize>,
    /// Without a prefill worker, wait for one rather than prefill where it is decoded.
    pub enforce_disaggregation: bool,
    /// Refuse a request at its arrival when its first token is predicted later than this.
    pub slo_ttft_ns: Option<Nanos>,
    /// Prefill time of a token, until requests have shown it; without it nothing is predicted
    /// before the first prefill has ended.
    pub prefill_ns_per_token: Option<f64>,
    /// Requests that may wait for a worker; further ones are refused.
    pub queue_max: usize,
    /// How long a request may wait for a worker.
    pub queue_timeout_ns: Nanos,
    /// How long a computed prompt waits for a decode worker with room. Then it goes to one without,
    /// whose engine keeps the lease alive; it must be shorter than the lease. While no decode
    /// worker answers at all, it waits as long as a queued request.
    pub hold_max_ns: Nanos,
    /// Requests that a prefill worker may have, those included whose KV nobody has fetched yet.
    pub max_prefills: usize,
    /// Requests that a decode worker may have.
    pub max_decodes: usize,
    /// Share of a decode worker's blocks that requests may take.
    pub decode_fill_max: f64,
    /// How often a request of which the client has seen nothing is started again.
    pub max_retries: u32,
    /// Knowledge of a worker's cache that is older than this counts for nothing.
    pub max_staleness_ns: Nanos,
    /// How long a block is believed to be cached at a worker that reports no events.
    pub predicted_ttl_ns: Nanos,
    /// Blocks remembered of one worker.
    pub max_known_blocks: usize,
    /// Move workers between pools as the load shifts.
    pub pools: Option<PoolParams>,
    /// Seed of the choices at a temperature above zero.
    pub seed: u64,
}

impl Default for RouterConfig {
    fn default() -> Self {
        RouterConfig {
            policy: Policy::default(),
            cost: CostParams::default(),
            local_prefill_max_tokens: 0,
            prefill_backlog_max_tokens: None,
            enforce_disaggregation: false,
            slo_ttft_ns: None,
            prefill_ns_per_token: None,
            queue_max: 256,
            queue_timeout_ns: Nanos::from_secs(60),
            hold_max_ns: Nanos::from_secs(2),
            max_prefills: 16,
            max_decodes: 256,
            decode_fill_max: 0.95,
            max_retries: 2,
            max_staleness_ns: Nanos::from_secs(5),
            predicted_ttl_ns: Nanos::from_secs(120),
            max_known_blocks: 1 << 20,
            pools: None,
            seed: 0,
        }
    }
}

/// A rule that cannot be kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {fix}")]
pub struct ConfigError {
    /// The field, or the option on the command line.
    pub key: &'static str,
    /// What was asked for.
    pub value: String,
    /// What would do.
    pub fix: &'static str,
}

impl RouterConfig {
    /// Checks each rule by itself.
    ///
    /// # Errors
    /// Names the rule, its value and what would do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: &dyn ToString, fix| {
            Err(ConfigError {
                key,
                value: value.to_string(),
                fix,
            })
        };
        let cost = &self.cost;
        let not_below_zero = [
            ("overlap_weight", cost.overlap_weight),
            ("credit_decay", cost.credit_decay),
            ("active_request_weight", cost.active_request_weight),
            ("temperature", cost.temperature),
        ];
        for (key, value) in not_below_zero {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(key, &value, "must be a number of at least 0");
            }
        }
        if !(0.0..=1.0).contains(&cost.overlap_credit) {
            let fix = "must lie between 0 and 1";
            return refuse("overlap_credit", &cost.overlap_credit, fix);
        }
        if !(self.decode_fill_max > 0.0 && self.decode_fill_max <= 1.0) {
            let fix = "must be above 0 and at most 1";
            return refuse("decode_fill_max", &self.decode_fill_max, fix);
        }
        if let Some(rate) = self.prefill_ns_per_token
            && !(rate.is_finite() && rate > 0.0)
        {
            return refuse("prefill_ns_per_token", &rate, "must be above 0");
        }
        for (key, value) in [
            ("max_prefills", self.max_prefills),
            ("max_decodes", self.max_decodes),
            ("max_known_blocks", self.max_known_blocks),
        ] {
            if value == 0 {
                return refuse(key, &value, "must be at least 1");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_out_of_range_is_named() {
        assert_eq!(RouterConfig::default().validate(), Ok(()));
        let cost = |change: fn(&mut CostParams)| {
            let mut config = RouterConfig::default();
            change(&mut config.cost);
            config
        };
        let other = |change: fn(&mut RouterConfig)| {
            let mut config = RouterConfig::default();
            change(&mut config);
            config
        };
        let wrong = [
            ("overlap_weight", cost(|c| c.overlap_weight = -1.0)),
            ("temperature", cost(|c| c.temperature = f64::NAN)),
            ("credit_decay", cost(|c| c.credit_decay = f64::INFINITY)),
            ("overlap_credit", cost(|c| c.overlap_credit = 1.5)),
            ("decode_fill_max", other(|c| c.decode_fill_max = 0.0)),
            ("max_prefills", other(|c| c.max_prefills = 0)),
            (
                "prefill_ns_per_token",
                other(|c| c.prefill_ns_per_token = Some(0.0)),
            ),
        ];
        for (key, config) in wrong {
            assert_eq!(config.validate().unwrap_err().key, key);
        }
    }
}
