//! What the runner proved while it ran, stored beside the rows as `notes.json`.
//!
//! Rows say what the client and the engine saw. They cannot say which arms were meant to be
//! compared, that a cache was empty before an arm started, or that the logits were checked. The
//! runner writes that down here, as evidence and not as conclusions: the judge concludes.

use std::collections::BTreeMap;

use pb_contract::RequestId;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::Verdict;
use crate::numerics::{BitDifference, ConfigVerdict};

/// Version of [`RunNotes`]; raised when an old judge would misread a new file.
pub const NOTES_SCHEMA_VERSION: u32 = 1;

/// The notes of one run. Every field may be absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunNotes {
    /// [`NOTES_SCHEMA_VERSION`] of the writer. A newer one than that is an error on reading.
    #[serde(deserialize_with = "known_version")]
    pub schema_version: u32,
    /// Which arms are compared and how.
    pub comparison: Option<Comparison>,
    /// Cache resets, one for each arm and block that was reset before it ran.
    pub resets: Vec<ResetProof>,
    /// Cold against warm experiments.
    pub cache: Vec<CacheNote>,
    /// Results of the logit checks on correct variants.
    pub numerics: Vec<NumericsNote>,
    /// Faults planted to prove that the logit checks notice.
    pub planted_faults: Vec<PlantedFault>,
    /// Sentences for the reader of the report.
    pub remarks: Vec<String>,
}

impl Default for RunNotes {
    fn default() -> RunNotes {
        RunNotes {
            schema_version: NOTES_SCHEMA_VERSION,
            comparison: None,
            resets: Vec::new(),
            cache: Vec::new(),
            numerics: Vec::new(),
            planted_faults: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

/// Refuses notes of a later layout: what this program does not know of might void the run.
fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let found = u64::deserialize(deserializer)?;
    let known = u32::try_from(found).ok();
    known.filter(|&v| v <= NOTES_SCHEMA_VERSION).ok_or_else(|| {
        de::Error::custom(format!(
            "schema_version = {found}, this program reads up to {NOTES_SCHEMA_VERSION}: use the \
             version of prefillbench that wrote the run, or a newer one"
        ))
    })
}

/// Which two arms are compared, on which populations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Comparison {
    /// Arm that the other is measured against.
    pub baseline: String,
    /// Arm about which the claim is made.
    pub candidate: String,
    /// What is compared, in plain words that follow "compared": "chunked with monolithic prefill".
    pub subject: String,
    /// Class of requests behind the TTFT headline; all classes when absent.
    pub ttft_class: Option<String>,
    /// Class of requests behind the ITL and stall headlines; all classes when absent.
    pub itl_class: Option<String>,
    /// Classes whose arrivals are scheduled: they must be the same in both arms to the nanosecond.
    pub open_classes: Vec<String>,
    /// Streams that must be decoding while a prompt is prefilled, else nothing interferes.
    pub background_streams: Option<usize>,
    /// What was done about the prefix cache between blocks.
    pub cache_control: CacheControl,
    /// Metrics to compare; [`default_metrics`] of the two classes when empty.
    pub metrics: Vec<MetricSpec>,
}

/// What was done about the prefix cache between blocks of an A/B comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheControl {
    /// No prefix cache in either arm: no request may report a cached token.
    Off,
    /// Reset before every block of every arm, each proven by a probe.
    ResetEachBlock,
    /// Nothing: the cache state is unproven and the comparison void.
    #[default]
    Uncontrolled,
}

/// A quantity of one request, one gap or one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// First token minus intended arrival.
    Ttft,
    /// First token minus first byte sent.
    ServiceTtft,
    /// Gaps between tokens, bundles spread evenly.
    Itl,
    /// Gaps between content events.
    EventGap,
    /// Mean time for each token after the first, by request.
    Tpot,
    /// Last token minus intended arrival.
    E2e,
    /// Share of streaming time spent in stalls, of the block as a whole.
    StallShare,
}

