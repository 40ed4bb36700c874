//! The engine against reference logits made by two other programs.
//!
//! transformers rounds to float32 inside its RMSNorm and its attention softmax whatever the
//! model's type is, so its "float64" values carry noise of about 1e-6. They judge the exact mode
//! and bound the f64 mode loosely; the numpy values of `golden/make_f64.py`, float64 throughout,
//! hold the f64 mode to 1e-8.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use approx::abs_diff_eq;
use pb_contract::{Numerics, RequestId};
use pb_core::logprobs::{log_sum_exp, top_tokens};
use pb_core::{Engine, EngineParts};
use pb_model::Model;
use pb_tests::engine::{Tap, config, drain, greedy};
use pb_tests::golden::{Golden, GoldenF64, NAMES};

/// Margin below which two tokens are a near tie and may trade places.
const NEAR_TIE: f64 = 1e-3;

fn load() -> Option<Model> {
    let path = pb_tests::real_model()?;
    Some(pb_model::load(&path).expect("the model loads"))
}

/// Largest error that float32 rounding inside the reference program explains.
const REFERENCE_NOISE: f64 = 2e-5;

/// Largest errors found over every prompt.
#[derive(Debug, Default)]
struct Worst {
    /// Against transformers.
    logprob: f64,
    /// Against numpy, float64 throughout.
    logprob_f64: f64,
    /// Raw logits of the last position against numpy.
    logit_f64: f64,
}

/// Compares every stored value of every prompt; the greedy continuation too.
fn compare(numerics: Numerics) -> Result<Option<Worst>> {
    let Some(model) = load() else { return Ok(None) };
    let mut settings = config(numerics, 80, 1100);
    settings.threads = 2;
    let parts = EngineParts::new(Arc::new(model.weights), [0; 32]);
    let mut engine = parts.build(settings).map_err(|e| anyhow!(e))?;
    let mut worst = Worst::default();
    for (n, name) in NAMES.into_iter().enumerate() {
        let golden = Golden::load(name)?;
        assert_eq!(
            golden.model_sha256, model.identity.sha256,
            "{name} is of other weights"
        );
        check_prompt(&mut engine, &golden, n as u64, &mut worst)?;
        check_greedy(&mut engine, &golden, 100 + n as u64)?;
    }
    Ok(Some(worst))
}

fn check_prompt(engine: &mut Engine, golden: &Golden, id: u64, worst: &mut Worst) -> Result<()> {
    let tap = Tap::default();
    engine.set_tap(Some(Box::new(tap.clone())));
    engine.add(greedy(id, &golden.tokens, 1))?;
    drain(engine, 10)?;
    engine.set_tap(None);
    let rows = tap.take();
    assert_eq!(rows.len(), golden.tokens.len(), "every position has logits");
    let exact = GoldenF64::load(&golden.name)?;
    assert_eq!(exact.model_sha256, golden.model_sha256);
    for (position, ids) in golden.topk_ids.iter().enumerate() {
        let logits = &rows[&(RequestId(id), position)];
        let lse = log_sum_exp(logits);
        let logprob = |token: u32| logits[token as usize] - lse;
        let error = |token: u32, want: f64| (logprob(token) - want).abs();
        let stored = &golden.topk_logprobs[position];
        for (i, &token) in ids.iter().enumerate() {
            worst.logprob = worst.logprob.max(error(token, stored[i]));
            let want = exact.topk_logprobs[position][i];
            worst.logprob_f64 = worst.logprob_f64.max(error(token, want));
        }
        if let Some(&next) = golden.tokens.get(position + 1) {
            let want = golden.next_token_logprob[position];
            worst.logprob = worst.logprob.max(error(next, want));
            let want = exact.next_token_logprob[position];
            worst.logprob_f64 = worst.logprob_f64.max(error(next, want));
        }
        if stored[0] - stored[1] > NEAR_TIE {
            let top = top_tokens(logits, 1)[0];
            assert_eq!(top, ids[0], "{} position {position}", golden.name);
        }
    }
    let last = golden.tokens.len() - 1;
    let logits = &rows[&(RequestId(id), last)];
    for (&token, want) in golden.topk_ids[last].iter().zip(exact.last_top_logits) {
        worst.logit_f64 = worst.logit_f64.max((logits[token as usize] - want).abs());
    }
    Ok(())
}

fn check_greedy(engine: &mut Engine, golden: &Golden, id: u64) -> Result<()> {
    let decided = golden.decided_steps(NEAR_TIE);
    engine.add(greedy(
        id,
        &golden.tokens,
        golden.greedy_tokens.len() as u32,
    ))?;
    let outcome = drain(engine, 200)?;
    let got = &outcome.tokens[&RequestId(id)];
    assert!(decided > 0, "{}: no decided step", golden.name);
    assert_eq!(
        got[..decided],
        golden.greedy_tokens[..decided],
        "{}",
        golden.name
    );
    Ok(())
}

#[test]
fn f64_mode_reproduces_every_stored_value() -> Result<()> {
    let Some(worst) = compare(Numerics::F64)? else {
        return Ok(());
    };
    eprintln!("f64: {worst:?}");
    assert!(
        abs_diff_eq!(worst.logprob_f64, 0.0, epsilon = 1e-8),
        "{worst:?}"
    );
    assert!(
        abs_diff_eq!(worst.logit_f64, 0.0, epsilon = 1e-8),
        "{worst:?}"
    );
    assert!(worst.logprob < REFERENCE_NOISE, "{worst:?}");
    Ok(())
}

#[test]
fn exact_mode_is_within_f32_of_every_stored_value() -> Result<()> {
    let Some(worst) = compare(Numerics::Exact)? else {
        return Ok(());
    };
    eprintln!("exact: {worst:?}");
    assert!(worst.logprob < 5e-4, "{worst:?}");
    assert!(worst.logprob_f64 < 5e-4, "{worst:?}");
    Ok(())
}

#[test]
fn tokens_agree_with_the_reference_both_ways() -> Result<()> {
    let Some(model) = load() else { return Ok(()) };
    for name in NAMES {
        let golden = Golden::load(name)?;
        assert_eq!(
            model.tokenizer.encode(&golden.text, false)?,
            golden.tokens,
            "{name}"
        );
        assert_eq!(
            model.tokenizer.decode(&golden.tokens, false),
            golden.text,
            "{name}"
        );
    }
    Ok(())
}
