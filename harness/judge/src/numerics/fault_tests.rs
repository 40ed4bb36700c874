//! Planted faults must be rejected and clean noise accepted, by the rule that is meant to see it.

use super::synthetic::{Variation, scores};
use super::*;

const SIGMA: f64 = 1e-5;

fn verdict(prompts: usize, rows: usize, variation: Variation) -> ConfigVerdict {
    let stats = ConfigStats::of(&scores(prompts, rows, SIGMA, variation, 42)).unwrap();
    judge("test", stats, &Limits::default()).unwrap()
}

fn outcome(verdict: &ConfigVerdict, name: CheckName) -> Outcome {
    verdict
        .checks
        .iter()
        .find(|check| check.name == name)
        .unwrap()
        .outcome
}

#[test]
fn clean_noise_passes_with_room() {
    let v = verdict(16, 48, Variation::Clean);
    assert!(v.verdict.is_pass(), "{:?}", v.checks);
    assert!(v.worst().unwrap().share.unwrap() < 0.5, "{:?}", v.worst());
    // 64 columns with independent errors: the top two differ by more than 6 sqrt 2 sigma nearly
    // always, as logits have a standard deviation of 3 and sigma is 1e-5.
    assert!(v.stats.flips.decidable_rows > 760);
    // KL of noise sigma is sigma^2/2 * Var-weighted, about 5e-11 times sum p (1 - p) < 1.
    let kl = v.stats.variant_kl.unwrap();
    assert!(kl.mean > 1e-12 && kl.mean < 5e-11, "{kl:?}");
}

#[test]
fn bit_equal_variants_pass_even_with_two_prompts() {
    let v = verdict(2, 12, Variation::Equal);
    assert!(v.verdict.is_pass(), "{:?}", v.verdict);
    assert_eq!(v.stats.max_rho.as_ref().unwrap().rho, 0.0);
}

#[test]
fn rows_shifted_by_one_fail_every_structural_rule() {
    let v = verdict(16, 48, Variation::ShiftedRows);
    assert!(v.verdict.is_fail());
    for name in [
        CheckName::MeanRho,
        CheckName::MaxRho,
        CheckName::MaxZ,
        CheckName::DecidableFlips,
    ] {
        assert_eq!(outcome(&v, name), Outcome::Fail, "{name:?}");
    }
    // Independent rows of standard deviation 3 are 3 sqrt 2 / 1e-5 apart: ln is 12.96.
    let mean = v.stats.rho.iter().map(|r| r.rho).sum::<f64>() / 16.0;
    assert!(
        (mean - (3.0 * 2.0_f64.sqrt() / SIGMA).ln()).abs() < 0.1,
        "{mean}"
    );
}

#[test]
fn one_noisy_row_in_one_prompt_fails() {
    let fault = Variation::NoisyRow {
        prompt: 3,
        position: 20,
        factor: 20.0,
    };
    let v = verdict(16, 48, fault);
    assert!(v.verdict.is_fail());
    assert_eq!(outcome(&v, CheckName::MaxRho), Outcome::Fail);
    assert_eq!(v.stats.max_rho.as_ref().unwrap().prompt, "p3");
    let z = v.stats.max_z.as_ref().unwrap();
    assert_eq!((z.at.prompt.as_str(), z.at.position), ("p3", 20));
    // The row's noise is 20 sigma; 64 columns make that exact to about 10 %.
    assert!(z.z > 16.0 && z.z < 25.0, "{}", z.z);
    // The mean hides it: one prompt in sixteen.
    assert_ne!(outcome(&v, CheckName::MeanRho), Outcome::Fail);
}

#[test]
fn a_large_single_row_fails_z_where_a_long_prompt_dilutes_rho() {
    // 30 sigma in one of 6000 rows: rho = ln sqrt((5999 + 900) / 6000) = 0.07, z about 30.
    let fault = Variation::NoisyRow {
        prompt: 1,
        position: 3000,
        factor: 30.0,
    };
    let stats = ConfigStats::of(&scores(8, 6000, SIGMA, fault, 7)).unwrap();
    let v = judge("long", stats, &Limits::default()).unwrap();
    assert_eq!(outcome(&v, CheckName::MaxRho), Outcome::Pass);
    assert_eq!(outcome(&v, CheckName::MaxZ), Outcome::Fail);
    assert!(v.verdict.is_fail());
}

#[test]
fn one_faulty_prompt_fails_the_maximum_though_the_mean_hides_it() {
    let v = verdict(
        32,
        48,
        Variation::NoisyPrompt {
            prompt: 9,
            factor: 3.0,
        },
    );
    assert_eq!(outcome(&v, CheckName::MaxRho), Outcome::Fail);
    assert_ne!(outcome(&v, CheckName::MeanRho), Outcome::Fail);
    let rho = v.stats.max_rho.unwrap();
    assert!(
        (rho.rho - 3.0_f64.ln()).abs() < 0.1 && rho.prompt == "p9",
        "{rho:?}"
    );
}

#[test]
fn one_nan_fails() {
    let v = verdict(4, 12, Variation::NotFinite);
    assert!(v.verdict.is_fail());
    assert_eq!(outcome(&v, CheckName::Finite), Outcome::Fail);
    let text = serde_json::to_string(&v).unwrap();
    assert_eq!(
        serde_json::from_str::<ConfigVerdict>(&text)
            .unwrap()
            .verdict,
        v.verdict
    );
}

