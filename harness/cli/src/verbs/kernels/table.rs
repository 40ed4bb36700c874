//! What people and programs read of it.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use pb_kernels_cuda::check::{Judged, Timed};

use super::Findings;

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
            "ceilings measured here: copy {:.1} GB/s, matrix product {gemm}",
            c.copy_bytes_per_s / 1e9
        ));
    }
    let mut kernels: Vec<&str> = Vec::new();
    let names = f.judged.iter().map(|j| j.kernel.as_str());
    for name in names.chain(f.timed.iter().map(|t| t.kernel)) {
        if !kernels.contains(&name) {
            kernels.push(name);
        }
    }
    if !kernels.is_empty() {
        line(format!(
            "{:<30} {:>9} {:>8} {:>9} {:>10} {:>8} {:>8} {:>9}",
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
    }
    if let Some(why) = f.untimed {
        line(why.to_owned());
    }
    for check in &f.forward {
        let word = if check.passed { "pass" } else { "FAIL" };
        line(format!("forward  {word}  {}: {}", check.name, check.detail));
    }
    let wrong = f.judged.iter().filter(|j| !j.passes()).count();
    let failed = f.forward.iter().filter(|c| !c.passed).count();
    line(match wrong + failed {
        0 => "pass".to_owned(),
        _ => format!(
            "FAIL: {wrong} of {} shapes, {failed} of {} forward passes",
            f.judged.len(),
            f.forward.len()
        ),
    });
    out.truncate(out.trim_end().len());
    out
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
        "{kernel:<30} {:>9} {:>8} {:>9}",
        format!("{right} of {}", judged.len()),
        share(rule),
        share(bound)
    )
}

/// Rates of a launch: bytes and operations a second.
fn rates(t: &Timed) -> (f64, f64) {
    let seconds = t.median_ns.max(1) as f64 / 1e9;
    (t.bytes as f64 / seconds, t.flops as f64 / seconds)
}

/// The larger of the two shares of a ceiling: what bounds the kernel.
fn ceiling_share(t: &Timed, f: &Findings) -> Option<f64> {
    let (bytes, flops) = rates(t);
    let ceilings = f.ceilings?;
    let of_gemm = ceilings.gemm_flops_per_s.map_or(0.0, |g| flops / g);
    Some((bytes / ceilings.copy_bytes_per_s).max(of_gemm))
}

fn timing(t: &Timed, f: &Findings) -> String {
    let (bytes, flops) = rates(t);
    format!(
        "  {:<28} {:>9} {:>8} {:>9} {:>10.1} {:>8.1} {:>8.2} {:>9}",
        t.shape,
        "",
        "",
        "",
        t.median_ns as f64 / 1e3,
        bytes / 1e9,
        flops / 1e12,
        ceiling_share(t, f).map_or(String::new(), share)
    )
}

/// Every result as a row.
pub(super) fn write_csv(path: &Path, f: &Findings) -> Result<()> {
    let mut out = csv::Writer::from_path(path)?;
    out.write_record([
        "kind",
        "kernel",
        "shape",
        "outputs",
        "passed",
        "of_rule",
        "of_bound",
        "median_ns",
        "min_ns",
        "max_ns",
        "bytes",
        "flops",
        "of_ceiling",
        "detail",
    ])?;
    let none = String::new;
    for j in &f.judged {
        let share = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
        let verdict = j.outcome.as_ref().ok();
        out.write_record([
            "validation".to_owned(),
            j.kernel.clone(),
            j.shape.clone(),
            j.outputs.to_string(),
            j.passes().to_string(),
            share(verdict.map(|v| v.of_rule)),
            share(verdict.map(|v| v.of_bound)),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            j.outcome.as_ref().err().cloned().unwrap_or_default(),
        ])?;
    }
    for t in &f.timed {
        out.write_record([
            "timing".to_owned(),
            t.kernel.to_owned(),
            t.shape.clone(),
            none(),
            none(),
            none(),
            none(),
            t.median_ns.to_string(),
            t.range_ns[0].to_string(),
            t.range_ns[1].to_string(),
            t.bytes.to_string(),
            t.flops.to_string(),
            ceiling_share(t, f).map_or_else(none, |x| x.to_string()),
            none(),
        ])?;
    }
    for c in &f.forward {
        let mut row = vec![String::new(); 14];
        row[0] = "forward".to_owned();
        row[2] = c.name.clone();
        row[4] = c.passed.to_string();
        row[13] = c.detail.clone();
        out.write_record(row)?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use pb_kernels_cuda::check::{Ceilings, Verdict};

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
                bytes: 1_000_000,
                flops: 10,
            }],
            ceilings: Some(Ceilings {
                copy_bytes_per_s: 1e12,
                gemm_flops_per_s: None,
            }),
            untimed: None,
            forward: Vec::new(),
        }
    }

    #[test]
    fn the_table_says_how_right_and_how_fast() {
        let text = text(&findings(0.46));
        assert!(text.contains("1 of 1     46 %      50 %"), "{text}");
        // 1 MB in 2 us is 500 GB/s, half of the copy's.
        assert!(text.contains("2.0    500.0     0.00      50 %"), "{text}");
        assert!(text.ends_with("\npass"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
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
