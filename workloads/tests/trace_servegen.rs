//! Traces generated from client models.

use std::path::PathBuf;

use pb_workloads::trace::{ServeGen, ServeGenParams};

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces/servegen")
}

#[test]
fn rates_gaps_and_lengths_are_those_of_the_models() {
    let models = ServeGen::open(&fixture()).unwrap();
    assert_eq!(models.clients(), (2, 1));
    assert_eq!(
        (models.rate(0), models.rate(700), models.rate(1_300)),
        (3.0, 1.0, 5.0)
    );
    let params = ServeGenParams {
        duration_s: 1_800,
        seed: 11,
        ..ServeGenParams::default()
    };
    let made = models.generate(&params).unwrap();
    assert_eq!(made, models.generate(&params).unwrap());
    let in_window = |from: u64, to: u64| {
        let inside = move |ns: u64| (from * 1_000_000_000..to * 1_000_000_000).contains(&ns);
        made.rows.iter().filter(move |row| inside(row.arrival_ns.0))
    };
    // 600 s at 2/s of Poisson: 1,200 with a standard deviation of 35.
    let first = in_window(0, 600).count();
    assert!(first.abs_diff(1_200) < 5 * 35, "{first}");
    assert_eq!(in_window(600, 1_200).count(), 0);
    // 600 s at 4/s, Weibull of shape 0.6: squared CV of the gaps 3.09, so that the count has a
    // standard deviation of sqrt(2400 * 3.09) = 86.
    let last = in_window(1_200, 1_800).count();
    assert!(last.abs_diff(2_400) < 5 * 86, "{last}");
    let times: Vec<f64> = in_window(1_200, 1_800)
        .map(|row| row.arrival_ns.0 as f64)
        .collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    let squared_cv = variance / (mean * mean);
    assert!((2.2..4.2).contains(&squared_cv), "{squared_cv}");
    let short = made
        .rows
        .iter()
        .filter(|row| row.input_tokens == 10)
        .count();
    let share = short as f64 / made.rows.len() as f64;
    assert!((share - 0.25).abs() < 0.04, "{share}");
    assert!(made.rows.iter().all(|row| row.output_tokens == 5));
    // The other client has no lengths: 1,200 requests at 1/s are counted.
    let dropped = made.dropped["client_without_lengths"];
    assert!(dropped.abs_diff(1_200) < 5 * 35, "{dropped}");
}

#[test]
fn bad_models_are_refused() {
    let models = ServeGen::open(&fixture()).unwrap();
    for (rate_scale, duration_s) in [(0.0, 600), (f64::NAN, 600), (1e9, 600)] {
        let params = ServeGenParams {
            rate_scale,
            duration_s,
            ..ServeGenParams::default()
        };
        assert!(models.generate(&params).is_err());
    }
    let cases = [
        (
            "0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n",
            "{}",
            "must start after",
        ),
        ("0,1,1,Pareto,1,1\n", "{}", "must be start, rate"),
        ("0,1,1,Gamma,0,1\n", "{}", "must be start, rate"),
        ("0,1,1,Gamma,1,1\n", "[]", "not a JSON object"),
        (
            "0,1,1,Gamma,1,1\n",
            r#"{"0": {"input_tokens": "{1: 0.5", "output_tokens": "{}"}}"#,
            "0.input_tokens = \"{1: 0.5\": must be a string",
        ),
    ];
    for (trace, dataset, message) in cases {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("chunk-0-trace.csv"), trace).unwrap();
        std::fs::write(directory.path().join("chunk-0-dataset.json"), dataset).unwrap();
        let error = ServeGen::open(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains(message) && error.contains("chunk-0-"),
            "{error}"
        );
    }
    let empty = tempfile::tempdir().unwrap();
    let error = ServeGen::open(empty.path()).unwrap_err().to_string();
    assert!(error.contains("without chunk-N-trace.csv"), "{error}");
}
