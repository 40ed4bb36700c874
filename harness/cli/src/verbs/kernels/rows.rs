//! What programs read of it: every result as a row of one file.

use std::path::Path;

use anyhow::Result;
use pb_kernels_cuda::check::{Judged, Timed};
use serde::Serialize;

use super::Findings;

/// A row; what a kind of row does not have stays empty.
#[derive(Clone, Debug, Default, Serialize)]
struct Row<'a> {
    /// `validation`, `ceiling`, `timing`, `not available`, `torch` or `forward`.
    kind: &'static str,
    kernel: &'a str,
    shape: &'a str,
    outputs: Option<usize>,
    passed: Option<bool>,
    of_rule: Option<f64>,
    of_bound: Option<f64>,
    median_ns: Option<u64>,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    flops: Option<u64>,
    /// Of a ceiling: bytes or operations a second.
    per_s: Option<f64>,
    of_read: Option<f64>,
    of_copy: Option<f64>,
    of_memory: Option<f64>,
    of_product: Option<f64>,
    torch_median_ns: Option<u64>,
    /// PyTorch's time over ours, and its 95 % interval.
    torch_ratio: Option<f64>,
    torch_ratio_low: Option<f64>,
    torch_ratio_high: Option<f64>,
    detail: &'a str,
}

fn validation(j: &Judged) -> Row<'_> {
    let verdict = j.outcome.as_ref().ok();
    Row {
        kind: "validation",
        kernel: &j.kernel,
        shape: &j.shape,
        outputs: Some(j.outputs),
        passed: Some(j.passes()),
        of_rule: verdict.map(|v| v.of_rule),
        of_bound: verdict.map(|v| v.of_bound),
        detail: j.outcome.as_ref().err().map_or("", String::as_str),
        ..Row::default()
    }
}

fn timing<'a>(t: &'a Timed, f: &Findings) -> Row<'a> {
    let shares = f.ceilings.map(|c| t.shares(&c));
    Row {
        kind: "timing",
        kernel: t.kernel,
        shape: &t.shape,
        median_ns: Some(t.median_ns),
        min_ns: Some(t.range_ns[0]),
        max_ns: Some(t.range_ns[1]),
        read_bytes: Some(t.traffic[0]),
        written_bytes: Some(t.traffic[1]),
        flops: Some(t.flops),
        of_read: shares.map(|s| s.of_read),
        of_copy: shares.map(|s| s.of_copy),
        of_memory: shares.map(|s| s.of_memory),
        of_product: shares.and_then(|s| s.of_product),
        ..Row::default()
    }
}

/// Writes the file.
pub(super) fn write(path: &Path, f: &Findings) -> Result<()> {
    let mut out = csv::Writer::from_path(path)?;
    for j in &f.judged {
        out.serialize(validation(j))?;
    }
    let ceilings = f.ceilings.map(|c| {
        [
            ("read", Some(c.read_bytes_per_s)),
            ("copy", Some(c.copy_bytes_per_s)),
            ("product", c.gemm_flops_per_s),
        ]
    });
    for (kernel, per_s) in ceilings.into_iter().flatten() {
        out.serialize(Row {
            kind: "ceiling",
            kernel,
            per_s,
            ..Row::default()
        })?;
    }
    for t in &f.timed {
        out.serialize(timing(t, f))?;
    }
    for n in &f.not_available {
        out.serialize(Row {
            kind: "not available",
            kernel: n.kernel,
            shape: &n.shape,
            detail: n.why,
            ..Row::default()
        })?;
    }
    for b in f.torch.iter().flat_map(|c| &c.rows) {
        out.serialize(Row {
            kind: "torch",
            kernel: b.kernel,
            shape: &b.shape,
            median_ns: Some(b.median_ns[0]),
            torch_median_ns: Some(b.median_ns[1]),
            torch_ratio: Some(b.ratio[0]),
            torch_ratio_low: Some(b.ratio[1]),
            torch_ratio_high: Some(b.ratio[2]),
            detail: &b.way,
            ..Row::default()
        })?;
    }
    for c in &f.forward {
        out.serialize(Row {
            kind: "forward",
            shape: &c.name,
            passed: Some(c.passed),
            detail: &c.detail,
            ..Row::default()
        })?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use pb_kernels_cuda::check::{Ceilings, Judged, NotAvailable, Timed};

    use super::write;
    use crate::verbs::kernels::Findings;

    #[test]
    fn the_file_has_both_shares_of_a_kernel_and_both_ceilings() {
        let path = std::env::temp_dir().join(format!("pb-rows-{}.csv", std::process::id()));
        let findings = Findings {
            judged: vec![Judged {
                kernel: "prefill".to_owned(),
                shape: "bf16 d64".to_owned(),
                outputs: 0,
                outcome: Err("Race: here, there".to_owned()),
            }],
            timed: vec![Timed {
                kernel: "decode",
                shape: "1x1@9".to_owned(),
                median_ns: 1_000,
                range_ns: [900, 1_100],
                traffic: [1_000, 0],
                flops: 10,
            }],
            not_available: vec![NotAvailable {
                kernel: "gemm_e4m3 vendor",
                shape: "1x64x64 to f16".to_owned(),
                why: "too old",
            }],
            ceilings: Some(Ceilings {
                read_bytes_per_s: 4e9,
                copy_bytes_per_s: 2e9,
                gemm_flops_per_s: None,
            }),
            ..Findings::default()
        };
        write(&path, &findings).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rows: Vec<&str> = text.lines().skip(1).collect();
        let want = [
            "validation,prefill,bf16 d64,0,false,,,,,,,,,,,,,,,,,,\"Race: here, there\"",
            "ceiling,read,,,,,,,,,,,,4000000000.0,,,,,,,,,",
            "ceiling,copy,,,,,,,,,,,,2000000000.0,,,,,,,,,",
            "ceiling,product,,,,,,,,,,,,,,,,,,,,,",
            "timing,decode,1x1@9,,,,,1000,900,1100,1000,0,10,,0.25,0.5,0.25,,,,,,",
            "not available,gemm_e4m3 vendor,1x64x64 to f16,,,,,,,,,,,,,,,,,,,,too old",
        ];
        assert_eq!(rows, want);
    }
}
