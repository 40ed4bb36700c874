//! The figures of a cell: where its document has them, how they are called and shown.

use pb_bench::Tally;
use serde_json::Value;

use crate::format::{percent, percent_change, significant};
use crate::sections::interval as bracketed;

use super::read::{Comparison, Interval};
use super::settings::Over;

/// Latencies, in ms.
const LATENCIES: [(&str, &str); 8] = [
    ("ttft_ms", "TTFT"),
    ("ttfr_ms", "TTFR"),
    ("service_ttft_ms", "service TTFT"),
    ("itl_ms", "ITL"),
    ("event_gap_ms", "event gap"),
    ("tpot_ms", "TPOT"),
    ("e2e_ms", "E2E"),
    ("close_ms", "stream close"),
];

/// Other figures, with their words.
const OTHERS: [(&str, &str); 9] = [
    ("stalls.share", "stall share"),
    ("stalls.count", "stalls"),
    ("offered.success_rate", "success rate"),
    ("cache.hit_rate", "cache hit rate"),
    ("rates.achieved_rps", "requests/s"),
    ("rates.output_tps", "output tokens/s"),
    ("rates.input_tps", "prompt tokens/s"),
    ("rates.goodput_rps", "goodput, requests/s"),
    ("rates.goodput_share", "goodput share"),
];

/// A figure of a cell's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    /// As a suite writes it.
    pub(super) name: String,
    class: Option<String>,
    head: String,
    tail: String,
}

impl Measure {
    /// The figure of this name, for example `classes.background.itl_ms.p99`. Any name is taken;
    /// what no document has has no value.
    pub(super) fn new(name: &str) -> Measure {
        let of_class = name.strip_prefix("classes.").and_then(|rest| {
            let (rest, tail) = rest.rsplit_once('.')?;
            let (class, head) = rest.rsplit_once('.')?;
            Some((class, head, tail))
        });
        let (class, head, tail) = match of_class {
            Some((class, head, tail)) => (Some(class.to_owned()), head, tail),
            None => {
                let (head, tail) = name.split_once('.').unwrap_or((name, ""));
                (None, head, tail)
            }
        };
        Measure {
            name: name.to_owned(),
            class,
            head: head.to_owned(),
            tail: tail.to_owned(),
        }
    }

    /// The same figure of a class.
    pub(super) fn of_class(figure: &str, class: Option<&str>) -> Measure {
        match class {
            Some(class) => Measure::new(&format!("classes.{class}.{figure}")),
            None => Measure::new(figure),
        }
    }

    /// The class that it is of; absent for all requests.
    pub(super) fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// The part of the document that it belongs to, for example `ttft_ms`.
    pub(super) fn family(&self) -> &str {
        &self.head
    }

    /// Whether it is a latency in ms.
    pub(super) fn is_latency(&self) -> bool {
        LATENCIES.iter().any(|(head, _)| *head == self.head)
    }

    /// Whether it speaks of requests that ended well only, so that failures would flatter it.
    pub(super) fn is_of_good_ends(&self) -> bool {
        self.is_latency() || self.head == "stalls"
    }

    /// Whether it is a share, 0 to 1.
    pub(super) fn is_share(&self) -> bool {
        self.tail.ends_with("share") || self.tail.ends_with("_rate")
    }

    /// Whether it is a latency that jumps from block to block.
    pub(super) fn jumps(&self, over: &Over) -> bool {
        self.is_latency() && over.jumps()
    }

    /// The longest gap beside a tail percentile of gaps; absent for other figures.
    pub(super) fn longest_gap(&self) -> Option<Measure> {
        let gaps = ["itl_ms", "event_gap_ms"].contains(&self.head.as_str());
        let tail = self.percentile().is_some_and(|p| p >= 0.95);
        let figure = format!("{}.max", self.head);
        (gaps && tail).then(|| Measure::of_class(&figure, self.class()))
    }

    /// Whether more of it is better.
    pub(super) fn more_is_better(&self) -> bool {
        !self.is_of_good_ends()
    }

    /// Its value in a document; absent when it was not measured.
    pub(super) fn value(&self, document: &Value) -> Option<f64> {
        let of = match &self.class {
            Some(class) => document.get("classes")?.get(class)?,
            None => document,
        };
        let value = of.get(&self.head)?.get(&self.tail)?.as_f64();
        value.filter(|value| value.is_finite())
    }

    /// How many samples a document has of the latency.
    pub(super) fn samples(&self, document: &Value) -> Option<u64> {
        let of = match &self.class {
            Some(class) => document.get("classes")?.get(class)?,
            None => document,
        };
        of.get(&self.head)?.get("n")?.as_u64()
    }

    /// Which percentile of a latency it is, 0 to 1; absent for other figures.
    pub(super) fn percentile(&self) -> Option<f64> {
        let p = match self.tail.as_str() {
            "p50" => 0.5,
            "p90" => 0.9,
            "p95" => 0.95,
            "p99" => 0.99,
            "p999" => 0.999,
            _ => return None,
        };
        self.is_latency().then_some(p)
    }

    /// All samples in ms of the latency in a run; absent where there are more than `most`.
    pub(super) fn all_samples(&self, tally: &Tally, most: u64) -> Option<Vec<f64>> {
        let part = match &self.class {
            Some(class) => tally.class(class),
            None => tally.all(),
        };
        let found = match self.head.as_str() {
            "ttft_ms" => part.latency(|m| m.ttft_ns),
            "ttfr_ms" => part.latency(|m| m.ttfr_ns),
            "service_ttft_ms" => part.latency(|m| m.service_ttft_ns),
            "tpot_ms" => part.latency(|m| m.tpot_ns),
            "e2e_ms" => part.latency(|m| m.e2e_ns),
            "close_ms" => part.latency(|m| m.close_ns),
            "itl_ms" => part.itl(),
            "event_gap_ms" => part.event_gaps(),
            _ => return None,
        };
        let ms = |ns: u64| pb_contract::Nanos(ns).as_millis_f64();
        (found.n() <= most).then(|| {
            let each = found.iter();
            each.flat_map(|one| std::iter::repeat_n(ms(one.ns), one.count as usize))
                .collect()
        })
    }

