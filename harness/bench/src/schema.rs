//! The committed schema and the document say the same: every key of one is in the other, and
//! values have the types that it names. The validator stands in `schema/check.rs`; where Python has
//! `jsonschema`, that one must agree.

pub(crate) mod check;

use pb_contract::Nanos;
use serde_json::{Value, json};

use crate::conditions::{Conditions, Connections, Shard, ShardNote};
use crate::server::{Gauge, Gauges, Server, WindowCounters};
use crate::tests::{MS, failed, frame, request, under, worked};
use crate::{Calibration, Document, LoadFacts, Spread, WorkloadFacts};

const SCHEMA: &str = include_str!("../../../docs/schema/bench-1.schema.json");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn checked(document: &Value) -> Vec<String> {
    check::check(&schema(), document)
}

/// A server's view in which every part is there.
fn server() -> Server {
    let histogram = |cumulative: Vec<u64>| pb_target::Histogram {
        bounds_s: vec![0.1, 0.25],
        cumulative,
        count: 100,
        sum_s: 19.0,
    };
    let gauge = Gauge::of([Some(1.0), Some(0.5)]);
    Server {
        metrics_url: "http://h/metrics".into(),
        interval_ms: Some(100.0),
        counters: WindowCounters {
            hit_tokens: Some(1),
            preemptions: Some(2),
            ..WindowCounters::default()
        },
        gauges: Gauges {
            running: gauge,
            waiting: gauge,
            kv_usage: gauge,
        },
        ttft: Some((&histogram(vec![10, 100])).into()),
        itl: Some((&histogram(vec![100, 100])).into()),
        client_minus_server_ttft: Some(pb_target::TtftGap::new(
            &vec![Nanos(199 * MS); 100],
            &histogram(vec![10, 100]),
        )),
        notes: vec!["n".into()],
        ..Server::default()
    }
}

/// A document in which every part is there.
fn full() -> Document {
    let server = server();
    let calibration = Calibration {
        ttft_error_ms: Spread::of(vec![1, 2]),
        cpu_share: Some(0.1),
        problem: Some("p".into()),
        ..Calibration::default()
    };
    let conditions = Conditions {
        objectives: vec!["ttft:250".parse().unwrap()],
        slos: vec!["success:0.9".parse().unwrap(), "e2el:500".parse().unwrap()],
        load: LoadFacts {
            arrival: "poisson".into(),
            rate_rps: Some(4.0),
            max_concurrency: Some(1),
            connections: Some(Connections::default()),
            ..LoadFacts::default()
        },
        workload: WorkloadFacts {
            dropped: [("too long".to_owned(), 3)].into(),
            detail: json!({"anything": [1, null]}),
            ..WorkloadFacts::default()
        },
        shards: vec![ShardNote {
            shard: Shard { index: 0, of: 1 },
            state: "complete".into(),
            rows: 3,
            clock_offset_ns: -5,
            created: String::new(),
            calibration: Some(calibration.clone()),
            server: Some(server.clone()),
        }],
        shard: Some(Shard { index: 0, of: 1 }),
        calibration: Some(calibration),
        server: Some(server),
        warnings: vec!["w".into()],
        ..Conditions::new(frame())
    };
    let one = request(3, 1300, &[(100, 1), (300, 2)]);
    under(
        &conditions,
        [worked(0, 1000), worked(1, 1000), failed(2, 1200), one],
    )
}

fn documents() -> Vec<Value> {
    let empty = under(&Conditions::default(), []);
    let all_failed = under(&Conditions::new(frame()), [failed(0, 1000)]);
    [full(), empty, all_failed]
        .map(|d| serde_json::to_value(d).unwrap())
        .to_vec()
}

#[test]
fn documents_fit_the_schema_and_read_back() {
    for document in documents() {
        assert_eq!(checked(&document), Vec::<String>::new());
        let back: Document = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(serde_json::to_value(back).unwrap(), document);
    }
}

/// Each change must be noticed, or the check proves nothing.
#[test]
fn the_check_notices_what_does_not_fit() {
    let changes: [(&str, Value); 9] = [
        ("/ttft_ms/p99", json!("fast")),
        ("/ttft_ms/n", json!(0)),
        ("/counts/ok", json!(-1)),
        ("/state", json!("done")),
        ("/schema_version", json!(2)),
        ("/cache", json!({})),
        ("/rates/goodput_share", json!(1.5)),
        ("/offered/ttft_ms/p99", json!("never")),
        ("/failures", json!({"bad_luck": 1})),
    ];
    for (place, value) in changes {
        let mut document = documents().remove(0);
        *document.pointer_mut(place).expect(place) = value;
        assert!(!checked(&document).is_empty(), "{place}");
    }
    let mut document = documents().remove(0);
    document["speed"] = json!(1);
    assert_eq!(checked(&document), ["/speed: not in the schema"]);
}

/// An independent validator says the same, of good documents and of broken ones.
#[test]
fn another_validator_agrees_where_there_is_one() {
    let mut all = documents();
    let mut broken = all[0].clone();
    broken["ttft_ms"]["p99"] = json!("fast");
    all.push(broken);
    let Some(found) = check::jsonschema(&schema(), &all) else {
        return;
    };
    assert_eq!(found.len(), 4);
    assert!(found[..3].iter().all(Vec::is_empty), "{found:?}");
    assert!(!found[3].is_empty());
}
