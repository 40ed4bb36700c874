//! What people read of it.

use std::fmt::Write;

use pb_kernels_cuda::check::{Ceilings, Judged, NotAvailable, Shares, Timed};

use super::Findings;
use super::torch::Comparison;

/// One table, at most 100 columns wide.
pub(super) fn text(f: &Findings) -> String {
    let mut out = format!("device: {}\n", f.device);
    let mut line = |text: String| {
        // OK because writing to a string cannot fail.
        writeln!(out, "{}", text.trim_end()).expect("a string takes every line");
    };
    if let Some(c) = f.ceilings {
        let gemm = c
            .gemm_flops_per_s
            .map_or("none".to_owned(), |g| format!("{:.2} TFLOP/s", g / 1e12));
        line(format!(
            "ceilings measured here: read {:.1} GB/s, copy {:.1} GB/s, matrix product {gemm}",
            c.read_bytes_per_s / 1e9,
            c.copy_bytes_per_s / 1e9
        ));
        line("`mem`: of memory's rate for the kernel's own mix of reads and writes".to_owned());
        line("`mul`: of the matrix product's rate".to_owned());
    }
    let kernels = kernels(f);
    if !kernels.is_empty() {
        line(format!(
            "{:<28} {:>9} {:>8} {:>9} {:>10} {:>8} {:>8} {:>10}",
            "kernel", "right", "of rule", "of bound", "median us", "GB/s", "TFLOP/s", "ceiling"
        ));
    }
    for kernel in kernels {
        let judged: Vec<&Judged> = f.judged.iter().filter(|j| j.kernel == kernel).collect();
        line(validity(kernel, &judged));
        for j in judged.iter().filter(|j| !j.passes()) {
            line(format!("  WRONG  {}: {}", j.shape, problem(j)));
        }
        for t in f.timed.iter().filter(|t| t.kernel == kernel) {
            line(timing(t, f));
        }
        not_available(kernel, &f.not_available)
            .into_iter()
            .for_each(&mut line);
    }
    if let Some(over) = f.ceilings.and_then(|c| above(&f.timed, &c)) {
        line(over);
    }
    if let Some(runs) = f.runs_of_shape {
        line(format!(
            "every shape in {runs} orders of threads and blocks, bits compared"
        ));
    }
    if let Some(why) = f.untimed {
        line(why.to_owned());
    }
    for check in &f.forward {
        let word = if check.passed { "pass" } else { "FAIL" };
        line(format!("forward  {word}  {}: {}", check.name, check.detail));
    }
    if let Some(comparison) = &f.torch {
        beside(comparison).into_iter().for_each(&mut line);
    }
    let undecided = f.undecided();
    undecided
        .iter()
        .for_each(|why| line(format!("UNDECIDED  {why}")));
    line(verdict(f, undecided.is_empty()));
    out.truncate(out.trim_end().len());
    out
}

/// Kernels in the order in which they were found.
fn kernels(f: &Findings) -> Vec<&str> {
    let judged = f.judged.iter().map(|j| j.kernel.as_str());
    let timed = f.timed.iter().map(|t| t.kernel);
    let others = f.not_available.iter().map(|n| n.kernel);
    let mut kernels = Vec::new();
    for name in judged.chain(timed).chain(others) {
        if !kernels.contains(&name) {
            kernels.push(name);
        }
    }
    kernels
}

fn verdict(f: &Findings, decided: bool) -> String {
    let wrong = f.judged.iter().filter(|j| !j.passes()).count();
    let failed = f.forward.iter().filter(|c| !c.passed).count();
    match wrong + failed {
        0 if decided => "pass".to_owned(),
        0 => "inconclusive".to_owned(),
        _ => format!(
            "FAIL: {wrong} of {} shapes, {failed} of {} forward passes",
            f.judged.len(),
            f.forward.len()
        ),
    }
}

/// Above this share of memory's rate the ceiling is wrong, not the kernel fast.
const MOST_OF_MEMORY: f64 = 1.05;

/// What to think of a run in which kernels exceed the rate of memory.
fn above(timed: &[Timed], c: &Ceilings) -> Option<String> {
    let over = timed
        .iter()
        .filter(|t| t.shares(c).of_memory > MOST_OF_MEMORY);
    let count = over.count();
    (count > 0).then(|| {
        format!(
            "{count} of {} above what memory gives: the machine was busy when that was measured, \
             so the shares of this run mean nothing",
            timed.len()
        )
    })
}