    /// What is sampled, whatever is made of it: `classes.background.itl_ms`.
    pub(super) fn sampled(&self) -> String {
        let name = self.name.rsplit_once('.');
        name.map_or_else(String::new, |(head, _)| head.to_owned())
    }

    /// Samples below which its percentile, by nearest rank, is the largest of them.
    pub(super) fn samples_needed(&self) -> Option<u64> {
        match self.tail.as_str() {
            "p90" => Some(10),
            "p95" => Some(20),
            "p99" => Some(100),
            "p999" => Some(1_000),
            _ => None,
        }
    }

    /// In words, without the unit.
    pub(super) fn words(&self) -> String {
        let latency = LATENCIES.iter().find(|(head, _)| *head == self.head);
        let figure = format!("{}.{}", self.head, self.tail);
        let other = OTHERS.iter().find(|(name, _)| *name == figure);
        let tail = match self.tail.as_str() {
            "p999" => "p99.9",
            tail => tail,
        };
        let words = match (latency, other) {
            (Some((_, words)), _) if tail == "max" => format!("longest {words}"),
            (Some((_, words)), _) => format!("{words} {tail}"),
            (None, Some((_, words))) => (*words).to_owned(),
            (None, None) => figure,
        };
        match &self.class {
            Some(class) => format!("{words} of {class}"),
            None => words,
        }
    }

    /// The unit of [`Measure::plain`], with what goes before it.
    pub(super) fn unit(&self) -> &'static str {
        match (self.is_latency(), self.is_share()) {
            (true, _) => ", ms",
            (_, true) => ", %",
            _ => "",
        }
    }

    /// A value without its unit.
    pub(super) fn plain(&self, value: f64) -> String {
        match self.is_share() {
            true => percent(value),
            false => significant(value),
        }
    }

    /// A value with its unit.
    pub(super) fn shown(&self, value: f64) -> String {
        let unit = self.unit().trim_start_matches(',');
        format!("{}{unit}", self.plain(value)).replace(' ', "\u{a0}")
    }

    /// A change with its interval: in percent, in points of a share, or as it is.
    pub(super) fn change(&self, scale: &str, change: Interval) -> String {
        let share = self.is_share();
        let show = |value: f64| match (scale, share) {
            ("ratio", _) => percent_change(value),
            (_, true) => format!("{:+.1}", 100.0 * value),
            (_, false) => format!("{value:+.1}"),
        };
        let unit = match (scale, share) {
            ("ratio", _) => "\u{a0}%",
            (_, true) => "\u{a0}pt",
            (_, false) => "",
        };
        let point = format!("{}{unit}", show(change.point));
        bracketed(&point, &show(change.low), &show(change.high))
    }
}

impl Comparison {
    /// What is compared.
    pub(super) fn measure(&self) -> Measure {
        Measure::new(&self.metric)
    }

    /// The change with its interval, or a dash.
    pub(super) fn change_text(&self) -> String {
        let change = self.change;
        change.map_or_else(
            || crate::format::ABSENT.to_owned(),
            |change| self.measure().change(&self.scale, change),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_is_found_where_the_document_has_it() {
        let document = json!({
            "ttft_ms": {"p50": 12.5}, "itl_ms": null, "stalls": {"share": 0.25},
            "classes": {"a.b": {"itl_ms": {"p999": 7.0}}},
        });
        let value = |name: &str| Measure::new(name).value(&document);
        assert_eq!(value("ttft_ms.p50"), Some(12.5));
        assert_eq!(value("ttft_ms.p99"), None);
        assert_eq!(value("itl_ms.p99"), None);
        assert_eq!(value("classes.a.b.itl_ms.p999"), Some(7.0));
        assert_eq!(value("classes.c.itl_ms.p999"), None);
        assert_eq!(value("nonsense"), None);
    }

    #[test]
    fn figures_have_words_and_units() {
        let of = |name: &str| {
            let measure = Measure::new(name);
            (
                measure.words(),
                measure.shown(0.25),
                measure.more_is_better(),
            )
        };
        let nbsp = |text: &str| text.replace(' ', "\u{a0}");
        assert_eq!(
            of("classes.a.b.itl_ms.p999"),
            ("ITL p99.9 of a.b".to_owned(), nbsp("0.250 ms"), false)
        );
        assert_eq!(
            of("stalls.share"),
            ("stall share".to_owned(), nbsp("25.0 %"), false)
        );
        assert_eq!(
            of("rates.output_tps"),
            ("output tokens/s".to_owned(), "0.250".to_owned(), true)
        );
    }

    #[test]
    fn changes_are_in_percent_points_or_plain() {
        let change = Interval {
            point: 0.5,
            low: 0.25,
            high: 0.75,
        };
        let of = |name: &str, scale: &str| {
            let text = Measure::new(name).change(scale, change);
            text.replace('\u{a0}', " ")
        };
        assert_eq!(of("ttft_ms.p50", "ratio"), "-50.0 % [-75.0, -25.0]");
        assert_eq!(of("stalls.share", "difference"), "+50.0 pt [+25.0, +75.0]");
        assert_eq!(of("stalls.count", "difference"), "+0.5 [+0.2, +0.8]");
    }
}
