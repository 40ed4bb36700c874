//! What a quickstart runs, resolved from its arguments and the machine.

use pb_contract::Nanos;
use pb_workloads::InterferenceParams;
use serde::Serialize;

use crate::args::QuickstartArgs;
use crate::machine;

/// Name of the arm with monolithic prefill.
pub(crate) const MONOLITHIC: &str = "monolithic";
/// Name of the arm with chunked prefill.
pub(crate) const CHUNKED: &str = "chunked";
/// Name of the second monolithic arm of an A/A run.
pub(crate) const MONOLITHIC_AGAIN: &str = "monolithic-again";
/// Name of the arm with the prefix cache.
pub(crate) const PREFIX: &str = "prefix-cache";
/// Tokens in a KV block.
pub(crate) const BLOCK_SIZE: usize = 16;

/// The resolved settings; part of the manifest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Matched blocks.
    pub(crate) blocks: u32,
    /// Compute threads of an engine.
    pub(crate) threads: usize,
    /// Token budget of the chunked arm.
    pub(crate) budget: usize,
    /// Decode streams in the background.
    pub(crate) streams: usize,
    /// Shortest long prompt, in tokens.
    pub(crate) long_prompt_min: usize,
    /// Longest long prompt, in tokens.
    pub(crate) long_prompt_max: usize,
    /// Mean time between long prompts; zero until it has been measured.
    pub(crate) mean_gap_ns: Nanos,
    /// No request starts later than this after the start of a cell.
    pub(crate) horizon_ns: Nanos,
    /// Rounds of the prefix-cache experiment.
    pub(crate) prefix_rounds: u32,
    /// Length of the shared system prompt.
    pub(crate) system_len: usize,
    /// Whether both arms have the same configuration.
    pub(crate) same_arms: bool,
}

impl Settings {
    /// Resolves the arguments for this machine and a model with a context of `context` tokens.
    pub(crate) fn new(args: &QuickstartArgs, context: usize) -> Self {
        let longest = context.saturating_sub(256).max(64);
        let (long_min, long_max, horizon_s) = if args.smoke {
            (256, 384, 2)
        } else {
            (1024, 1536, 10)
        };
        Settings {
            blocks: if args.smoke {
                args.blocks.min(2)
            } else {
                args.blocks
            },
            threads: args
                .threads
                .unwrap_or_else(|| machine::cores().saturating_sub(1).max(1)),
            budget: args.budget,
            streams: 4,
            long_prompt_min: long_min.min(longest),
            long_prompt_max: long_max.min(longest),
            mean_gap_ns: match args.mean_gap_ms {
                Some(ms) => Nanos::from_millis(ms),
                None if args.smoke => Nanos::from_millis(800),
                None => Nanos::ZERO,
            },
            horizon_ns: Nanos::from_secs(horizon_s),
            prefix_rounds: if args.smoke { 1 } else { 4 },
            system_len: 512.min(longest / 2),
            same_arms: args.aa,
        }
    }

    /// Sets the mean gap between long prompts to 1.15 times the time that one takes alone, in
    /// steps of 50 ms. The prefill then occupies the engine for most of the time, so that stalls
    /// are more than one in a hundred gaps and the 99th percentile sees them; and a machine of
    /// another speed is loaded alike. The horizon grows when four would not fit.
    pub(crate) fn set_gap_from(&mut self, prefill: Nanos) {
        let gap_ms = prefill.0 / 100 * 115 / 1_000_000;
        let gap_ms = gap_ms.div_ceil(50).max(1) * 50;
        self.mean_gap_ns = Nanos::from_millis(gap_ms.min(10_000));
        let four = Nanos(4 * self.mean_gap_ns.0);
        self.horizon_ns = self.horizon_ns.max(four).min(Nanos::from_secs(20));
    }

    /// Names of the two arms, baseline first.
    pub(crate) fn arms(&self) -> [&'static str; 2] {
        if self.same_arms {
            [MONOLITHIC, MONOLITHIC_AGAIN]
        } else {
            [MONOLITHIC, CHUNKED]
        }
    }

    /// Arguments of `serve` for `arm`.
    pub(crate) fn serve_args(&self, arm: &str, model: &str) -> Vec<String> {
        let threads = self.threads.to_string();
        let block_size = BLOCK_SIZE.to_string();
        let budget = self.budget.to_string();
        let mut args = vec![
            "--model",
            model,
            "--threads",
            &threads,
            "--block-size",
            &block_size,
        ];
        args.extend(match arm {
            CHUNKED => ["--chunked", "on", "--prefix-cache", "none"],
            PREFIX => ["--chunked", "on", "--prefix-cache", "hash-chain"],
            _ => ["--chunked", "off", "--prefix-cache", "none"],
        });
        if arm == CHUNKED {
            args.extend(["--max-batched-tokens", &budget]);
        }
        args.into_iter().map(String::from).collect()
    }

    /// The interference workload: background decodes and injected long prompts.
    pub(crate) fn interference(&self) -> InterferenceParams {
        InterferenceParams {
            streams: self.streams,
            background_prompt_len: 32,
            background_output_len: 48,
            background_requests: 128 * self.streams,
            long_prompt_min: self.long_prompt_min,
            long_prompt_max: self.long_prompt_max,
            long_output_len: 8,
            long_requests_max: 1_000,
            mean_gap_ns: self.mean_gap_ns,
            gap_shape: 16.0,
            warm_up_ns: Nanos::from_millis(300),
            first_at_warm_up: true,
            horizon_ns: self.horizon_ns,
            drain_ns: Nanos::from_secs(60),
        }
    }
}
