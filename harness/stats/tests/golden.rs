//! This crate's numbers against other programs' (`golden/make_golden.py`: scipy, statsmodels,
//! pymannkendall, numpy by definition). Each test also counts its cases, so that an empty or
//! renamed section cannot pass.

use std::collections::BTreeMap;

use pb_stats::{Contrast, Method, PooledBlocks, RankInterval, Resampling, Spending, SplitMix64};

/// One line of the file: named lists of numbers.
struct Case(BTreeMap<&'static str, Vec<f64>>);

impl Case {
    fn list(&self, name: &str) -> &[f64] {
        let found = self.0.get(name);
        found.unwrap_or_else(|| panic!("golden.txt: no field {name}"))
    }

    fn get(&self, name: &str) -> f64 {
        self.list(name)[0]
    }

    fn count(&self, name: &str) -> usize {
        self.get(name) as usize
    }
}

fn cases(name: &str, expected: usize) -> Vec<Case> {
    let lines = include_str!("golden/golden.txt").lines();
    let wanted = lines.filter(|line| line.split("; ").next() == Some(name));
    let found: Vec<Case> = wanted
        .map(|line| {
            let fields = line.split("; ").skip(1).map(|field| {
                let (key, numbers) = field.split_once('=').expect("key=numbers");
                let numbers = numbers.split(' ').map(|v| v.parse().expect("a number"));
                (key, numbers.collect())
            });
            Case(fields.collect())
        })
        .collect();
    assert_eq!(found.len(), expected, "cases of {name}");
    found
}

#[track_caller]
fn close(got: f64, want: f64, relative: f64, absolute: f64) {
    let allowed = relative * want.abs() + absolute;
    let off = (got - want).abs();
    assert!(off <= allowed, "got {got:e}, want {want:e}, off by {off:e}");
}

#[test]
fn chi_square() {
    for c in cases("chi2", 36) {
        let (x, df) = (c.get("x"), c.get("df"));
        close(pb_stats::chi2_cdf(x, df), c.get("cdf"), 1e-11, 0.0);
        close(pb_stats::chi2_upper_tail(x, df), c.get("tail"), 1e-11, 0.0);
    }
    for c in cases("chi2_quantile", 30) {
        let got = pb_stats::chi2_quantile(c.get("p"), c.get("df"));
        close(got, c.get("x"), 1e-9, 0.0);
    }
}

#[test]
fn equivalence() {
    for c in cases("tost", 4) {
        let (a, b) = (c.list("a"), c.list("b"));
        let t = pb_stats::tost_paired(a, b, c.get("delta"), 0.05).unwrap();
        close(t.p, c.get("p"), 1e-9, 0.0);
        close(t.p_lower, c.get("p_lower"), 1e-9, 0.0);
        close(t.p_upper, c.get("p_upper"), 1e-9, 0.0);
        assert_eq!(t.equivalent, c.get("p") < 0.05);
    }
    for c in cases("tost_ratio", 4) {
        let (a, b) = (c.list("a"), c.list("b"));
        let t = pb_stats::tost_paired_ratio(a, b, c.get("margin"), 0.05).unwrap();
        close(t.p, c.get("p"), 1e-9, 0.0);
        // statsmodels takes 1/1.05 and 1.05 as its two ends, as this crate does.
        close(t.p_lower, c.get("p_lower"), 1e-9, 0.0);
        close(t.p_upper, c.get("p_upper"), 1e-9, 0.0);
    }
}

#[test]
fn holm() {
    for c in cases("holm", 4) {
        let adjusted = pb_stats::holm_adjust(c.list("p")).unwrap();
        let rejected = pb_stats::holm(c.list("p"), 0.05).unwrap();
        for (i, got) in adjusted.iter().enumerate() {
            close(*got, c.list("adjusted")[i], 1e-13, 0.0);
            assert_eq!(rejected[i], c.list("reject")[i] == 1.0);
        }
    }
}

#[test]
fn power_and_detectable_effects() {
    for c in cases("power", 4) {
        let got = pb_stats::paired_t_power(c.get("effect"), c.count("n"), c.get("alpha"));
        close(got.unwrap(), c.get("power"), 1e-6, 0.0);
    }
    for c in cases("detectable", 3) {
        let got = pb_stats::minimum_detectable_effect(c.count("n"), 0.05, c.get("target"));
        close(got.unwrap(), c.get("effect"), 1e-6, 0.0);
    }
    for c in cases("tost_power", 4) {
        let (effect, sd) = (c.get("effect"), c.get("sd"));
        let (delta, alpha) = (c.get("delta"), c.get("alpha"));
        let got = pb_stats::tost_power(effect, sd, c.count("n"), delta, alpha).unwrap();
        close(got, c.get("power"), 1e-6, 1e-9);
    }
}

fn same_interval(got: &RankInterval, c: &Case) {
    close(got.point, c.get("point"), 1e-12, 0.0);
    close(got.low, c.get("low"), 1e-12, 0.0);
    close(got.high, c.get("high"), 1e-12, 0.0);
}

#[test]
fn rank_intervals() {
    for c in cases("shift", 4) {
        let got = pb_stats::hodges_lehmann_shift(c.list("a"), c.list("b"), 0.95).unwrap();
        same_interval(&got, &c);
    }
    for c in cases("walsh", 4) {
        let got = pb_stats::hodges_lehmann(c.list("x"), 0.95).unwrap();
        same_interval(&got, &c);
    }
}

#[test]
fn area_under_the_curve() {
    for c in cases("auc", 3) {
        let a = pb_stats::auc(c.list("x"), c.list("y"), 0.95).unwrap();
        close(a.value, c.get("value"), 1e-12, 0.0);
        close(a.se, c.get("se"), 1e-11, 0.0);
    }
}

#[test]
fn shares_and_changed_answers() {
    for c in cases("proportion", 5) {
        let got = pb_stats::proportion(c.count("k") as u64, c.count("n") as u64, 0.95).unwrap();
        close(got.low, c.get("low"), 1e-10, 0.0);
        close(got.high, c.get("high"), 1e-10, 0.0);
    }
    for c in cases("mcnemar", 4) {
        let got = pb_stats::mcnemar(c.count("lost") as u64, c.count("gained") as u64);
        close(got.p, c.get("p"), 1e-11, 0.0);
    }
}

#[test]
fn autocorrelation_and_its_test() {
    for c in cases("acf", 3) {
        let rho = pb_stats::autocorrelation(c.list("x"), 10).unwrap();
        assert_eq!(rho.len(), c.list("rho").len());
        for (got, want) in rho.iter().zip(c.list("rho")) {
            close(*got, *want, 1e-11, 1e-13);
        }
    }
    for c in cases("ljung_box", 9) {
        let test = pb_stats::ljung_box(c.list("x"), c.count("lags")).unwrap();
        close(test.statistic, c.get("q"), 1e-10, 0.0);
        close(test.p, c.get("p"), 1e-9, 0.0);
    }
}

#[test]
fn trend_test_and_slope() {
    for c in cases("trend", 4) {
        let test = pb_stats::mann_kendall(c.list("x")).unwrap();
        assert_eq!(test.s as f64, c.get("s"));
        close(test.variance, c.get("variance"), 1e-12, 0.0);
        close(test.z, c.get("z"), 1e-12, 0.0);
        // pymannkendall takes one minus the distribution function, which cancels for small p.
        close(test.p, c.get("p"), 1e-9, 1e-15);
        let line = pb_stats::theil_sen(c.list("x"), 0.95).unwrap();
        close(line.slope, c.get("slope"), 1e-12, 1e-15);
        close(line.intercept, c.get("intercept"), 1e-12, 0.0);
        close(line.low, c.get("low"), 1e-12, 1e-15);
        close(line.high, c.get("high"), 1e-12, 1e-15);
    }
}

#[test]
fn warm_up_cut() {
    for c in cases("mser5", 3) {
        let w = pb_stats::mser5(c.list("x")).unwrap();
        assert_eq!(w.cut, c.count("cut"));
        assert_eq!(w.steady, c.get("steady") == 1.0);
        close(w.statistic, c.get("statistic"), 1e-10, 0.0);
    }
}

#[test]
fn change_points() {
    for c in cases("change", 3) {
        let mut rng = SplitMix64::new(5);
        let found = pb_stats::change_point(c.list("x"), c.count("stretch"), 40_000, &mut rng);
        let found = found.unwrap();
        assert_eq!(found.at, c.count("at"));
        close(found.statistic, c.get("statistic"), 1e-10, 0.0);
        // Both p-values come from 40,000 shuffles: five standard errors of their difference.
        let p = c.get("p");
        close(
            found.p,
            p,
            0.0,
            5.0 * (2.0 * p * (1.0 - p) / 40_000.0).sqrt() + 1e-4,
        );
    }
}

#[test]
fn sequential_bounds() {
    for (name, rule) in [
        ("obrien_fleming", Spending::OBrienFleming),
        ("pocock", Spending::Pocock),
    ] {
        for c in cases(name, 3) {
            let (shares, alpha) = (c.list("shares"), c.get("alpha"));
            let got = pb_stats::group_sequential_bounds(shares, alpha, rule).unwrap();
            assert_eq!(got.len(), shares.len());
            for (got, want) in got.iter().zip(c.list("z")) {
                // scipy's multivariate normal integral is a randomised one.
                close(*got, *want, 0.0, 1.5e-3);
            }
        }
    }
}

fn blocks(c: &Case, arm: &str) -> PooledBlocks {
    let values = c.list(arm);
    let parts: Vec<&[f64]> = values.chunks(values.len() / c.count("blocks")).collect();
    PooledBlocks::new(&parts).unwrap()
}

#[test]
fn pooled_percentiles() {
    for c in cases("percentile", 3) {
        let (a, b) = (blocks(&c, "a"), blocks(&c, "b"));
        for (method, field) in [
            (Method::Jackknife, "jackknife"),
            (Method::Bca, "bca"),
            (Method::Studentised, "studentised"),
            (Method::BayesianHdi, "hdi"),
        ] {
            let plan = Resampling {
                confidence: c.get("confidence"),
                resamples: c.count("resamples"),
            };
            // The script draws from the same stream, so the ends agree to rounding.
            let mut rng = SplitMix64::new(9);
            let (p, ratio) = (c.get("p"), Contrast::Ratio);
            let e = pb_stats::paired_percentile(&a, &b, p, ratio, method, plan, &mut rng).unwrap();
            close(e.point, c.get("point"), 1e-12, 0.0);
            close(e.low, c.list(field)[0], 1e-9, 0.0);
            close(e.high, c.list(field)[1], 1e-9, 0.0);
            if method == Method::Jackknife {
                close(e.se, c.get("se"), 1e-10, 0.0);
            }
        }
    }
}