/// Attention beside PyTorch's.
fn beside(c: &Comparison) -> Vec<String> {
    let mut lines = vec![c.torch.clone()];
    if let Some(first) = c.rows.first() {
        lines[0] = format!(
            "{}: scaled_dot_product_attention in turns with ours, {} pairs, inputs cold",
            c.torch, first.pairs
        );
        lines.push(format!(
            "{:<32} {:>10} {:>11}   {:<24} {}",
            "", "ours us", "PyTorch us", "its time / ours [95 %]", "heads"
        ));
    }
    for row in &c.rows {
        let [point, low, high] = row.ratio;
        lines.push(format!(
            "{:<32} {:>10.1} {:>11.1}   {:<24} {}",
            format!("{} {}", row.kernel, row.shape),
            row.median_ns[0] as f64 / 1e3,
            row.median_ns[1] as f64 / 1e3,
            format!("{point:.2} [{low:.2}, {high:.2}]"),
            row.way
        ));
    }
    lines
}

/// What is wrong with a kernel at a shape, in words.
fn problem(j: &Judged) -> String {
    match &j.outcome {
        Ok(v) => format!(
            "{} of the rule, {} of the bound",
            share(v.of_rule),
            share(v.of_bound)
        ),
        Err(problem) => problem.clone(),
    }
}

fn share(x: f64) -> String {
    if x.is_finite() {
        format!("{:.0} %", 100.0 * x)
    } else {
        "inf".to_owned()
    }
}

/// How many shapes are right, and the worst shares.
fn validity(kernel: &str, judged: &[&Judged]) -> String {
    if judged.is_empty() {
        return kernel.to_owned();
    }
    let right = judged.iter().filter(|j| j.passes()).count();
    let verdicts = judged.iter().filter_map(|j| j.outcome.as_ref().ok());
    let (rule, bound) = verdicts.fold((0.0f64, 0.0f64), |(rule, bound), v| {
        (rule.max(v.of_rule), bound.max(v.of_bound))
    });
    format!(
        "{kernel:<28} {:>9} {:>8} {:>9}",
        format!("{right} of {}", judged.len()),
        share(rule),
        share(bound)
    )
}

/// Why shapes of a kernel were not run, each reason once.
fn not_available(kernel: &str, all: &[NotAvailable]) -> Vec<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for one in all.iter().filter(|n| n.kernel == kernel) {
        match reasons.iter_mut().find(|(why, _)| *why == one.why) {
            Some((_, shapes)) => *shapes += 1,
            None => reasons.push((one.why, 1)),
        }
    }
    let lines = reasons.into_iter();
    lines
        .map(|(why, shapes)| format!("  not available: {why} (shapes: {shapes})"))
        .collect()
}

/// Rates of a launch: bytes and operations a second.
fn rates(t: &Timed) -> (f64, f64) {
    let seconds = t.median_ns.max(1) as f64 / 1e9;
    (t.bytes() as f64 / seconds, t.flops as f64 / seconds)
}

/// The larger of the two shares of a ceiling, and the ceiling's word: what bounds the kernel.
fn bound(shares: &Shares) -> (f64, &'static str) {
    match shares.of_product {
        Some(product) if product > shares.of_memory => (product, "mul"),
        _ => (shares.of_memory, "mem"),
    }
}

fn timing(t: &Timed, f: &Findings) -> String {
    let (bytes, flops) = rates(t);
    let shares = f.ceilings.map(|c| t.shares(&c));
    let ceiling = shares.map_or(String::new(), |s| {
        let (of, word) = bound(&s);
        format!("{} {word}", share(of))
    });
    format!(
        "  {:<26} {:>9} {:>8} {:>9} {:>10.1} {:>8.1} {:>8.2} {:>10}",
        t.shape,
        "",
        "",
        "",
        t.median_ns as f64 / 1e3,
        bytes / 1e9,
        flops / 1e12,
        ceiling
    )
}

#[cfg(test)]
mod tests {
    use pb_kernels_cuda::check::Verdict;

    use super::*;

