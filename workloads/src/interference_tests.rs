//! Plans of the interference workload, and what its coverage says.

use super::*;
use crate::repeats::{all_bodies, first_blocks_unique};

fn text() -> TextSource {
    TextSource::new((0..9_000u32).map(|i| (i * 13 + i * i) % 977).collect(), 5).unwrap()
}

#[test]
fn the_plan_holds_what_was_asked_for() {
    let params = InterferenceParams::default();
    let plan = interference(&params, &mut text(), 7).unwrap();
    assert_eq!(plan.closed[0].bodies.len(), 64);
    assert!(plan.closed[0].bodies.iter().all(|b| b.planned_tokens == 32));
    assert!(plan.open.len() >= 2, "about 11 s at a mean gap of 2.5 s");
    for (index, request) in plan.open.iter().enumerate() {
        assert_eq!(request.id.0, 64 + index as u64);
        assert!((1_024..=1_920).contains(&request.body.planned_tokens));
        assert!(request.offset_ns >= params.warm_up_ns);
        assert!(request.offset_ns < params.horizon_ns);
    }
    assert!(plan.open.is_sorted_by_key(|r| (r.offset_ns, r.id)));
    first_blocks_unique(&all_bodies(&plan), 8).unwrap();
}

#[test]
fn the_first_long_prompt_can_come_with_the_end_of_the_warm_up() {
    let later = InterferenceParams::default();
    let at_once = InterferenceParams {
        first_at_warm_up: true,
        ..later.clone()
    };
    let offsets = |params: &InterferenceParams| -> Vec<u64> {
        let plan = interference(params, &mut text(), 7).unwrap();
        plan.open.iter().map(|r| r.offset_ns.0).collect()
    };
    let (later, at_once) = (offsets(&later), offsets(&at_once));
    assert_eq!(at_once[0], 1_000_000_000);
    let gaps = |offsets: &[u64]| -> Vec<u64> {
        offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
    };
    assert!(
        gaps(&at_once).starts_with(&gaps(&later)),
        "the gaps are the same"
    );
    let params = InterferenceParams::default();
    let (end, mean) = (params.horizon_ns.0, params.mean_gap_ns.0);
    let last = at_once[at_once.len() - 1];
    assert!(
        last < end && last > end - 2 * mean,
        "arrivals fill the window to its end"
    );
}

#[test]
fn the_seed_decides_and_nothing_else() {
    let params = InterferenceParams::default();
    let plan = |seed| interference(&params, &mut text(), seed).unwrap();
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7).open, plan(8).open);
}

#[test]
fn bad_parameters_are_named() {
    let with = |edit: fn(&mut InterferenceParams)| {
        let mut params = InterferenceParams::default();
        edit(&mut params);
        interference(&params, &mut text(), 1)
            .unwrap_err()
            .to_string()
    };
    assert!(with(|p| p.streams = 0).contains("streams"));
    assert!(with(|p| p.long_prompt_max = 3).contains("long_prompt_max = 3"));
    assert!(with(|p| p.warm_up_ns = p.horizon_ns).contains("warm_up_ns"));
    assert!(with(|p| p.background_prompt_len = 2).contains("prompt length = 2"));
    assert!(with(|p| p.gap_shape = f64::NAN).contains("shape"));
}

#[test]
fn numbers_that_no_plan_can_hold_are_refused_before_anything_is_made() {
    let usual = InterferenceParams::default;
    let huge = usize::MAX;
    for (key, params) in [
        (
            "streams",
            InterferenceParams {
                streams: huge,
                background_requests: huge,
                ..usual()
            },
        ),
        (
            "background_requests",
            InterferenceParams {
                background_requests: huge,
                ..usual()
            },
        ),
        (
            "long_requests_max",
            InterferenceParams {
                long_requests_max: huge,
                ..usual()
            },
        ),
        (
            "background_prompt_len",
            InterferenceParams {
                background_prompt_len: huge,
                ..usual()
            },
        ),
        (
            "long_prompt_max",
            InterferenceParams {
                long_prompt_max: huge,
                ..usual()
            },
        ),
        (
            "horizon_ns",
            InterferenceParams {
                horizon_ns: Nanos(u64::MAX),
                ..usual()
            },
        ),
    ] {
        let error = interference(&params, &mut text(), 7)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(key) && error.contains("at most"),
            "{key}: {error}"
        );
    }
}

#[test]
fn the_size_is_that_of_the_plan() {
    for first_at_warm_up in [false, true] {
        let params = InterferenceParams {
            first_at_warm_up,
            ..Default::default()
        };
        let plan = interference(&params, &mut text(), 7).unwrap();
        let bodies = all_bodies(&plan);
        let tokens = bodies
            .iter()
            .map(|body| u64::from(body.planned_tokens))
            .sum();
        assert_eq!(params.size(7).unwrap(), (bodies.len(), tokens));
    }
}
