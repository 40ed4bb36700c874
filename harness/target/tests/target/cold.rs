//! Cold caches: made, proven, refused.

use pb_contract::wire::Prompt;
use pb_target::{CacheProof, ColdMethod, ColdState, Evidence, HitSource, IdleReport};
use pb_target::{SaltMaker, ServerKind, TargetError};

use crate::fake::{Fake, Options, Says};

/// 17 tokens: four blocks of four, and one that is computed.
pub(crate) fn probe() -> Prompt {
    Prompt::Ids((1000..1017).collect())
}

pub(crate) fn salts(nonce: u64) -> SaltMaker {
    SaltMaker::new(nonce, &(1..2000).collect::<Vec<u32>>()).unwrap()
}

async fn cold(options: Options) -> (ColdState, Vec<String>) {
    let fake = Fake::start(options).await;
    let target = fake.target().await;
    fake.log();
    let state = target.prove_cold(&probe(), &mut salts(5)).await.unwrap();
    (state, fake.log())
}

fn by(state: &ColdState) -> &ColdMethod {
    match &state.proof {
        CacheProof::Cold { method, .. } => method,
        other => panic!("{other:?}"),
    }
}

fn why(state: &ColdState) -> &str {
    match &state.proof {
        CacheProof::Unproven { why } => why,
        other => panic!("{other:?}"),
    }
}

fn reset(route: &str, attempts: u32, confirmed: bool) -> ColdMethod {
    let route = route.to_owned();
    ColdMethod::Reset {
        route,
        attempts,
        confirmed,
    }
}

/// vllm #12284, #28827, #46893: 200 with `success: false` is a refusal.
#[tokio::test]
async fn row_60_a_refused_reset_is_retried_until_it_is_accepted() {
    for kind in [ServerKind::Vllm, ServerKind::OwnEngine, ServerKind::Mock] {
        let (state, _) = cold(Options {
            refusals: 2,
            ..Options::of(kind)
        })
        .await;
        let method = reset("/reset_prefix_cache", 3, true);
        let evidence = Evidence::Measured {
            source: HitSource::Usage,
            before_tokens: 16,
            external_tokens: Some(0),
        };
        assert_eq!(state.proof, CacheProof::Cold { method, evidence });
        assert!(state.salt.is_none() && state.request_fields.is_empty());
    }
}

#[tokio::test]
async fn row_60_a_reset_refused_beyond_the_limit_aborts_the_cell() {
    let fake = Fake::start(Options {
        refusals: u32::MAX,
        ..Options::of(ServerKind::Vllm)
    })
    .await;
    let error = fake
        .target()
        .await
        .prove_cold(&probe(), &mut salts(5))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TargetError::ResetRefused { attempts: 2.., .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("POST /reset_prefix_cache") && text.contains("false"),
        "{text}"
    );
}

/// A server that says the cache is empty and kept it.
#[tokio::test]
async fn row_60_a_reset_that_does_nothing_proves_nothing() {
    let lies = Options {
        reset_lies: true,
        ..Options::of(ServerKind::Vllm)
    };
    let (state, _) = cold(lies.clone()).await;
    assert_eq!(by(&state), &ColdMethod::CacheSalt);
    assert!(state.request_fields.contains_key("cache_salt"));
    // One that ignores the salt as well needs prompts that begin anew.
    let (state, _) = cold(Options {
        honours_salt: false,
        ..lies
    })
    .await;
    assert_eq!(by(&state), &ColdMethod::FirstBlockSalt);
    assert!(state.request_fields.is_empty());
    assert_ne!(state.dress(&probe()).unwrap(), probe());
}

/// vllm #57727: the plain reset leaves the other tier warm, and only its counter shows that.
#[tokio::test]
async fn row_61_a_warm_tier_is_no_cold_cache() {
    let tier = Options {
        has_tier: true,
        ..Options::of(ServerKind::Vllm)
    };
    let (state, log) = cold(tier.clone()).await;
    assert_eq!(
        by(&state),
        &reset("/reset_prefix_cache?reset_external=true", 1, true)
    );
    assert!(
        log.contains(&"POST /reset_prefix_cache".to_owned()),
        "{log:?}"
    );
    let (state, _) = cold(Options {
        resets_tier: false,
        ..tier
    })
    .await;
    assert_eq!(by(&state), &ColdMethod::CacheSalt);
}