#[test]
fn too_few_prompts_are_inconclusive_and_no_rows_are_too() {
    let v = verdict(1, 12, Variation::Clean);
    assert_eq!(v.verdict.exit_code(), 3, "{:?}", v.verdict);
    assert_eq!(outcome(&v, CheckName::MeanRho), Outcome::Inconclusive);
    assert_eq!(outcome(&v, CheckName::MaxRho), Outcome::Pass);
    let empty = judge("none", ConfigStats::of(&[]).unwrap(), &Limits::default()).unwrap();
    assert_eq!(empty.verdict.exit_code(), 3);
    assert_eq!(overall(&[]).exit_code(), 3);
    // A violation is a violation even with one prompt.
    let broken = verdict(1, 12, Variation::ShiftedRows);
    assert!(broken.verdict.is_fail());
    assert!(overall(&[v, broken]).is_fail());
}

#[test]
fn shares_are_value_over_limit() {
    let v = verdict(16, 48, Variation::Clean);
    for check in &v.checks {
        let (value, share) = (check.value.unwrap(), check.share.unwrap());
        match check.name {
            CheckName::Finite | CheckName::DecidableFlips => assert_eq!(share, 0.0),
            CheckName::MeanRho | CheckName::DeltaNll => {
                assert_eq!(share, value.abs() / check.limit);
                let (low, high) = check.interval.unwrap();
                assert!(low <= value && value <= high && check.p.unwrap() < 0.01);
            }
            _ => assert_eq!(share, value / check.limit),
        }
    }
}

fn ensemble(sigma: f64) -> Vec<BenignVariant> {
    (0..8)
        .map(|i| BenignVariant {
            name: format!("variant {i}"),
            stats: ConfigStats::of(&scores(16, 32, sigma, Variation::Clean, 100 + i)).unwrap(),
        })
        .collect()
}

#[test]
fn calibrated_limits_are_one_and_a_half_maxima() {
    let ensemble = ensemble(3e-3);
    let limits = calibrate(&ensemble, &Limits::default()).unwrap();
    let z = ensemble
        .iter()
        .map(|v| v.stats.max_z.as_ref().unwrap().z)
        .fold(0.0, f64::max);
    assert_eq!(limits.max_z, 1.5 * z);
    let kl = ensemble
        .iter()
        .map(|v| v.stats.variant_kl.unwrap().p999)
        .fold(0.0, f64::max);
    assert_eq!(limits.kl_p999, Some(1.5 * kl));
    assert_eq!(limits.mean_rho_margin, 0.10);
    // Another clean variant passes, a row of five times the noise does not (z limit is near 2).
    let clean = ConfigStats::of(&scores(16, 32, 3e-3, Variation::Clean, 999)).unwrap();
    assert!(!judge("clean", clean, &limits).unwrap().verdict.is_fail());
    let fault = Variation::NoisyRow {
        prompt: 2,
        position: 9,
        factor: 5.0,
    };
    let noisy = ConfigStats::of(&scores(16, 32, 3e-3, fault, 999)).unwrap();
    assert!(judge("noisy", noisy, &limits).unwrap().verdict.is_fail());
}

#[test]
fn leave_one_out_counts_false_alarms() {
    let mut ensemble = ensemble(3e-3);
    let clean = leave_one_out(&ensemble, &Limits::default()).unwrap();
    assert_eq!(
        (clean.variants, clean.false_alarms.len(), clean.rate),
        (8, 0, 0.0)
    );
    let fault = Variation::NoisyPrompt {
        prompt: 0,
        factor: 8.0,
    };
    ensemble[5].stats = ConfigStats::of(&scores(16, 32, 3e-3, fault, 3)).unwrap();
    let spoiled = leave_one_out(&ensemble, &Limits::default()).unwrap();
    assert_eq!(spoiled.false_alarms, vec!["variant 5".to_owned()]);
    assert_eq!(spoiled.rate, 0.125);
}

#[test]
fn unusable_ensembles_are_errors() {
    let few = calibrate(&ensemble(3e-3)[..7], &Limits::default());
    assert_eq!(few, Err(NumericsError::SmallEnsemble { got: 7, need: 8 }));
    let equal: Vec<BenignVariant> = (0..8)
        .map(|i| BenignVariant {
            name: format!("{i}"),
            stats: ConfigStats::of(&scores(2, 8, SIGMA, Variation::Equal, i)).unwrap(),
        })
        .collect();
    let degenerate = NumericsError::DegenerateEnsemble {
        statistic: "rho",
        value: 0.0,
    };
    assert_eq!(calibrate(&equal, &Limits::default()), Err(degenerate));
}

#[test]
fn a_run_adjusts_for_its_configurations_and_bad_limits_are_errors() {
    // The same borderline configuration alone and among others: the adjusted p only grows.
    let borderline = || ConfigStats::of(&scores(3, 48, SIGMA, Variation::ShiftedRows, 5)).unwrap();
    let p_of = |v: &ConfigVerdict| {
        v.checks
            .iter()
            .find(|c| c.name == CheckName::MeanRho)
            .unwrap()
            .p_beyond
            .unwrap()
    };
    let alone = judge("x", borderline(), &Limits::default()).unwrap();
    let clean = || ConfigStats::of(&scores(4, 12, SIGMA, Variation::Clean, 6)).unwrap();
    let run = vec![
        ("x".to_owned(), borderline()),
        ("y".to_owned(), clean()),
        ("z".to_owned(), clean()),
    ];
    let run = judge_run(run, &Limits::default()).unwrap();
    // Holm's factor for the smallest of six p-values against the smallest of two.
    assert!((p_of(&run[0]) / p_of(&alone) - 3.0).abs() < 1e-9);
    assert!(overall(&run).is_fail());
    let bad = Limits {
        alpha: 0.7,
        ..Limits::default()
    };
    assert!(judge("x", clean(), &bad).is_err());
}
