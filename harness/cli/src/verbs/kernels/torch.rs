//! Attention of PyTorch beside ours: the same problem, in the same run, in turns.
//!
//! A Python that the user names runs `sdpa.py` as a child. Both sides get the same keys, values
//! and queries; what PyTorch gives is compared with f64 before its times count. Pairs of runs, the
//! order within a pair changing, give ratios; their median (Hodges-Lehmann) has a signed-rank
//! interval.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use pb_kernels_cuda::check::Expected;
use pb_stats::{hodges_lehmann, linear};
use serde::Serialize;
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("sdpa.py");

/// Pairs of runs of one problem.
const PAIRS: usize = 25;

/// For one answer; importing PyTorch takes tens of seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One problem, as `sdpa.py` wants it.
#[derive(Serialize)]
pub(super) struct Problem<'a> {
    /// The type of PyTorch's tensors, by its name there; the values here fit it.
    pub(super) dtype: &'static str,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) d: usize,
    /// Tokens of the chunk.
    pub(super) len: usize,
    /// Tokens before it.
    pub(super) prefix: usize,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    #[serde(skip)]
    /// What must come out, with the bounds of a type as low as PyTorch's.
    pub(super) expected: &'a [Expected],
}

/// How the two compare on one problem.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    pub(super) kernel: &'static str,
    pub(super) shape: String,
    /// Medians in nanoseconds: ours and PyTorch's.
    pub(super) median_ns: [u64; 2],
    /// PyTorch's time over ours, with the ends of its 95 % interval.
    pub(super) ratio: [f64; 3],
    pub(super) pairs: usize,
    /// How PyTorch was called: with grouped or with expanded heads, whichever was faster.
    pub(super) way: String,
}

/// What came of the comparison.
#[derive(Default)]
pub(super) struct Comparison {
    /// Version, or why there is nothing.
    pub(super) torch: String,
    pub(super) rows: Vec<Beside>,
    /// Problems whose output was not what it must be: their times do not count.
    pub(super) void: Vec<String>,
}

/// The child.
pub(super) struct Torch {
    child: Child,
    to: ChildStdin,
    from: Receiver<std::io::Result<String>>,
    pub(super) version: String,
}

impl Drop for Torch {
    fn drop(&mut self) {
        // Nothing is lost with it, and it may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Torch {
    /// Starts the script under `python` and asks for PyTorch on `device` with `threads` threads.
    pub(super) fn start(python: &Path, device: &str, threads: usize) -> Result<Self> {
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", python.display()))?;
        // OK because all three were just asked for.
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let errors = child.stderr.take().unwrap();
        let last_words = std::thread::spawn(move || {
            let lines = BufReader::new(errors).lines().map_while(Result::ok);
            lines.filter(|l| !l.trim().is_empty()).last()
        });
        let (send, from) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut torch = Torch {
            child,
            to,
            from,
            version: String::new(),
        };
        match torch.ask(&json!({ "device": device, "threads": threads })) {
            Ok(answer) => torch.version = answer["torch"].as_str().unwrap_or("?").to_owned(),
            Err(e) => {
                drop(torch);
                let said = last_words.join().ok().flatten();
                bail!("{}", said.unwrap_or_else(|| format!("{e:#}")));
            }
        }
        Ok(torch)
    }

    fn ask(&mut self, question: &impl Serialize) -> Result<Value> {
        let mut to = BufWriter::new(&mut self.to);
        serde_json::to_writer(&mut to, question).context("the script is gone")?;
        to.write_all(b"\n").and_then(|()| to.flush())?;
        drop(to);
        let line = match self.from.recv_timeout(PATIENCE) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => bail!("the script ended without an answer"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the script gave no answer within {} s", PATIENCE.as_secs())
            }
        };
        serde_json::from_str(&line).with_context(|| format!("the script answered {line:.80}"))
    }

    fn run_ns(&mut self) -> Result<u64> {
        let answer = self.ask(&json!({ "run": true }))?;
        answer["ns"]
            .as_u64()
            .ok_or_else(|| anyhow!("no time in {answer}"))
    }

    /// Hands over a problem; the way it is called, and the largest share of its bound that an
    /// output is off by.
    fn place(&mut self, p: &Problem<'_>) -> Result<(String, f64)> {
        let answer = self.ask(p)?;
        let out = answer["out"].as_array().context("no output")?;
        ensure!(out.len() == p.expected.len(), "{} outputs", out.len());
        let shares = out.iter().zip(p.expected).map(|(got, e)| {
            let error = (got.as_f64().unwrap_or(f64::NAN) - e.exact).abs();
            if error.is_finite() {
                error / e.bound
            } else {
                f64::INFINITY
            }
        });
        let way = answer["way"].as_str().unwrap_or("?").to_owned();
        Ok((way, shares.fold(0.0, f64::max)))
    }
}

