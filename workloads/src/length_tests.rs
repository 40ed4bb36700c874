//! Lengths against the textbook and against themselves read back.

use super::*;

const N: usize = 100_000;

fn draws(text: &str) -> Vec<f64> {
    let length: Length = serde_json::from_str(text).unwrap();
    length.validate("input").unwrap();
    let mut stream = Stream::new(3, "lengths");
    (0..N)
        .map(|_| f64::from(length.draw(&mut stream)))
        .collect()
}

fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len() as f64
}

fn quantile(xs: &[f64], q: f64) -> f64 {
    let mut sorted = xs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(q * xs.len() as f64) as usize]
}

#[test]
fn distributions_have_their_textbook_moments() {
    let lognormal = draws(r#"{"dist": "lognormal", "median": 2000, "sigma": 0.5}"#);
    // Mean of a lognormal: median * exp(sigma^2 / 2); 84.13 % lie below median * exp(sigma).
    assert!((mean(&lognormal) / (2000.0 * 0.125_f64.exp()) - 1.0).abs() < 0.01);
    assert!((quantile(&lognormal, 0.8413) / (2000.0 * 0.5_f64.exp()) - 1.0).abs() < 0.02);
    let gamma = draws(r#"{"dist": "gamma", "mean": 500, "shape": 2}"#);
    let m = mean(&gamma);
    let variance = gamma.iter().map(|x| (x - m).powi(2)).sum::<f64>() / N as f64;
    assert!((m - 500.0).abs() < 5.0 && (variance / 125_000.0 - 1.0).abs() < 0.05);
    // Pareto: mean alpha / (alpha - 1) * scale, median scale * 2^(1 / alpha).
    let pareto = draws(r#"{"dist": "pareto", "scale": 1000, "alpha": 3}"#);
    assert!((mean(&pareto) / 1500.0 - 1.0).abs() < 0.02);
    assert!((quantile(&pareto, 0.5) / (1000.0 * 2f64.powf(1.0 / 3.0)) - 1.0).abs() < 0.01);
    assert!(pareto.iter().all(|&x| x >= 1000.0));
}

#[test]
fn whole_uniform_values_include_both_ends() {
    let drawn = draws(r#"{"dist": "uniform", "min": 3, "max": 6}"#);
    for value in [3.0, 4.0, 5.0, 6.0] {
        let share = drawn.iter().filter(|&&x| x == value).count() as f64 / N as f64;
        assert!((share - 0.25).abs() < 0.01, "{value}: {share}");
    }
    assert!(drawn.iter().all(|x| (3.0..=6.0).contains(x)));
}

#[test]
fn histograms_and_mixtures_follow_their_weights() {
    let drawn = draws(r#"{"dist": "histogram", "values": [10, 20, 30], "weights": [1, 0, 3]}"#);
    let share = |x: f64| drawn.iter().filter(|&&y| x == y).count() as f64 / N as f64;
    assert!((share(10.0) - 0.25).abs() < 0.01 && share(20.0) == 0.0);
    let drawn = draws(
        r#"{"dist": "mixture", "parts": [{"weight": 9, "of": 100},
            {"weight": 1, "of": {"dist": "uniform", "min": 5000, "max": 6000}}]}"#,
    );
    let long = drawn.iter().filter(|&&x| x >= 5000.0).count() as f64 / N as f64;
    assert!((long - 0.1).abs() < 0.005, "{long}");
    assert!(
        drawn
            .iter()
            .all(|&x| x == 100.0 || (5000.0..=6000.0).contains(&x))
    );
}

#[test]
fn limits_cut_and_nothing_is_empty() {
    let drawn = draws(r#"{"dist": "lognormal", "median": 100, "sigma": 2, "min": 50, "max": 150}"#);
    assert!(drawn.iter().all(|x| (50.0..=150.0).contains(x)));
    assert!(drawn.contains(&50.0) && drawn.contains(&150.0));
    let small = Length(Dist::Lognormal {
        median: 0.01,
        sigma: 0.1,
        min: None,
        max: None,
    });
    assert_eq!(small.draw(&mut Stream::new(1, "x")), 1);
}

#[test]
fn texts_numbers_and_tables_are_read_and_written_alike() {
    for (written, text) in [
        ("1024", "\"1024\""),
        (
            r#"{"dist":"uniform","min":100.0,"max":200.0}"#,
            "\"uniform:100,200\"",
        ),
        (
            r#"{"dist":"lognormal","median":200.0,"sigma":1.5}"#,
            "\"lognormal:200, 1.5\"",
        ),
        (
            r#"{"dist":"gamma","mean":9.0,"shape":2.0}"#,
            "\"gamma:9,2\"",
        ),
        (
            r#"{"dist":"pareto","scale":9.0,"alpha":2.0}"#,
            "\"pareto:9,2\"",
        ),
    ] {
        let from_text: Length = serde_json::from_str(text).unwrap();
        let from_table: Length = serde_json::from_str(written).unwrap();
        assert_eq!(from_text, from_table);
        assert_eq!(serde_json::to_string(&from_table).unwrap(), written);
    }
    let real: Real = serde_json::from_str("0.25").unwrap();
    assert_eq!(real.draw_ns(&mut Stream::new(1, "x")), Nanos(250_000_000));
}

#[test]
fn what_is_no_distribution_is_refused_by_name() {
    let error = |text: &str| match serde_json::from_str::<Length>(text) {
        Err(error) => error.to_string(),
        Ok(length) => length.validate("input_len").unwrap_err().to_string(),
    };
    assert!(error("0").contains("input_len = value 0"));
    assert!(error("-3").contains("input_len = value -3"));
    assert!(error(r#"{"dist": "uniform", "min": 9, "max": 3}"#).contains("at least min 9"));
    assert!(error(r#"{"dist": "uniform", "min": 9.1, "max": 9.9}"#).contains("no whole number"));
    assert!(error(r#"{"dist": "uniform", "min": 9, "mux": 3}"#).contains("mux"));
    assert!(error(r#"{"dist": "zipf", "s": 1}"#).contains("zipf"));
    assert!(error(r#"{"dist": "gamma", "mean": 4, "shape": 0}"#).contains("shape 0"));
    assert!(error(r#"{"dist": "histogram", "values": [1], "weights": [0]}"#).contains("weight"));
    assert!(error(r#"{"dist": "mixture", "parts": []}"#).contains("weight"));
    assert!(error("\"normal:3,4\"").contains("lognormal:MEDIAN"));
    assert!("uniform:3".parse::<Length>().is_err());
}
