//! The router's metrics in the Prometheus text format.

use std::fmt::Write;

use crate::machine::Router;
use crate::worker::WorkerView;

/// Writes the page.
pub(crate) fn render(router: &Router) -> String {
    let mut page = String::new();
    let stats = router.stats();
    head(
        &mut page,
        "requests_total",
        "Requests by how they ended.",
        "counter",
    );
    for (outcome, count) in [
        ("completed", stats.completed),
        ("failed", stats.failed),
        ("cancelled", stats.cancelled),
    ] {
        line(
            &mut page,
            "requests_total",
            &format!("outcome=\"{outcome}\""),
            count,
        );
    }
    let help = "Requests that were turned away, by reason.";
    head(&mut page, "refused_total", help, "counter");
    for (reason, count) in [
        ("queue_full", stats.refused_queue_full),
        ("queue_timeout", stats.refused_waited),
        ("early", stats.refused_early),
        ("no_worker", stats.refused_no_worker),
    ] {
        line(
            &mut page,
            "refused_total",
            &format!("reason=\"{reason}\""),
            count,
        );
    }
    head(
        &mut page,
        "started_total",
        "Starts at a worker, by route.",
        "counter",
    );
    for (route, count) in [("split", stats.split), ("whole", stats.whole)] {
        line(
            &mut page,
            "started_total",
            &format!("route=\"{route}\""),
            count,
        );
    }
    sums(&mut page, router);
    workers(&mut page, &router.workers());
    page
}

/// Counters and gauges without labels.
fn sums(page: &mut String, router: &Router) {
    let stats = router.stats();
    let counters = [
        (
            "local_prefill_total",
            "Whole starts of what could be split.",
            stats.local_prefill,
        ),
        (
            "retries_total",
            "Starts again after a failure.",
            stats.retries,
        ),
        (
            "handed_total",
            "Hand-overs to a decode worker.",
            stats.handed,
        ),
        (
            "ahead_total",
            "Requests whose KV a decode worker was asked to fetch while it was computed.",
            stats.ahead,
        ),
        (
            "handed_without_room_total",
            "Hand-overs to a decode worker without room.",
            stats.handed_without_room,
        ),
        (
            "prompt_tokens_total",
            "Prompt tokens of started requests.",
            stats.prompt_tokens,
        ),
        (
            "overlap_tokens_total",
            "Of these, believed to be cached where they were sent.",
            stats.overlap_tokens,
        ),
        (
            "pool_moves_total",
            "Workers lent to another pool.",
            stats.pool_moves,
        ),
        (
            "pool_returns_total",
            "Workers back in their pool.",
            stats.pool_returns,
        ),
    ];
    for (name, help, count) in counters {
        head(page, name, help, "counter");
        line(page, name, "", count);
    }
    gauges(page, router);
}

fn gauges(page: &mut String, router: &Router) {
    let (queued, held) = router.waiting();
    for (name, help, count) in [
        ("queue_depth", "Requests that wait for a worker.", queued),
        (
            "held_depth",
            "Computed prompts that wait for a decode worker.",
            held,
        ),
        (
            "live_requests",
            "Requests that have not ended.",
            router.live(),
        ),
    ] {
        head(page, name, help, "gauge");
        line(page, name, "", count as u64);
    }
}

/// A figure of a worker: name, help, and where it stands.
type WorkerGauge = (&'static str, &'static str, fn(&WorkerView) -> u64);

fn workers(page: &mut String, workers: &[WorkerView]) {
    let gauges: [WorkerGauge; 7] = [
        ("worker_up", "Whether it answers.", |w| u64::from(w.up)),
        ("worker_prefills", "Requests in prefill there.", |w| {
            w.prefills as u64
        }),
        (
            "worker_prefill_tokens",
            "Prompt tokens to compute there.",
            |w| w.prefill_tokens as u64,
        ),
        (
            "worker_kept",
            "Computed prompts kept there for others.",
            |w| w.kept as u64,
        ),
        ("worker_decodes", "Requests that decode there.", |w| {
            w.decodes as u64
        }),
        ("worker_blocks", "Blocks of its requests.", |w| {
            w.blocks as u64
        }),
        (
            "worker_known_blocks",
            "Blocks believed to be cached there.",
            |w| w.known_blocks as u64,
        ),
    ];
    for (name, help, figure) in gauges {
        head(page, name, help, "gauge");
        for worker in workers {
            let labels = format!(
                "worker=\"{}\",home=\"{}\",pool=\"{}\"",
                worker.id,
                worker.home.name(),
                worker.pool.name()
            );
            line(page, name, &labels, figure(worker));
        }
    }
}

fn head(page: &mut String, name: &str, help: &str, kind: &str) {
    // OK because writing into a String cannot fail.
    write!(
        page,
        "# HELP prefillbench_router_{name} {help}\n# TYPE prefillbench_router_{name} {kind}\n"
    )
    .unwrap();
}

fn line(page: &mut String, name: &str, labels: &str, value: u64) {
    let labels = match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    };
    // OK because writing into a String cannot fail.
    writeln!(page, "prefillbench_router_{name}{labels} {value}").unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RouterConfig;
    use crate::worker::{Ask, Pool, WorkerSpec};
    use pb_contract::{Nanos, RequestId};

    #[test]
    fn every_sample_has_a_head_and_stands_once() {
        let mut router = Router::new(RouterConfig::default()).unwrap();
        router.add_worker(WorkerSpec::new(Pool::Prefill, 16));
        router.add_worker(WorkerSpec::new(Pool::Decode, 16));
        let ask = Ask {
            prompt_tokens: 40,
            splittable: true,
            ..Ask::default()
        };
        router.arrive(Nanos(0), RequestId(1), ask);
        let page = render(&router);
        let mut samples: Vec<&str> = Vec::new();
        for sample in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = sample.rsplit_once(' ').unwrap();
            value.parse::<u64>().unwrap();
            let name = series.split('{').next().unwrap();
            assert!(page.contains(&format!("# TYPE {name} ")), "{name}");
            samples.push(series);
        }
        let count = samples.len();
        samples.sort_unstable();
        samples.dedup();
        assert_eq!(samples.len(), count);
        let worker = "{worker=\"0\",home=\"prefill\",pool=\"prefill\"}";
        assert!(page.contains(&format!(
            "prefillbench_router_worker_prefill_tokens{worker} 40\n"
        )));
        assert!(page.contains("prefillbench_router_started_total{route=\"split\"} 1\n"));
    }
}
