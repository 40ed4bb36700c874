//! What the engines said of their steps, blocks and caches.

use pb_judge::run::{CacheVerdict, RunVerdict, StepSummary};

use super::Section;
use super::comparison::interval;
use crate::format::{count_or_dash, duration, ms_or_dash, percent, percent_change};
use crate::table::Table;

fn with_steps(verdict: &RunVerdict) -> impl Iterator<Item = (&str, &StepSummary)> {
    let arms = verdict.performance.arms.iter();
    arms.filter_map(|arm| arm.steps.as_ref().map(|steps| (arm.name.as_str(), steps)))
}

pub(super) fn steps(verdict: &RunVerdict) -> Section {
    let mut section = Section::new("steps", "Engine steps");
    if with_steps(verdict).next().is_none() {
        section
            .text
            .push("The servers sent no step rows.".to_owned());
        return section;
    }
    let headers = [
        "arm",
        "steps",
        "with prefill",
        "mixed",
        "max prompt tok.",
        "p50 ms",
        "p99 ms",
        "max ms",
    ];
    let mut table = Table::new("Steps and their durations", 1, &headers);
    let headers = [
        "arm",
        "total",
        "schedule",
        "pre. GEMM",
        "pre. attn",
        "dec. GEMM",
        "dec. attn",
        "sampling",
        "other",
    ];
    let mut split = Table::new("Where step time went, % of the total", 1, &headers);
    for (name, steps) in with_steps(verdict) {
        let counts = [
            steps.steps,
            steps.prefill_steps,
            steps.mixed_steps,
            steps.max_prefill_tokens,
        ];
        let mut row = vec![name.to_owned()];
        row.extend(counts.map(|n| n.to_string()));
        let d = &steps.duration;
        row.extend([d.p50_ns, d.p99_ns, d.max_ns].map(ms_or_dash));
        table.push(row);
        let total = steps.time.total_ns;
        let mut row = vec![name.to_owned(), duration(total as f64)];
        let share = |ns: u64| {
            if total > 0 {
                percent(ns as f64 / total as f64)
            } else {
                "–".into()
            }
        };
        row.extend(steps.time.parts().map(|(_, ns)| share(ns)));
        split.push(row);
    }
    section.tables.extend([table, split]);
    section
}

pub(super) fn buckets(verdict: &RunVerdict) -> Section {
    let mut section = Section::new("buckets", "KV blocks and cache hits");
    section.text.push(
        "Active, reclaimable and free are disjoint and sum to the pool; free does not contain \
         reclaimable."
            .to_owned(),
    );
    let headers = [
        "arm",
        "pool",
        "active peak",
        "reclaimable peak",
        "free min",
        "free max",
        "hit tokens",
        "looked up",
        "hit %",
        "evicted",
        "preempted",
    ];
    let mut table = Table::new(
        "Blocks after each step, and prefix cache lookups",
        1,
        &headers,
    );
    for (name, steps) in with_steps(verdict) {
        let buckets = &steps.buckets;
        let mut row = vec![name.to_owned()];
        let blocks = [
            buckets.pool,
            buckets.active_peak,
            buckets.reclaimable_peak,
            buckets.free_min,
            buckets.free_peak,
        ];
        row.extend(blocks.map(count_or_dash));
        row.extend([steps.hit_tokens, steps.queried_tokens].map(|n| n.to_string()));
        let queried = steps.queried_tokens as f64;
        let rate = (queried > 0.0).then(|| steps.hit_tokens as f64 / queried);
        row.push(crate::format::percent_or_dash(rate));
        row.extend([steps.evicted_blocks, steps.preempted].map(|n| n.to_string()));
        table.push(row);
    }
    section.tables.push(table);
    section
}

pub(super) fn cache(verdict: &RunVerdict) -> Option<Section> {
    if verdict.cache.is_empty() {
        return None;
    }
    let mut section = Section::new("cache", "Prefix cache: cold against warm");
    section.text.push(
        "Cold is proven by a reset and a probe that found 0 tokens; warm by finding exactly the \
         planned tokens. The interval is over pairs of one session, not over sessions."
            .to_owned(),
    );
    let headers = [
        "arm",
        "block",
        "cold",
        "warm",
        "n",
        "found/plan",
        "cold p50 ms",
        "warm p50 ms",
        "TTFT change, % [95 %]",
    ];
    let mut table = Table::new(
        "TTFT with an empty and a filled cache; n: cold + warm requests; found/plan in tokens",
        4,
        &headers,
    );
    for cache in &verdict.cache {
        table.push(cache_row(cache));
        section
            .text
            .extend(cache.reasons.iter().map(|r| format!("Not proven: {r}.")));
    }
    section.tables.push(table);
    Some(section)
}

fn cache_row(cache: &CacheVerdict) -> Vec<String> {
    let proven = |yes| if yes { "proven" } else { "NOT PROVEN" }.to_owned();
    let ratio = cache.ttft_ratio.as_ref().map_or_else(
        || crate::format::ABSENT.to_owned(),
        |r| {
            let [point, low, high] = [r.point, r.low, r.high].map(percent_change);
            interval(&point, &low, &high)
        },
    );
    vec![
        cache.arm.clone(),
        cache.block.to_string(),
        proven(cache.cold_proven),
        proven(cache.warm_proven),
        format!("{} + {}", cache.cold, cache.warm).replace(' ', "\u{a0}"),
        format!(
            "{}/{}",
            count_or_dash(cache.cached_tokens),
            cache.planned_tokens
        ),
        ms_or_dash(cache.cold_ttft.p50_ns),
        ms_or_dash(cache.warm_ttft.p50_ns),
        ratio,
    ]
}
