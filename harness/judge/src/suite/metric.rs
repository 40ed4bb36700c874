//! The figures of a cell that a hypothesis may speak of.

use pb_stats::Good;
use serde_json::Value;
use thiserror::Error;

/// On which scale two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Candidate over baseline, on logarithms; the margin is a share.
    Ratio,
    /// Candidate minus baseline, for figures that may be zero; the margin is in their unit.
    Difference,
}

/// A figure of the document of `bench`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it is written.
    pub name: String,
    /// Which way is good.
    pub good: Good,
    /// How it is compared.
    pub scale: Scale,
    /// Whether a request that left late makes it longer.
    pub from_arrival: bool,
    class: Option<String>,
    path: Vec<String>,
}

/// Latencies, in ms.
const LATENCIES: [&str; 8] = [
    "ttft_ms",
    "ttfr_ms",
    "service_ttft_ms",
    "itl_ms",
    "event_gap_ms",
    "tpot_ms",
    "e2e_ms",
    "close_ms",
];

/// Latencies that count from the intended arrival.
const FROM_ARRIVAL: [&str; 4] = ["ttft_ms", "ttfr_ms", "e2e_ms", "close_ms"];

/// What is known of a latency's distribution.
const STATISTICS: [&str; 7] = ["mean", "p50", "p90", "p95", "p99", "p999", "max"];

/// Other figures, how they are compared, and whether a class has them.
const OTHERS: [(&str, Scale, Good, bool); 9] = [
    ("stalls.share", Scale::Difference, Good::Lower, true),
    ("stalls.count", Scale::Difference, Good::Lower, true),
    (
        "offered.success_rate",
        Scale::Difference,
        Good::Higher,
        true,
    ),
    ("cache.hit_rate", Scale::Difference, Good::Higher, false),
    ("rates.achieved_rps", Scale::Ratio, Good::Higher, false),
    ("rates.output_tps", Scale::Ratio, Good::Higher, false),
    ("rates.input_tps", Scale::Ratio, Good::Higher, false),
    ("rates.goodput_rps", Scale::Ratio, Good::Higher, false),
    (
        "rates.goodput_share",
        Scale::Difference,
        Good::Higher,
        false,
    ),
];

/// A name that no document has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{key} = \"{}\": no figure to compare; use one of {} with one of {}, or {}; classes.NAME in \
     front makes it that of a class",
    pb_record::visible(name),
    LATENCIES.join(" "),
    STATISTICS.join(" "),
    OTHERS.map(|(name, ..)| name).join(" ")
)]
pub struct UnknownFigure {
    /// Where it stands.
    pub key: String,
    /// The name.
    pub name: String,
}

impl Metric {
    /// Reads the name of a figure: `ttft_ms.p50`, `classes.background.itl_ms.p99`, `stalls.share`.
    ///
    /// # Errors
    /// No such figure; `key` says where it stands.
    pub fn parse(key: &str, name: &str) -> Result<Metric, UnknownFigure> {
        let split = |rest: &str| {
            let words: Vec<&str> = rest.rsplitn(3, '.').collect();
            match words[..] {
                [last, first, class] => Some((class.to_owned(), format!("{first}.{last}"))),
                _ => None,
            }
        };
        let (class, figure) = match name.strip_prefix("classes.").and_then(split) {
            Some((class, figure)) => (Some(class), figure),
            None => (None, name.to_owned()),
        };
        let (head, tail) = figure.split_once('.').unwrap_or((&figure, ""));
        let latency = LATENCIES.contains(&head) && STATISTICS.contains(&tail);
        let other = OTHERS
            .iter()
            .find(|(other, .., in_class)| *other == figure && (*in_class || class.is_none()));
        let (scale, good) = match other {
            Some(&(_, scale, good, _)) => (scale, good),
            None if latency => (Scale::Ratio, Good::Lower),
            None => {
                return Err(UnknownFigure {
                    key: key.to_owned(),
                    name: name.to_owned(),
                });
            }
        };
        Ok(Metric {
            name: name.to_owned(),
            good,
            scale,
            from_arrival: latency && FROM_ARRIVAL.contains(&head),
            class,
            path: vec![head.to_owned(), tail.to_owned()],
        })
    }

    /// The class of requests that it is of; absent when of all.
    pub fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// The margin when none is given: 3 %, or a point of a share; of a count one.
    pub fn usual_margin(&self) -> f64 {
        match self.scale {
            Scale::Ratio => 0.03,
            Scale::Difference if self.path == ["stalls", "count"] => 1.0,
            Scale::Difference => 0.01,
        }
    }

    /// Largest margin that is no slip: of a ratio 1, which is twice as much; of a count any.
    pub fn most_margin(&self) -> f64 {
        match self.scale {
            Scale::Difference if self.path == ["stalls", "count"] => f64::MAX,
            Scale::Ratio | Scale::Difference => 1.0,
        }
    }

    /// Whether the figure of this name is a share, 0 to 1.
    pub fn is_share(name: &str) -> bool {
        name.ends_with("share") || name.ends_with("_rate")
    }

    /// Whether it speaks of requests that ended well only, so that failures would flatter it.
    pub fn is_of_good_ends(&self) -> bool {
        let head = self.path[0].as_str();
        head == "stalls" || LATENCIES.contains(&head)
    }

    /// Its value in a document; absent when it was not measured.
    pub fn value(&self, document: &Value) -> Option<f64> {
        let of = match &self.class {
            Some(class) => document.get("classes")?.get(class)?,
            None => document,
        };
        let found = self.path.iter().try_fold(of, |value, key| value.get(key))?;
        found.as_f64().filter(|value| value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metric(name: &str) -> Metric {
        Metric::parse("metric", name).unwrap()
    }

    #[test]
    fn a_figure_is_found_where_the_document_has_it() {
        let document = json!({
            "ttft_ms": {"p50": 12.5}, "itl_ms": null, "stalls": {"share": 0.0, "count": 3},
            "classes": {"a.b": {"itl_ms": {"p99": 7.0}}},
        });
        assert_eq!(metric("ttft_ms.p50").value(&document), Some(12.5));
        assert_eq!(metric("ttft_ms.p99").value(&document), None);
        assert_eq!(metric("itl_ms.p99").value(&document), None);
        assert_eq!(metric("stalls.count").value(&document), Some(3.0));
        assert_eq!(metric("classes.a.b.itl_ms.p99").value(&document), Some(7.0));
        assert_eq!(metric("classes.c.itl_ms.p99").value(&document), None);
    }

    #[test]
    fn which_way_is_good_and_what_a_late_client_changes() {
        let kind = |name: &str| {
            let metric = metric(name);
            (metric.good, metric.scale, metric.from_arrival)
        };
        assert_eq!(kind("e2e_ms.max"), (Good::Lower, Scale::Ratio, true));
        assert_eq!(kind("itl_ms.p99"), (Good::Lower, Scale::Ratio, false));
        assert_eq!(
            kind("cache.hit_rate"),
            (Good::Higher, Scale::Difference, false)
        );
        let margins =
            ["ttft_ms.p50", "stalls.count", "stalls.share"].map(|n| metric(n).usual_margin());
        assert_eq!(margins, [0.03, 1.0, 0.01]);
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        for name in [
            "ttft",
            "ttft_ms",
            "ttft_ms.p97",
            "classes.x.rates.output_tps",
            "",
            "seed",
        ] {
            let error = Metric::parse("hypothesis 1: metric", name)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("hypothesis 1") && error.contains("p999"),
                "{error}"
            );
        }
    }
}
