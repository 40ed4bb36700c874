//! Times by kernel, of one step in so many.

use std::collections::BTreeMap;

use pb_contract::Nanos;
use pb_core::KernelTotal;
use pb_kernels_cuda::{KernelTime, Profile};
use pb_model::forward::ForwardTiming;

/// Which steps are timed, and what they took.
pub(crate) struct KernelTimes {
    every: u64,
    steps: u64,
    totals: BTreeMap<String, KernelTotal>,
}

/// The part of a step that a kernel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Gemm,
    Prefill,
    Decode,
    /// Of split keys, of prompts and of single tokens alike.
    Merge,
    Sampling,
    Other,
}

fn part(kernel: &str) -> Part {
    let starts = [
        ("gemm_", Part::Gemm),
        ("vendor_gemm", Part::Gemm),
        ("lora_", Part::Gemm),
        ("prefill_", Part::Prefill),
        ("decode_merge", Part::Merge),
        ("decode_", Part::Decode),
        ("sample_rows", Part::Sampling),
    ];
    let known = starts
        .into_iter()
        .find(|(start, _)| kernel.starts_with(start));
    known.map_or(Part::Other, |(_, part)| part)
}

impl KernelTimes {
    /// Times every `every`-th step, the first among them; none for 0.
    pub(crate) fn every(every: u64) -> Self {
        KernelTimes {
            every,
            steps: 0,
            totals: BTreeMap::new(),
        }
    }

    /// Counts a step; `true` when it is one to be timed.
    pub(crate) fn begin_step(&mut self) -> bool {
        let step = self.steps;
        self.steps += 1;
        self.every > 0 && step.is_multiple_of(self.every)
    }

    /// Adds a timed step, and fills in the parts of its time. Where single tokens of `exact` go
    /// through the kernel of prompts, its time is that of prompts if the step has any. Merges are
    /// single tokens' if the step splits any.
    pub(crate) fn note(
        &mut self,
        profile: &Profile,
        has_prefill: bool,
        timing: &mut ForwardTiming,
    ) {
        let splits = |k: &KernelTime| part(&k.kernel) == Part::Decode;
        let has_decode = profile.kernels.iter().any(splits);
        for k in &profile.kernels {
            let ns = Nanos(k.ns);
            let total = self
                .totals
                .entry(k.kernel.clone())
                .or_insert_with(|| KernelTotal {
                    kernel: k.kernel.clone(),
                    launches: 0,
                    time: Nanos::ZERO,
                    overhead: Nanos::ZERO,
                });
            total.launches += k.launches;
            total.time += ns;
            total.overhead += Nanos(k.launches * profile.floor_ns);
            match part(&k.kernel) {
                Part::Gemm => timing.gemm_ns += ns,
                Part::Prefill if has_prefill => timing.prefill_attention_ns += ns,
                Part::Merge if !has_decode && has_prefill => timing.prefill_attention_ns += ns,
                Part::Prefill | Part::Decode | Part::Merge => timing.decode_attention_ns += ns,
                Part::Sampling => timing.sink_ns += ns,
                Part::Other => {}
            }
        }
    }

    /// Sums over all timed steps, in the order of names.
    pub(crate) fn totals(&self) -> Vec<KernelTotal> {
        self.totals.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::Nanos;
    use pb_kernels_cuda::{KernelTime, Profile};
    use pb_model::forward::ForwardTiming;

    use super::KernelTimes;

    fn profile(kernels: &[(&str, u64)]) -> Profile {
        let time = |(kernel, ns): &(&str, u64)| KernelTime {
            kernel: (*kernel).to_owned(),
            launches: 2,
            ns: *ns,
        };
        Profile {
            kernels: kernels.iter().map(time).collect(),
            floor_ns: 3,
        }
    }

    #[test]
    fn one_step_in_so_many_is_timed_and_the_first_is() {
        let timed = |every| {
            let mut times = KernelTimes::every(every);
            [(); 7].map(|()| times.begin_step())
        };
        assert_eq!(timed(0), [false; 7]);
        assert_eq!(timed(1), [true; 7]);
        assert_eq!(timed(3), [true, false, false, true, false, false, true]);
    }

    #[test]
    fn kernels_belong_to_parts_and_sums_have_all() {
        let mut times = KernelTimes::every(1);
        let mut timing = ForwardTiming::default();
        let all = [
            ("add_rmsnorm_bf16", 1),
            ("decode_merge_bf16", 20),
            ("decode_split_bf16_d64", 10),
            ("gemm_bf16", 100),
            ("lora_expand_bf16", 200),
            ("prefill_bf16_d64", 1000),
            ("sample_rows", 5),
            ("vendor_gemm", 400),
        ];
        times.note(&profile(&all), true, &mut timing);
        let want = ForwardTiming {
            gemm_ns: Nanos(700),
            prefill_attention_ns: Nanos(1000),
            decode_attention_ns: Nanos(30),
            sink_ns: Nanos(5),
        };
        assert_eq!(timing, want);
        let mut timing = ForwardTiming::default();
        times.note(&profile(&[("prefill_bf16_d64", 7)]), false, &mut timing);
        assert_eq!(timing.decode_attention_ns, Nanos(7));
        let mut timing = ForwardTiming::default();
        let split = [("decode_merge_bf16", 20), ("prefill_split_bf16_d64", 300)];
        times.note(&profile(&split), true, &mut timing);
        let attention = (timing.prefill_attention_ns, timing.decode_attention_ns);
        assert_eq!(attention, (Nanos(320), Nanos::ZERO));
        let totals = times.totals();
        assert_eq!(totals.len(), all.len() + 1);
        let prefill = totals
            .iter()
            .find(|t| t.kernel == "prefill_bf16_d64")
            .unwrap();
        let found = (prefill.launches, prefill.time, prefill.overhead);
        assert_eq!(found, (4, Nanos(1007), Nanos(12)));
    }
}