impl Quantity {
    /// The name used in metric names.
    pub const fn name(self) -> &'static str {
        match self {
            Quantity::Ttft => "ttft",
            Quantity::ServiceTtft => "service_ttft",
            Quantity::Itl => "itl",
            Quantity::EventGap => "event_gap",
            Quantity::Tpot => "tpot",
            Quantity::E2e => "e2e",
            Quantity::StallShare => "stall_share",
        }
    }

    /// Unit of its values: `ns`, or `share` of 1.
    pub const fn unit(self) -> &'static str {
        match self {
            Quantity::StallShare => "share",
            _ => "ns",
        }
    }
}

/// How the values of a block become one number. Percentiles are nearest-rank on raw nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// Median.
    P50,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// Largest.
    Max,
    /// The quantity is one number already.
    Value,
}

impl Statistic {
    /// The name used in metric names; empty for [`Statistic::Value`].
    pub const fn name(self) -> &'static str {
        match self {
            Statistic::P50 => "p50",
            Statistic::P95 => "p95",
            Statistic::P99 => "p99",
            Statistic::Max => "max",
            Statistic::Value => "",
        }
    }

    /// The quantile that it stands for.
    pub const fn quantile(self) -> Option<f64> {
        match self {
            Statistic::P50 => Some(0.50),
            Statistic::P95 => Some(0.95),
            Statistic::P99 => Some(0.99),
            Statistic::Max => Some(1.0),
            Statistic::Value => None,
        }
    }
}

/// One metric of an A/B comparison. Lower is better for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// What is measured.
    pub quantity: Quantity,
    /// How a block's values become one.
    pub statistic: Statistic,
    /// Class of requests; all when absent.
    #[serde(default)]
    pub class: Option<String>,
    /// Whether it belongs to the declared family over which multiplicity is controlled.
    #[serde(default)]
    pub primary: bool,
}

impl MetricSpec {
    /// A stable name, for example `itl_p99[background]`.
    pub fn name(&self) -> String {
        let mut name = self.quantity.name().to_owned();
        if self.statistic != Statistic::Value {
            name.push('_');
            name.push_str(self.statistic.name());
        }
        if let Some(class) = &self.class {
            name.push_str(&format!("[{class}]"));
        }
        name
    }
}

/// The metrics of an interference experiment. Primary: ITL p99, the longest gap, the stall share
/// and TTFT p50, the two ends of the trade. A p99 moves only once more than 1 % of gaps are
/// stalled, so the longest gap and the share stand beside it; p99 of TTFT rests on too few requests
/// in a short block to be primary.
pub fn default_metrics(ttft_class: Option<&str>, itl_class: Option<&str>) -> Vec<MetricSpec> {
    use Quantity::{E2e, Itl, StallShare, Tpot, Ttft};
    use Statistic::{Max, P50, P95, P99, Value};
    let spec = |quantity, statistic, class: Option<&str>, primary| MetricSpec {
        quantity,
        statistic,
        class: class.map(str::to_owned),
        primary,
    };
    vec![
        spec(Itl, P99, itl_class, true),
        spec(Itl, Max, itl_class, true),
        spec(StallShare, Value, itl_class, true),
        spec(Ttft, P50, ttft_class, true),
        spec(Itl, P50, itl_class, false),
        spec(Itl, P95, itl_class, false),
        spec(Ttft, P95, ttft_class, false),
        spec(Ttft, P99, ttft_class, false),
        spec(Tpot, P50, itl_class, false),
        spec(E2e, P50, ttft_class, false),
    ]
}

/// One reset of a prefix cache and the probe that proved it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResetProof {
    /// Arm whose server was reset.
    pub arm: String,
    /// Block before which it happened.
    pub block: u32,
    /// Whether the server said that it did it.
    pub accepted: bool,
    /// Cached tokens that the server reported for the probe sent afterwards: 0 proves it.
    pub probe_cached_tokens: Option<u32>,
}