/// sglang #33663, #33368, #33527, #21413: 400 while not idle.
#[tokio::test]
async fn row_62_never_flushed_before_idle_and_400_is_retried() {
    let options = Options {
        busy_pages: 6,
        refusals: 2,
        ..Options::of(ServerKind::Sglang)
    };
    let (state, log) = cold(options).await;
    assert_eq!(by(&state), &reset("/flush_cache?timeout=5", 3, false));
    assert_eq!(state.idle, IdleReport::Metrics);
    let flush = log.iter().position(|l| l.contains("flush_cache")).unwrap();
    let pages = log[..flush]
        .iter()
        .filter(|l| l.ends_with("/metrics"))
        .count();
    // One of the busy pages was taken by the detection.
    assert!(pages > 5, "{log:?}");
    let ask = log.iter().position(|l| l.contains("completions")).unwrap();
    assert!(
        log[..ask]
            .iter()
            .filter(|l| l.ends_with("/metrics"))
            .count()
            > 5,
        "{log:?}"
    );
}

#[tokio::test]
async fn a_server_that_stays_busy_aborts_and_a_stale_gauge_does_not() {
    let busy = Options {
        busy_pages: u32::MAX,
        ..Options::of(ServerKind::Sglang)
    };
    let fake = Fake::start(busy.clone()).await;
    let error = fake
        .target()
        .await
        .wait_idle()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not idle") && error.contains("1 running"),
        "{error}"
    );
    // This one counts output tokens, and they stand still.
    let fake = Fake::start(Options {
        kind: ServerKind::Vllm,
        ..busy
    })
    .await;
    assert_eq!(
        fake.target().await.wait_idle().await.unwrap(),
        IdleReport::Stale
    );
}

/// vllm #44377: zero is left out; counters can tell, and without them nothing is claimed.
#[tokio::test]
async fn row_64_an_absent_count_is_never_taken_for_zero() {
    let omits = Options {
        says: Says::OmitsZero,
        ..Options::of(ServerKind::Vllm)
    };
    let (state, _) = cold(omits.clone()).await;
    let evidence = Evidence::Measured {
        source: HitSource::Counters,
        before_tokens: 16,
        external_tokens: Some(0),
    };
    let method = reset("/reset_prefix_cache", 1, true);
    assert_eq!(state.proof, CacheProof::Cold { method, evidence });
    let (state, _) = cold(Options {
        has_metrics: false,
        ..omits
    })
    .await;
    assert!(
        why(&state).contains("cached_tokens: None"),
        "{}",
        why(&state)
    );
}

/// GLM-5.3-EXL3 #31, TensorRT-LLM: no reset; the method is reported.
#[tokio::test]
async fn row_72_without_a_reset_the_first_block_is_salted() {
    for kind in [ServerKind::TrtLlm, ServerKind::Unknown] {
        let (state, _) = cold(Options::of(kind)).await;
        let CacheProof::Cold { method, evidence } = &state.proof else {
            panic!("{:?}", state.proof);
        };
        assert_eq!(method, &ColdMethod::FirstBlockSalt);
        let before = matches!(
            evidence,
            Evidence::Measured {
                before_tokens: 16,
                ..
            }
        );
        assert!(before, "{evidence:?}");
    }
    // This kind never says what it found.
    let (state, _) = cold(Options {
        says: Says::Nothing,
        ..Options::of(ServerKind::Tgi)
    })
    .await;
    let method = ColdMethod::FirstBlockSalt;
    let evidence = Evidence::ByConstruction;
    assert_eq!(state.proof, CacheProof::Cold { method, evidence });
    // vLLM outside its development mode has no reset, but takes a salt for its keys.
    let (state, _) = cold(Options {
        has_reset: false,
        ..Options::of(ServerKind::Vllm)
    })
    .await;
    assert_eq!(by(&state), &ColdMethod::CacheSalt);
}