impl Comparison {
    /// Starts PyTorch and lets `each` compare; where it cannot be had, says why instead.
    ///
    /// # Errors
    /// When it fails later, or our side does.
    pub(super) fn of(
        python: &Path,
        device: &str,
        threads: usize,
        each: &mut dyn FnMut(&mut Torch, &mut Comparison) -> Result<()>,
    ) -> Result<Self> {
        let mut comparison = Comparison::default();
        match Torch::start(python, device, threads) {
            Ok(mut torch) => {
                comparison.torch = format!("PyTorch {}", torch.version);
                each(&mut torch, &mut comparison)
                    .with_context(|| format!("--torch {}", python.display()))?;
            }
            Err(e) => comparison.torch = format!("not compared with PyTorch: {e:#}"),
        }
        Ok(comparison)
    }

    /// Compares `ours`, which runs once with cold caches and gives its time in nanoseconds.
    pub(super) fn add(
        &mut self,
        torch: &mut Torch,
        (kernel, shape): (&'static str, String),
        problem: &Problem<'_>,
        ours: &mut dyn FnMut() -> Result<u64>,
    ) -> Result<()> {
        let (way, off) = torch.place(problem)?;
        if off > 1.0 {
            let what = format!("{kernel} {shape}: PyTorch's output is off by {off:.1} bounds");
            self.void.push(what);
            return Ok(());
        }
        ours()?;
        let mut times = Vec::new();
        for pair in 0..PAIRS {
            times.push(if pair % 2 == 0 {
                let first = ours()?;
                [first, torch.run_ns()?]
            } else {
                let first = torch.run_ns()?;
                [ours()?, first]
            });
        }
        self.rows.push(beside(kernel, shape, way, &times)?);
        Ok(())
    }
}

/// Medians of each side, and of the ratios within pairs.
fn beside(kernel: &'static str, shape: String, way: String, times: &[[u64; 2]]) -> Result<Beside> {
    let logs = times
        .iter()
        .map(|[a, b]| (*b as f64 / (*a).max(1) as f64).ln());
    let of = hodges_lehmann(&logs.collect::<Vec<_>>(), 0.95)?;
    let median = |side: usize| {
        let mut all: Vec<f64> = times.iter().map(|t| t[side] as f64).collect();
        all.sort_unstable_by(f64::total_cmp);
        linear(&all, 0.5).unwrap_or_default() as u64
    };
    Ok(Beside {
        kernel,
        shape,
        median_ns: [median(0), median(1)],
        ratio: [of.point, of.low, of.high].map(f64::exp),
        pairs: times.len(),
        way,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that answers from a script of its own, in place of PyTorch.
    fn stand_in(out: &str) -> Option<Torch> {
        let script = format!(
            "import sys, json\nfor line in sys.stdin:\n q = json.loads(line)\n \
             print('{{\"torch\": \"0\"}}' if 'threads' in q else '{{\"ns\": 3000}}' if 'run' in q \
             else '{{\"way\": \"grouped\", \"out\": {out}}}', flush=True)"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (to, out) = (child.stdin.take()?, child.stdout.take()?);
        let (send, from) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().for_each(|l| drop(send.send(l)));
        });
        Some(Torch {
            child,
            to,
            from,
            version: "0".to_owned(),
        })
    }

    fn compare(out: &str) -> Option<Comparison> {
        let Some(mut torch) = stand_in(out) else {
            crate::console::say("skipped: no python3");
            return None;
        };
        let expected = [Expected {
            exact: 1.0,
            naive: 1.0,
            f32_bound: 0.01,
            bound: 0.01,
        }];
        let problem = Problem {
            dtype: "float32",
            q_heads: 1,
            kv_heads: 1,
            d: 1,
            len: 1,
            prefix: 0,
            q: &[1.0],
            k: &[1.0],
            v: &[1.0],
            expected: &expected,
        };
        let mut comparison = Comparison::default();
        let named = ("attention fast", "f32 1@0".to_owned());
        let added = comparison.add(&mut torch, named, &problem, &mut || Ok(1_500));
        added.unwrap();
        Some(comparison)
    }

    #[test]
    fn times_count_when_the_output_is_right_and_only_then() {
        let Some(right) = compare("[1.005]") else {
            return;
        };
        let row = &right.rows[0];
        assert_eq!((row.median_ns, row.pairs), ([1_500, 3_000], PAIRS));
        assert!(row.ratio.iter().all(|r| (r - 2.0).abs() < 1e-12), "{row:?}");
        for wrong in ["[1.02]", "[null]"] {
            let Some(c) = compare(wrong) else { return };
            assert!(c.rows.is_empty() && c.void.len() == 1, "{wrong}");
        }
    }

    #[test]
    fn the_ratio_is_that_of_pairs_not_of_medians() {
        // The machine slows down on the way; within a pair PyTorch takes half as long again.
        let times: Vec<[u64; 2]> = (1..=11).map(|i| [i * 1_000, i * 1_500]).collect();
        let row = beside("decode", String::new(), String::new(), &times).unwrap();
        assert!(row.ratio.iter().all(|r| (r - 1.5).abs() < 1e-12), "{row:?}");
        assert_eq!(row.median_ns, [6_000, 9_000]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let gone = Torch::start(Path::new("/no/such/python"), "cpu", 1);
        let problem = format!("{:#}", gone.err().unwrap());
        assert!(problem.contains("/no/such/python"), "{problem}");
        // A program that is there and is no Python with PyTorch.
        let other = Torch::start(Path::new("true"), "cpu", 1);
        assert!(other.is_err());
    }
}
