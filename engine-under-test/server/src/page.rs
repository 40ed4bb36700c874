//! The Prometheus text format.

use std::fmt::Write;

use pb_kv::{LOG2_BUCKETS, Log2Histogram};

use crate::metrics::Histogram;

/// A page while it is written.
pub(crate) struct Page {
    out: String,
    /// Of every sample.
    labels: String,
}

impl Page {
    /// An empty page; `model_name` becomes a label of every sample.
    pub(crate) fn new(model_name: &str) -> Self {
        Page {
            out: String::new(),
            labels: format!("engine=\"0\",model_name=\"{}\"", escaped(model_name)),
        }
    }

    /// The whole text.
    pub(crate) fn into_text(self) -> String {
        self.out
    }

    pub(crate) fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // OK because writing into a String cannot fail.
        self.out.write_fmt(line).unwrap();
        self.out.push('\n');
    }

    /// Begins a metric.
    pub(crate) fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// `more` is empty or further labels, each with a comma in front. Values are written as
    /// Python writes floats (`3.0`), as vLLM does.
    pub(crate) fn sample(&mut self, name: &str, more: &str, value: f64) {
        let labels = std::mem::take(&mut self.labels);
        self.line(format_args!("{name}{{{labels}{more}}} {value:?}"));
        self.labels = labels;
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "counter");
        self.sample(name, "", value);
    }

    /// A metric with one sample for each value of one label.
    pub(crate) fn family<'a>(
        &mut self,
        (name, help, kind): (&str, &str, &str),
        label: &str,
        samples: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        self.head(name, help, kind);
        for (value, number) in samples {
            self.sample(name, &format!(",{label}=\"{}\"", escaped(value)), number);
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let bounds = histogram.bounds_s.iter().copied();
        let buckets = bounds.zip(histogram.counts.iter().copied());
        let count = histogram.counts.iter().sum();
        self.buckets(name, help, buckets, count, histogram.sum.as_secs_f64());
    }

    /// A histogram of powers of two, `scale` of its values to one that is shown; bounds below
    /// `smallest` are joined, and those that no value has reached are left out.
    pub(crate) fn log2_histogram(
        &mut self,
        (name, help): (&str, &str),
        histogram: &Log2Histogram,
        scale: f64,
        smallest: usize,
    ) {
        let counts = histogram.buckets();
        let last = counts
            .iter()
            .rposition(|&n| n > 0)
            .unwrap_or(0)
            .max(smallest);
        let joined: u64 = counts[..smallest].iter().sum();
        let bound = |b: usize| Log2Histogram::upper_bound(b) as f64 / scale;
        let buckets = (smallest..=last.min(LOG2_BUCKETS - 2)).map(|b| {
            let count = counts[b] + if b == smallest { joined } else { 0 };
            (bound(b), count)
        });
        let sum = histogram.sum() as f64 / scale;
        self.buckets(name, help, buckets, histogram.count(), sum);
    }

    /// Upper bounds with the values of each bucket, `count` values in all.
    fn buckets(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, values) in buckets {
            below += values;
            self.sample(&bucket, &format!(",le=\"{bound:?}\""), below as f64);
        }
        self.sample(&bucket, ",le=\"+Inf\"", count as f64);
        self.sample(&format!("{name}_count"), "", count as f64);
        self.sample(&format!("{name}_sum"), "", sum);
    }
}

/// A label's value as the format wants it.
pub(crate) fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_powers_of_two_are_cumulative_and_end_with_the_last_value() {
        let mut histogram = Log2Histogram::default();
        for value in [0, 1, 3, 6, 7, 20] {
            histogram.record(value);
        }
        let mut page = Page::new("a\"b");
        page.log2_histogram(("blocks", "Help."), &histogram, 1.0, 2);
        let labels = "engine=\"0\",model_name=\"a\\\"b\"";
        let expected = format!(
            "# HELP blocks Help.\n# TYPE blocks histogram\n\
             blocks_bucket{{{labels},le=\"3.0\"}} 3.0\n\
             blocks_bucket{{{labels},le=\"7.0\"}} 5.0\n\
             blocks_bucket{{{labels},le=\"15.0\"}} 5.0\n\
             blocks_bucket{{{labels},le=\"31.0\"}} 6.0\n\
             blocks_bucket{{{labels},le=\"+Inf\"}} 6.0\n\
             blocks_count{{{labels}}} 6.0\n\
             blocks_sum{{{labels}}} 37.0\n"
        );
        assert_eq!(page.into_text(), expected);
    }
}
