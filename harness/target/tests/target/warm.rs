//! Warm caches, proven in one call.

use pb_contract::wire::Prompt;
use pb_target::{CacheProof, HitSource, ServerKind};

use crate::cold::{probe, salts};
use crate::fake::{Fake, Options, Says};

fn prompt(tail: u32) -> Prompt {
    Prompt::Ids((300..320).chain(tail..tail + 5).collect())
}

async fn warm(options: Options, planned: u32) -> CacheProof {
    let fake = Fake::start(options).await;
    let prime = [prompt(700), prompt(710)];
    let verify = (&prompt(720), planned);
    let target = fake.target().await;
    let state = target
        .prepare_warm(&probe(), &mut salts(3), &prime, verify)
        .await;
    state.unwrap().proof
}

/// sglang #37359, #24083: warm-up, flush, prime, verify, in one command.
#[tokio::test]
async fn row_68_flushed_primed_and_verified() {
    let warm_by = |source| CacheProof::Warm {
        hit_tokens: 20,
        source,
    };
    for kind in ServerKind::ALL {
        let proof = warm(Options::of(kind), 20).await;
        assert_eq!(proof, warm_by(HitSource::Usage), "{kind}");
    }
    let counted = Options {
        says: Says::Nothing,
        ..Options::of(ServerKind::Sglang)
    };
    assert_eq!(warm(counted, 20).await, warm_by(HitSource::Counters));
    // Without the erasing of slots a cold request leaves the cache alone; a warm one must not.
    let no_erase = Options {
        has_reset: false,
        ..Options::of(ServerKind::LlamaCpp)
    };
    assert_eq!(warm(no_erase, 20).await, warm_by(HitSource::Usage));
}

#[tokio::test]
async fn what_was_not_planned_is_not_proven() {
    let part = |proof: CacheProof| match proof {
        CacheProof::Unproven { why } => why,
        other => panic!("{other:?}"),
    };
    let why = part(warm(Options::of(ServerKind::Vllm), 24).await);
    assert!(
        why.contains("20 of 25 tokens were found where 24 were planned"),
        "{why}"
    );
    let off = Options {
        cache_on: false,
        ..Options::of(ServerKind::Vllm)
    };
    let why = part(warm(off, 20).await);
    assert!(why.contains("0 of 25 tokens"), "{why}");
    let silent = Options {
        says: Says::Nothing,
        ..Options::of(ServerKind::Tgi)
    };
    let why = part(warm(silent, 20).await);
    assert!(why.contains("does not say how much"), "{why}");
}

/// fw-ai/benchmark #115: of an identical prompt the last token is never found.
#[tokio::test]
async fn row_67_whole_blocks_without_the_last_token() {
    let fake = Fake::start(Options::of(ServerKind::Vllm)).await;
    let target = fake.target().await;
    let none = serde_json::Map::new();
    for (length, planned) in [(16u32, 12), (17, 16), (4, 0), (5, 4)] {
        let expected = pb_contract::formulas::block_hit_tokens(length.into(), length.into(), 4);
        assert_eq!(expected, Some(planned));
        let ids = Prompt::Ids((length * 100..length * 101).collect());
        target
            .prime(std::slice::from_ref(&ids), &none)
            .await
            .unwrap();
        let seen = target.probe(&ids, &none).await.unwrap();
        assert_eq!(seen.cached_tokens.map(u64::from), Some(planned), "{length}");
    }
}