    fn findings(of_rule: f64) -> Findings {
        let verdict = Verdict {
            of_rule,
            of_bound: 0.5,
        };
        Findings {
            device: "a device".to_owned(),
            judged: vec![Judged {
                kernel: "rmsnorm".to_owned(),
                shape: "bf16 3x576".to_owned(),
                outputs: 1728,
                outcome: Ok(verdict),
            }],
            timed: vec![Timed {
                kernel: "rmsnorm",
                shape: "512x4096".to_owned(),
                median_ns: 2_000,
                range_ns: [1_900, 2_100],
                traffic: [1_000_000, 0],
                flops: 10,
            }],
            ceilings: Some(Ceilings {
                read_bytes_per_s: 2e12,
                copy_bytes_per_s: 1e12,
                gemm_flops_per_s: None,
            }),
            ..Findings::default()
        }
    }

    #[test]
    fn the_table_says_how_right_and_how_fast() {
        let text = text(&findings(0.46));
        assert!(text.contains("1 of 1     46 %      50 %"), "{text}");
        // 1 MB in 2 us is 500 GB/s: half of a copy's rate, but it only reads.
        assert!(text.contains("2.0    500.0     0.00   25 % mem"), "{text}");
        assert!(
            text.contains("read 2000.0 GB/s, copy 1000.0 GB/s"),
            "{text}"
        );
        assert!(text.ends_with("\npass"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    }

    #[test]
    fn what_was_not_run_has_a_row_that_says_why_and_fails_nothing() {
        let mut lacking = findings(0.46);
        let reasons = [
            "cuBLASLt scales rows from 12.9 on, on compute capability 9.0 alone",
            "cuBLASLt has no algorithm for these sizes",
        ];
        for why in [reasons[0], reasons[1], reasons[0]] {
            lacking.not_available.push(NotAvailable {
                kernel: "gemm_e4m3 vendor",
                shape: "512x6144x4096".to_owned(),
                why,
            });
        }
        let text = text(&lacking);
        let rows = [
            "\ngemm_e4m3 vendor".to_owned(),
            format!("  not available: {} (shapes: 2)", reasons[0]),
            format!("  not available: {} (shapes: 1)\n", reasons[1]),
        ];
        assert!(text.contains(&rows.join("\n")), "{text}");
        assert!(text.ends_with("\npass"), "{text}");
        assert_eq!(lacking.exit_code(), 0);
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    }

    #[test]
    fn a_kernel_faster_than_memory_is_doubted() {
        let mut fast = findings(0.46);
        assert!(!text(&fast).contains("mean nothing"));
        fast.timed[0].median_ns = 400; // 1 MB in 0.4 us, read at 2 MB/us: 125 %.
        assert!(text(&fast).contains("1 of 1 above what memory gives"));
    }

    #[test]
    fn too_few_decidable_rows_prove_nothing_and_a_wrong_pass_is_wrong() {
        let mut f = findings(0.46);
        for (decidable, passed, code, last) in [
            (Some(50), true, 0, "pass"),
            (Some(49), true, 3, "inconclusive"),
            (None, true, 0, "pass"), // bits were compared: nothing to decide
            (
                Some(49),
                false,
                1,
                "FAIL: 0 of 1 shapes, 1 of 1 forward passes",
            ),
        ] {
            f.forward = vec![pb_gpu::check::ForwardCheck {
                name: "exact, whole prompts".to_owned(),
                passed,
                decidable,
                detail: String::new(),
            }];
            let text = text(&f);
            assert_eq!(f.exit_code(), code, "{text}");
            assert!(text.ends_with(last), "{text}");
            let told = text.contains("only 49 decidable rows");
            assert_eq!(told, decidable == Some(49), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut wrong = findings(1.5);
        let text_of = text(&wrong);
        assert!(
            text_of.contains("WRONG  bf16 3x576: 150 % of the rule"),
            "{text_of}"
        );
        assert!(text_of.contains("FAIL: 1 of 1 shapes"), "{text_of}");
        assert!(!wrong.passed());
        wrong.judged[0].outcome = Err("Race: here".to_owned());
        assert!(text(&wrong).contains("WRONG  bf16 3x576: Race: here"));
        assert!(!wrong.passed());
    }
}
