//! The matrix as a document.

use std::fmt::Write as _;

use pb_contract::{Fault, FaultClass};

use super::expected::{accepted_by, expected};
use super::{Check, Matrix, loads};
use crate::numeric_faults::FAULTS;

const HEAD: &str = "\
# Planted faults and the checks that notice them

A check that has never failed proves nothing. So each fault below is planted in the engine, one at a
time, and every check is run that could see it. The clean engine passes them all.

This page is written by the test that makes the run (`tests/tests/mutations.rs`), and the test fails
when the two differ. After a change that is meant:

```sh
PREFILLBENCH_BLESS=1 cargo test --release -p pb-tests --test mutations
```

\"Must catch\" is demanded by the test; \"also\" is what else happened to notice. A fault is planted
by `fault` in an engine's configuration, which only an engine under test accepts
(`harness/contract/src/config/fault.rs`). Small configurations are used: a generated model of 4
layers and 6 prompts of 200 tokens for the forward pass, and a toy model for the rest, whose tokens
depend on every slot of the context, so that a wrong block gives other tokens.
";

const UNLISTED: &str = "
Two statistics of T1 catch nothing here and have no row: that logits are finite, and the change of
the prompts' likelihood, which is the same before and after a fault when the prompts are random
tokens.
";

const NUMERICS: &str = "
## Faults of the forward pass

Ratio: error of the chunked pass over that of one pass, both against a float64 reference, order of
magnitude, for chunks of 64 and of 50 tokens in blocks of 16. Published: the same ratio in an
experiment with a small trained f32 model, in chunks of 64 (for the missing partial block of 50).
";

const BENIGN: &str = "
## Not defects

- `k-and-v-blocks-swapped`: a key carries its position, so two past blocks that change places whole
  are the same sum in another order. T1 must accept it, and does; T0 sees the order of the sum in
  the last bits.
- `kv-mantissa-cut`: a coarser cache is an approximation that is as large as a defect, so the limits
  of f32 must reject it. It is judged against one pass that stores the same coarse values, and there
  it must have equal bits.
";

/// A fault's name in configurations.
pub fn name(fault: Fault) -> String {
    let name = serde_json::to_value(fault).unwrap_or_default();
    name.as_str().unwrap_or("unknown").to_owned()
}

/// The document of a matrix.
pub fn render(matrix: &Matrix) -> String {
    let mut out = HEAD.to_owned();
    checks(matrix, &mut out);
    numerics(matrix, &mut out);
    out.push_str(BENIGN);
    let cache = "Faults of block pool, prefix cache, swap and tiers";
    others(matrix, FaultClass::Cache, cache, &mut out);
    let scheduler = "Faults of policy, queues and counters";
    others(matrix, FaultClass::Scheduler, scheduler, &mut out);
    single(matrix, &mut out);
    out
}

/// One line of a table. Writing to a string does not fail.
fn line(out: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn faults(class: FaultClass) -> impl Iterator<Item = Fault> {
    let all = Fault::ALL.iter().copied();
    all.filter(move |fault| fault.class() == Some(class))
}

fn names(checks: &[Check]) -> String {
    let names: Vec<&str> = checks.iter().map(|check| check.name()).collect();
    match names[..] {
        [] => "-".to_owned(),
        _ => names.join(", "),
    }
}

/// What caught a fault beyond what must.
fn also(matrix: &Matrix, fault: Fault) -> String {
    let mut caught = matrix.caught_by(fault);
    caught.retain(|check| !expected(fault).contains(check));
    names(&caught)
}

fn checks(matrix: &Matrix, out: &mut String) {
    out.push_str("\n## Checks\n\n");
    line(out, &["check", "what it compares", "catches", "of"]);
    line(out, &["---", "---", "---:", "---:"]);
    for check in Check::ALL {
        let catches = matrix.catches(check).len();
        let rows = matrix.rows.iter();
        let rows = rows.filter(|(fault, row)| **fault != Fault::None && row.contains_key(&check));
        let (catches, of) = (catches.to_string(), rows.count().to_string());
        line(out, &[check.name(), check.what(), &catches, &of]);
    }
    let loads = loads::all(Fault::None).len();
    let _ = writeln!(
        out,
        "\nFrom conservation laws to own assertions, {loads} loads are watched at once, half of \
         them over a hash\nchain and half over a radix tree. \"Of\" counts the faults that a check \
         was run on: the forward pass\nalone has no cache and no scheduler, the toy no attention."
    );
    out.push_str(UNLISTED);
}

/// A ratio's order of magnitude.
fn magnitude(ratio: f64) -> String {
    if (0.5..2.0).contains(&ratio) {
        return "1".to_owned();
    }
    format!("10^{:.0}", libm::log10(ratio).floor())
}

fn numerics(matrix: &Matrix, out: &mut String) {
    out.push_str(NUMERICS);
    out.push('\n');
    line(
        out,
        &[
            "fault",
            "what it does",
            "must catch",
            "also",
            "ratio 64",
            "ratio 50",
            "published",
        ],
    );
    line(out, &["---", "---", "---", "---", "---:", "---:", "---:"]);
    for fault in faults(FaultClass::Numerics) {
        let ratios = matrix.ratios.get(&fault).copied().unwrap_or([f64::NAN; 2]);
        let published = FAULTS.iter().find(|(listed, _)| *listed == fault);
        let published = published.map_or(String::new(), |(_, ratio)| match ratio {
            r if *r < 2.0 => format!("{r:.2}"),
            r => format!("{r:.1e}"),
        });
        let fields = [
            format!("`{}`", name(fault)),
            fault.description().to_owned(),
            names(expected(fault)),
            also(matrix, fault),
            magnitude(ratios[0]),
            magnitude(ratios[1]),
            published,
        ];
        line(out, &fields.each_ref().map(String::as_str));
    }
}

fn others(matrix: &Matrix, class: FaultClass, title: &str, out: &mut String) {
    let _ = writeln!(out, "\n## {title}\n");
    let head = ["fault", "what it does", "must catch", "also", "first seen"];
    line(out, &head);
    line(out, &["---"; 5]);
    for fault in faults(class) {
        let row = matrix.rows.get(&fault);
        let cell = |check| row.and_then(|row| row.get(check));
        let evidence = expected(fault).first().and_then(cell);
        let fields = [
            format!("`{}`", name(fault)),
            fault.description().to_owned(),
            names(expected(fault)),
            also(matrix, fault),
            evidence.map_or(String::new(), |cell| cell.evidence.clone()),
        ];
        line(out, &fields.each_ref().map(String::as_str));
    }
}

/// What would go unnoticed without one check, and what a check has to accept.
fn single(matrix: &Matrix, out: &mut String) {
    out.push_str("\n## Faults that one check alone notices\n\n");
    for &fault in Fault::ALL {
        if let [only] = matrix.caught_by(fault)[..] {
            let _ = writeln!(out, "- `{}`: {}", name(fault), only.name());
        }
    }
    out.push_str("\n## Faults that a check must accept\n\n");
    for &fault in Fault::ALL {
        let accepting = accepted_by(fault);
        if !accepting.is_empty() {
            let _ = writeln!(out, "- `{}`: {}", name(fault), names(&accepting));
        }
    }
}