/// One cold against warm experiment in one arm and block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheNote {
    /// Arm.
    pub arm: String,
    /// Block.
    pub block: u32,
    /// Class of the requests sent to an empty cache.
    pub cold_class: String,
    /// Class of the requests sent to a filled cache.
    pub warm_class: String,
    /// Tokens in a cache block.
    pub block_size: u32,
    /// For each warm request the tokens it must find: full shared blocks times the block size.
    pub planned_cached_tokens: BTreeMap<RequestId, u32>,
    /// (cold, warm) requests with the same prompt.
    pub pairs: Vec<(RequestId, RequestId)>,
}

/// The result of one logit check on a variant that should be correct: exact, statistical or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NumericsNote {
    /// Mode and variant that were checked, for example "exact: chunk 17". Variants of one mode
    /// share what stands before the colon.
    pub label: String,
    /// Whether the bits are equal; absent where equality is not required.
    pub bits: Option<BitDifference>,
    /// Whether the errors are those of the monolithic pass; absent where only bits were compared.
    pub config: Option<ConfigVerdict>,
}

impl NumericsNote {
    /// The verdicts of both checks that were made.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let bits = self.bits.as_ref().map(BitDifference::verdict);
        bits.into_iter()
            .chain(self.config.as_ref().map(ConfigVerdict::restated))
            .collect()
    }

    /// Whether it failed only because the variant is more accurate than the monolithic pass.
    pub fn is_only_more_accurate(&self) -> bool {
        let bits_fail = self.bits.as_ref().is_some_and(|b| b.verdict().is_fail());
        let config = self.config.as_ref();
        !bits_fail && config.is_some_and(ConfigVerdict::is_only_more_accurate)
    }
}

/// The result of a logit check on a variant with a fault planted in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlantedFault {
    /// Which fault.
    pub label: String,
    /// Whether the check rejected it, as it must.
    pub rejected: bool,
    /// The strongest evidence, in words.
    pub evidence: String,
    /// What the check found, when it is the statistical one.
    pub config: Option<ConfigVerdict>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_quantity_statistic_and_class() {
        let names: Vec<String> = default_metrics(Some("long"), None)
            .iter()
            .map(MetricSpec::name)
            .collect();
        assert_eq!(
            names[..4],
            ["itl_p99", "itl_max", "stall_share", "ttft_p50[long]"]
        );
    }

    #[test]
    fn absent_fields_are_empty_and_unknown_ones_are_refused() {
        let notes: RunNotes = serde_json::from_str("{}").unwrap();
        assert_eq!(notes, RunNotes::default());
        let error = serde_json::from_str::<RunNotes>(r#"{"resetz":[]}"#).unwrap_err();
        assert!(error.to_string().contains("resetz"), "{error}");
    }

    #[test]
    fn notes_of_a_later_layout_are_refused() {
        for version in [0, NOTES_SCHEMA_VERSION] {
            let text = format!(r#"{{"schema_version":{version}}}"#);
            let notes: RunNotes = serde_json::from_str(&text).unwrap();
            assert_eq!(notes.schema_version, version);
        }
        for version in ["2", "99", "4294967297", "-1"] {
            let text = format!(r#"{{"schema_version":{version},"new_field":1}}"#);
            let error = serde_json::from_str::<RunNotes>(&text).unwrap_err();
            let expected = if version == "-1" {
                "-1"
            } else {
                "reads up to 1"
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn planned_tokens_survive_json() {
        let note = CacheNote {
            planned_cached_tokens: BTreeMap::from([(RequestId(7), 160)]),
            pairs: vec![(RequestId(1), RequestId(7))],
            ..CacheNote::default()
        };
        let text = serde_json::to_string(&note).unwrap();
        assert!(
            text.contains(r#""planned_cached_tokens":{"7":160}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<CacheNote>(&text).unwrap(), note);
    }
}
