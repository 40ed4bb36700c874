//! Schedules against those of an independent script, `golden/make_golden.py`.

use pb_workloads::{Dataset, HitKnowledge, LoadShape, PlanOptions, Source, plan};
use serde_json::{Value, json};

fn golden(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn options(seed: &Value) -> PlanOptions {
    PlanOptions {
        seed: seed.as_u64().unwrap(),
        ..PlanOptions::default()
    }
}

#[test]
fn row_45_a_poisson_ramp_is_that_of_the_script() {
    let golden = golden(include_str!("golden/ramp.json"));
    let leg = |leg: &Value| format!("{}..{}:{}", leg[0], leg[1], leg[2]);
    let legs: Vec<String> = golden["legs"].as_array().unwrap().iter().map(leg).collect();
    let shape = LoadShape {
        ramp: Some(legs.join(",").parse().unwrap()),
        ..LoadShape::default()
    };
    let dataset = json!({"dataset_name": "random", "input_len": 20});
    let dataset: Dataset = serde_json::from_value(dataset).unwrap();
    let source = Source::ids(100..30_000);
    let planned = plan(&dataset, &shape, &source, &options(&golden["seed"])).unwrap();
    let expected: Vec<u64> = serde_json::from_value(golden["offsets_ns"].clone()).unwrap();
    let found: Vec<u64> = planned.plan.open.iter().map(|r| r.offset_ns.0).collect();
    assert!(expected.len() > 100);
    assert_eq!(found.len(), expected.len());
    // Logarithms of two libraries may differ in their last bit, and so round to neighbours.
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.abs_diff(*expected) <= 1, "{found} for {expected}");
    }
    let stages = &planned.facts.stages;
    assert_eq!(stages.len(), 4);
    let in_stages: u64 = stages.iter().map(|stage| stage.requests).sum();
    assert_eq!(in_stages, found.len() as u64);
    assert_eq!(planned.plan.horizon_ns.0, 17_000_000_000);
}

#[test]
fn row_45_shared_prefixes_and_their_hits_are_those_of_the_script() {
    let golden = golden(include_str!("golden/shared_prefix.json"));
    let dataset = json!({
        "dataset_name": "shared-prefix",
        "num_groups": golden["groups"],
        "prompts_per_group": golden["per_group"],
        "system_prompt_len": golden["system"],
        "question_len": golden["question"],
        "output_len": golden["output"],
        "range_ratio": golden["ratio"],
    });
    let dataset: Dataset = serde_json::from_value(dataset).unwrap();
    let source = Source::ids(100..30_000);
    let shape = LoadShape::default();
    let planned = plan(&dataset, &shape, &source, &options(&golden["seed"])).unwrap();
    let rows: Vec<[u32; 4]> = serde_json::from_value(golden["rows"].clone()).unwrap();
    assert_eq!(planned.plan.open.len(), rows.len());
    let mut starts = std::collections::BTreeMap::new();
    for (request, [group, tokens, output, found]) in planned.plan.open.iter().zip(&rows) {
        let body = &request.body;
        assert_eq!((body.planned_tokens, body.max_tokens), (*tokens, *output));
        assert_eq!(
            body.planned_hit_tokens,
            Some(*found),
            "request {}",
            request.id
        );
        let start = body.prompt.ids().unwrap()[..16].to_vec();
        assert_eq!(
            starts.entry(*group).or_insert_with(|| start.clone()),
            &start
        );
    }
    let hits: u32 = rows.iter().map(|row| row[3]).sum();
    assert!(hits > 1_000);
    assert_eq!(planned.facts.planned_hit_tokens, u64::from(hits));
    assert_eq!(planned.facts.hits, HitKnowledge::Ideal);
}
