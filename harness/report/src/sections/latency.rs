//! Latencies and stalls of each arm.

use pb_judge::run::{ArmSummary, ClassSummary, Distribution, RunVerdict};

use super::{Detail, Section, shown_arms};
use crate::format::{count_or_dash, ms_or_dash, percent, percent_or_dash};
use crate::table::Table;

/// Which distribution of a class is shown, and over which class.
type Pick = fn(&ClassSummary) -> &Distribution;

pub(super) fn section(verdict: &RunVerdict, detail: Detail) -> Section {
    let mut section = Section::new("latency", "Latency of each arm");
    let comparison = verdict.performance.comparison.as_ref();
    let ttft_class = comparison.and_then(|c| c.ttft_class.as_deref());
    let itl_class = comparison.and_then(|c| c.itl_class.as_deref());
    let arms = shown_arms(verdict);
    let headers = ["metric", "arm", "n", "p50", "p95", "p99", "max"];
    let mut table = Table::new("Latency in ms; nearest-rank percentiles", 2, &headers);
    let metrics: [(&str, Option<&str>, Pick); 7] = [
        ("TTFT", ttft_class, |c| &c.ttft),
        ("Service TTFT", ttft_class, |c| &c.service_ttft),
        ("E2E", ttft_class, |c| &c.e2e),
        ("ITL", itl_class, |c| &c.itl),
        ("Event gap", itl_class, |c| &c.event_gap),
        ("TPOT", itl_class, |c| &c.tpot),
        ("Driver lag", None, |c| &c.driver_lag),
    ];
    // In a healthy run these three repeat TTFT, ITL and the check of the driver's lag.
    let repeated = ["Service TTFT", "Event gap", "Driver lag"];
    let shown = |name: &str| detail == Detail::Full || !repeated.contains(&name);
    for (name, class, pick) in metrics.into_iter().filter(|(name, ..)| shown(name)) {
        let label = labelled(name, class);
        for arm in &arms {
            if let Some(summary) = arm.class(class) {
                table.push(row(&label, &arm.name, pick(summary)));
            }
        }
    }
    section.tables.push(table);
    section.tables.push(stalls(verdict, &arms, itl_class));
    section
}

fn labelled(name: &str, class: Option<&str>) -> String {
    class.map_or_else(|| name.to_owned(), |class| format!("{name} ({class})"))
}

fn row(label: &str, arm: &str, distribution: &Distribution) -> Vec<String> {
    vec![
        label.to_owned(),
        arm.to_owned(),
        distribution.n.to_string(),
        ms_or_dash(distribution.p50_ns),
        ms_or_dash(distribution.p95_ns),
        ms_or_dash(distribution.p99_ns),
        ms_or_dash(distribution.max_ns),
    ]
}

fn stalls(verdict: &RunVerdict, arms: &[&ArmSummary], class: Option<&str>) -> Table {
    let threshold = verdict.performance.stall_threshold_ns;
    let caption = format!(
        "Stalls{}: gaps of at least {} ms",
        class.map_or_else(String::new, |class| format!(" ({class})")),
        ms_or_dash(threshold)
    );
    let headers = [
        "arm",
        "gaps",
        "stalls",
        "longest ms",
        "total ms",
        "% of streaming time",
        "bundled tokens %",
    ];
    let mut table = Table::new(caption, 1, &headers);
    for arm in arms {
        let Some(summary) = arm.class(class) else {
            continue;
        };
        let stalls = &summary.stalls;
        let measured = (stalls.gaps > 0).then_some(());
        table.push(vec![
            arm.name.clone(),
            stalls.gaps.to_string(),
            count_or_dash(measured.map(|()| stalls.count)),
            ms_or_dash(stalls.longest_ns),
            ms_or_dash(measured.map(|()| stalls.total_ns)),
            percent_or_dash(stalls.time_share),
            summary
                .bundled_share
                .map_or_else(|| crate::format::ABSENT.to_owned(), percent),
        ]);
    }
    table
}
