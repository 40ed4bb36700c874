//! Row 87: a run in which prefill and decode never met must not pass for one that is immune.

mod support;

use pb_workloads::{Form, PlanOptions, Source, StepSample, decode_coverage, plan};
use support::*;

fn sample(decode: usize, prefill_tokens: u64) -> StepSample {
    StepSample {
        decode,
        prefill_tokens,
    }
}

#[test]
fn row_87_prefill_beside_a_full_decode_batch_is_valid() {
    let steps = [
        sample(4, 0),
        sample(4, 512),
        sample(4, 512),
        sample(3, 0),
        sample(5, 64),
    ];
    let coverage = decode_coverage(&steps, 4);
    assert_eq!((coverage.prefill_steps, coverage.covered_steps), (3, 3));
    assert!(coverage.valid);
}

#[test]
fn row_87_prefill_that_waited_for_a_slot_is_not() {
    let steps = [sample(4, 0), sample(3, 512), sample(4, 512)];
    let coverage = decode_coverage(&steps, 4);
    assert_eq!((coverage.prefill_steps, coverage.covered_steps), (2, 1));
    assert!(!coverage.valid);
}

#[test]
fn row_87_no_prefill_at_all_proves_nothing() {
    assert!(!decode_coverage(&[sample(4, 0); 9], 4).valid);
    assert!(!decode_coverage(&[], 4).valid);
}

/// A server of `slots` that computes 64 prompt tokens a step and one token of each decode, and
/// takes a request in when a slot is free: what a run of a plan looks like from its gauges.
fn served(plan: &pb_contract::plan::Plan, slots: usize) -> Vec<StepSample> {
    let part = &plan.closed[0];
    let mut background = part.bodies.iter();
    let mut free_streams = part.streams;
    let mut long: Vec<_> = plan.open.iter().collect();
    long.reverse();
    let mut waiting: Vec<(bool, u64, u32)> = Vec::new();
    // Background or not, prompt tokens left, output left.
    let mut running: Vec<(bool, u64, u32)> = Vec::new();
    let mut samples = Vec::new();
    for step in 0..4_000u64 {
        while let Some(request) = long.last().filter(|r| r.offset_ns.0 / 2_000_000 <= step) {
            let body = &request.body;
            waiting.push((false, u64::from(body.planned_tokens), body.max_tokens));
            long.pop();
        }
        while free_streams > 0 {
            let Some(body) = background.next() else {
                break;
            };
            free_streams -= 1;
            waiting.push((true, u64::from(body.planned_tokens), body.max_tokens));
        }
        while running.len() < slots && !waiting.is_empty() {
            running.push(waiting.remove(0));
        }
        let mut sample = StepSample::default();
        let mut budget = 64;
        for (background, prompt, output) in &mut running {
            if *prompt == 0 {
                sample.decode += usize::from(*background);
                *output -= 1;
            } else {
                let part = (*prompt).min(budget);
                budget -= part;
                *prompt -= part;
                if !*background {
                    sample.prefill_tokens += part;
                }
            }
        }
        free_streams += running
            .iter()
            .filter(|(b, _, output)| *b && *output == 0)
            .count();
        running.retain(|(_, _, output)| *output > 0);
        samples.push(sample);
    }
    samples
}

#[test]
fn row_87_the_starved_arm_is_called_invalid_and_the_real_one_is_mostly_covered() {
    let data = |control: &str| {
        format!(
            "dataset_name = \"interference\"\ncontrol = {control}\n[params]\nstreams = 4\n\
             background_requests = 400\nbackground_output_len = 200\n"
        )
    };
    let real = planned(&data("\"none\""), "", &seeded(2)).unwrap().plan;
    let starved = planned(&data("{ starved = { slots = 8 } }"), "", &seeded(2))
        .unwrap()
        .plan;
    assert_eq!((real.closed[0].streams, starved.closed[0].streams), (4, 8));
    assert_eq!(starved.closed[0].bodies.len(), 800);
    assert_eq!(real.open.len(), starved.open.len(), "the same long prompts");
    let free = decode_coverage(&served(&real, 8), 4);
    let full = decode_coverage(&served(&starved, 8), 8);
    assert!(free.prefill_steps > 20 && full.prefill_steps > 20);
    // A slot that a long prompt holds is one that a background stream does not.
    assert_eq!(full.covered_steps, 0);
    assert!(!full.valid);
    assert!(free.covered_steps * 10 > free.prefill_steps * 9, "{free:?}");
}

#[test]
fn an_arm_without_long_prompts_has_only_the_background() {
    let data = "dataset_name = \"interference\"\ncontrol = \"background-only\"";
    let planned = planned(data, "", &seeded(2)).unwrap();
    assert!(planned.plan.open.is_empty());
    assert_eq!(planned.facts.requests, 64);
}

#[test]
fn the_workload_has_arrivals_of_its_own_and_a_duration() {
    let data = "dataset_name = \"interference\"";
    let error = planned(data, "request_rate = 3", &seeded(2))
        .unwrap_err()
        .to_string();
    assert!(error.contains("arrivals of its own"), "{error}");
    let short = planned(data, "duration_s = 6", &seeded(2)).unwrap();
    assert_eq!(short.plan.horizon_ns.0, 6_000_000_000);
    let zero = "dataset_name = \"interference\"\ncontrol = { starved = { slots = 0 } }";
    assert!(planned(zero, "", &seeded(2)).is_err());
}

#[test]
fn words_make_the_same_workload() {
    let options = PlanOptions {
        form: Form::Chat,
        ..seeded(2)
    };
    let source = Source::words().with_tokenizer(&WORDS);
    let data = dataset("dataset_name = \"interference\"");
    let chat = plan(&data, &shape(""), &source, &options).unwrap();
    let ids = plan(&data, &shape(""), &ids(), &seeded(2)).unwrap();
    assert_eq!(chat.plan.open.len(), ids.plan.open.len());
    for (a, b) in chat.plan.open.iter().zip(&ids.plan.open) {
        assert_eq!(a.offset_ns, b.offset_ns);
        assert_eq!(a.body.planned_tokens, b.body.planned_tokens + 5);
        assert_eq!(a.body.class, "long_prompt");
    }
    assert_eq!(chat.facts.planned_hit_tokens, 0);
}