/// vllm #52884, #53920: a second run with the same seed finds what the first one left.
#[tokio::test]
async fn row_54_a_second_run_with_another_nonce_is_cold() {
    let fake = Fake::start(Options::of(ServerKind::TrtLlm)).await;
    let target = fake.target().await;
    let prompt = Prompt::Ids((300..317).collect());
    let none = serde_json::Map::new();
    let run = async |nonce| {
        let state = target.prove_cold(&probe(), &mut salts(nonce)).await?;
        target.probe(&state.dress(&prompt)?, &none).await
    };
    assert_eq!(run(1).await.unwrap().cached_tokens, Some(0));
    assert_eq!(run(2).await.unwrap().cached_tokens, Some(0));
    // The same nonce again is not proven cold: the salted probe itself is found.
    let state = target.prove_cold(&probe(), &mut salts(1)).await.unwrap();
    assert!(why(&state).contains("new first block"), "{}", why(&state));
}

/// vllm #54227: cells must not depend on their order.
#[tokio::test]
async fn row_55_the_order_of_cells_does_not_change_their_hits() {
    for kind in [
        ServerKind::Vllm,
        ServerKind::Sglang,
        ServerKind::TrtLlm,
        ServerKind::LlamaCpp,
    ] {
        let mut hits = Vec::new();
        for order in [["a", "b"], ["b", "a"]] {
            let fake = Fake::start(Options::of(kind)).await;
            let target = fake.target().await;
            let mut salts = salts(9);
            let mut found = Vec::new();
            for cell in order {
                let state = target.prove_cold(&probe(), &mut salts).await.unwrap();
                // The cells share a prefix of three blocks; each repeats its own prompt.
                let tail = if cell == "a" { 700 } else { 800 };
                let ids = (500..512).chain(tail..tail + 9).collect();
                let prompt = state.dress(&Prompt::Ids(ids)).unwrap();
                let first = target.probe(&prompt, &state.request_fields).await.unwrap();
                let again = target.probe(&prompt, &state.request_fields).await.unwrap();
                found.push((cell, first.cached_tokens, again.cached_tokens));
            }
            found.sort_unstable();
            hits.push(found);
        }
        let expected = |cell| (cell, Some(0), Some(20));
        assert_eq!(hits[0], [expected("a"), expected("b")], "{kind}");
        assert_eq!(hits[0], hits[1], "{kind}");
    }
}

/// llama.cpp #18776, #19981: slots are erased where the server allows it, else the request says
/// that the cache is to be left alone; which slot served is kept.
#[tokio::test]
async fn row_73_llama_cpp_slots_or_the_request_field() {
    let (state, log) = cold(Options::of(ServerKind::LlamaCpp)).await;
    assert_eq!(by(&state), &reset("/slots/N?action=erase", 1, true));
    assert_eq!(state.control.slot, Some(1));
    for slot in [0, 1] {
        let erase = format!("POST /slots/{slot}?action=erase");
        assert_eq!(log.iter().filter(|l| **l == erase).count(), 2, "{log:?}");
    }
    let (state, _) = cold(Options {
        has_reset: false,
        ..Options::of(ServerKind::LlamaCpp)
    })
    .await;
    let field = "cache_prompt".to_owned();
    assert_eq!(by(&state), &ColdMethod::RequestField { field });
    assert_eq!(state.request_fields["cache_prompt"], false);
}

/// vllm #53347: "nothing found" also holds when caching is off, and is then no reset's merit.
#[tokio::test]
async fn a_cache_that_is_off_is_told_from_one_that_was_emptied() {
    let off = Options {
        cache_on: false,
        ..Options::of(ServerKind::Vllm)
    };
    let (state, log) = cold(off.clone()).await;
    assert_eq!(by(&state), &ColdMethod::CacheOff);
    assert!(!log.iter().any(|l| l.contains("reset")), "{log:?}");
    let (state, _) = cold(Options {
        block: 64,
        ..Options::of(ServerKind::Vllm)
    })
    .await;
    assert!(
        why(&state).contains("17 tokens shows nothing in blocks of 64"),
        "{}",
        why(&state)
    );
    let (state, _) = cold(Options {
        has_metrics: false,
        ..off
    })
    .await;
    assert!(
        why(&state).contains("does not say how long its blocks are"),
        "{}",
        why(&state)
    );
}
