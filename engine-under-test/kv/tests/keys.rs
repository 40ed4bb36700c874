//! What must be equal for blocks to be shared: adapter, tenant, engine, and every token.
//!
//! The number in a test's name is that of the report in the project that the name begins with.

mod common;

use common::{admit, ids, manager, miss, scope, scoped, seq, with_hash};
use pb_contract::{HashAlgorithm, KvDtype, Numerics, PrefixCacheKind, RequestId};
use pb_kv::{
    AdapterKey, CacheIdentity, CacheScope, EngineFormat, HashKind, KvConfig, KvFormat, KvManager,
    Positional,
};

#[test]
fn vllm_3264_another_adapter_never_shares() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &scoped(4, &scope(Some("a"), None), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(Some("b"), None), 0..17)),
        miss()
    );
    assert_eq!(kv.lookup(&seq(4, 0..17)), miss());
    assert_eq!(
        kv.lookup(&scoped(4, &scope(Some("a"), None), 0..17))
            .tokens(4),
        16
    );
}

#[test]
fn vllm_30931_an_adapter_reloaded_under_its_name_never_shares() {
    let mut kv = manager(4, 32);
    let loaded = |digest: u8| CacheScope {
        adapter: Some(AdapterKey {
            name: "a".to_owned(),
            digest: [digest; 32],
        }),
        ..CacheScope::default()
    };
    admit(&mut kv, 0, &scoped(4, &loaded(1), 0..17));
    assert_eq!(kv.lookup(&scoped(4, &loaded(2), 0..17)), miss());
    // vllm 42125: other weights under another number, same name and contents: shared.
    assert_eq!(kv.lookup(&scoped(4, &loaded(1), 0..17)).tokens(4), 16);
}

fn identity() -> CacheIdentity {
    CacheIdentity {
        weights: [1; 32],
        positional: Positional {
            rope_theta: 10_000.0,
            rope_scaling: vec![("linear.factor".to_owned(), 2.0)],
            offset: 0,
            max_position: 4096,
            sliding_window: None,
        },
        kv: KvFormat {
            dtype: KvDtype::Fp8E4m3,
            scales: vec![1.0, 0.5],
            layout: "layer,side,head".to_owned(),
        },
        engine: EngineFormat {
            numerics: Numerics::Exact,
            block_size: 4,
            revision: "cpu 1".to_owned(),
        },
    }
}

type Change = (&'static str, fn(&mut CacheIdentity));

/// Each setting of the identity changed alone.
const CHANGES: [Change; 17] = [
    ("weights", |i| i.weights[31] ^= 1),
    ("rope theta", |i| i.positional.rope_theta = 10_000.1),
    ("rope scaling", |i| i.positional.rope_scaling[0].1 = 4.0),
    ("no rope scaling", |i| i.positional.rope_scaling.clear()),
    ("rope scaling kind", |i| {
        i.positional.rope_scaling[0].0 = "yarn.factor".to_owned();
    }),
    ("position offset", |i| i.positional.offset = 1),
    ("max position", |i| i.positional.max_position = 8192),
    ("window", |i| i.positional.sliding_window = Some(4096)),
    ("window of zero", |i| i.positional.sliding_window = Some(0)),
    ("kv dtype", |i| i.kv.dtype = KvDtype::Fp8E5m2),
    ("kv scale", |i| i.kv.scales[1] = 0.25),
    ("kv scales swapped", |i| i.kv.scales.reverse()),
    ("kv layout", |i| i.kv.layout = "layer,head,side".to_owned()),
    ("numerics", |i| i.engine.numerics = Numerics::Fast),
    ("block size", |i| i.engine.block_size = 8),
    ("revision", |i| i.engine.revision = "cpu 2".to_owned()),
    ("a part's end moved", |i| {
        i.kv.layout = "layer,side,hea".to_owned();
        i.engine.revision = "dcpu 1".to_owned();
    }),
];

#[test]
fn a_change_of_any_setting_of_the_identity_prevents_reuse() {
    let scope_of = |identity: &CacheIdentity| CacheScope {
        identity: identity.digest(),
        ..CacheScope::default()
    };
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &scoped(4, &scope_of(&identity()), 0..17));
    for (what, change) in CHANGES {
        let mut other = identity();
        change(&mut other);
        assert_eq!(
            kv.lookup(&scoped(4, &scope_of(&other), 0..17)),
            miss(),
            "{what}"
        );
    }
    // A second engine with equal settings does share.
    let again = scoped(4, &scope_of(&identity()), 0..17);
    assert_eq!(kv.lookup(&again).tokens(4), 16);
}

#[test]
fn vllm_44701_adapter_x_is_not_salt_x() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &scoped(4, &scope(Some("x"), None), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(None, Some("x")), 0..17)),
        miss()
    );
    admit(&mut kv, 1, &scoped(4, &scope(None, Some("x")), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(None, Some("x")), 0..17))
            .tokens(4),
        16
    );
}

fn verifying(num_blocks: usize) -> KvManager {
    let config = KvConfig {
        verify_tokens: true,
        ..KvConfig::new(4, num_blocks, PrefixCacheKind::HashChain)
    };
    KvManager::new(config).unwrap()
}

#[test]
fn vllm_12621_a_colliding_digest_gives_no_wrong_hit() {
    let mut kv = verifying(64);
    let stub = |scope: &CacheScope, tokens: std::ops::Range<u32>| {
        with_hash(4, scope, HashKind::ConstantStub, tokens)
    };
    let plain = CacheScope::default();
    admit(&mut kv, 0, &stub(&plain, 0..17));
    assert_eq!(kv.lookup(&stub(&plain, 100..117)), miss());
    // The second block's own tokens agree, its prefix does not: 4..8 stands in both.
    let moved = with_hash(4, &plain, HashKind::ConstantStub, (50..54).chain(4..17));
    assert_eq!(kv.lookup(&moved), miss());
    // The right prefix is still found.
    assert_eq!(kv.lookup(&stub(&plain, 0..17)).blocks, ids(&[0, 1, 2, 3]));
    let diverging = with_hash(4, &plain, HashKind::ConstantStub, (0..8).chain(90..99));
    assert_eq!(kv.lookup(&diverging).blocks, ids(&[0, 1]));
}

#[test]
fn vllm_29163_a_colliding_digest_respects_every_key() {
    let mut kv = verifying(64);
    let scopes = [
        scope(None, None),
        scope(Some("x"), None),
        scope(None, Some("x")),
        CacheScope {
            identity: [1; 32],
            ..CacheScope::default()
        },
    ];
    for (id, one) in scopes.iter().enumerate() {
        let seq = with_hash(4, one, HashKind::ConstantStub, 0..17);
        assert_eq!(admit(&mut kv, id as u64, &seq), 0, "{one:?}");
        assert_eq!(kv.lookup(&seq).tokens(4), 16);
    }
}

#[test]
fn a_colliding_digest_without_comparison_does_give_a_wrong_hit() {
    // The control of the two tests above: what the comparison prevents really happens.
    let mut kv = manager(4, 64);
    let plain = CacheScope::default();
    admit(
        &mut kv,
        0,
        &with_hash(4, &plain, HashKind::ConstantStub, 0..17),
    );
    let other = with_hash(4, &plain, HashKind::ConstantStub, 100..117);
    assert_eq!(kv.lookup(&other).tokens(4), 16);
}

#[test]
fn xxh3_compares_tokens_without_being_told_to() {
    let config = KvConfig {
        hash: HashAlgorithm::Xxh3,
        ..KvConfig::new(4, 16, PrefixCacheKind::HashChain)
    };
    assert!(config.verifies() && !config.verify_tokens);
    let mut kv = KvManager::new(config).unwrap();
    let stub = |tokens: std::ops::Range<u32>| {
        with_hash(4, &CacheScope::default(), HashKind::ConstantStub, tokens)
    };
    admit(&mut kv, 0, &stub(0..9));
    assert_eq!(kv.lookup(&stub(50..59)), miss());
    assert_eq!(kv.lookup(&stub(0..9)).tokens(4), 8);
    // A cache that trusts digests refuses names that cannot be trusted.
    let mut trusting = manager(4, 16);
    let weak = with_hash(4, &CacheScope::default(), HashKind::Xxh3, 0..9);
    let allocate = std::panic::AssertUnwindSafe(|| {
        trusting.allocate(RequestId(0), &weak, 0, &miss(), 9);
    });
    assert!(std::panic::catch_unwind(allocate).is_err());
}

#[test]
fn every_digest_gives_the_same_hits() {
    for hash in [
        HashAlgorithm::Blake3,
        HashAlgorithm::Sha256,
        HashAlgorithm::Xxh3,
    ] {
        let config = KvConfig {
            hash,
            ..KvConfig::new(4, 32, PrefixCacheKind::HashChain)
        };
        let mut kv = KvManager::new(config).unwrap();
        let make = |scope: &CacheScope, tokens: std::ops::Range<u32>| {
            let mut seq = config.sequence(scope);
            seq.extend(&tokens.collect::<Vec<_>>());
            seq
        };
        admit(&mut kv, 0, &make(&CacheScope::default(), 0..17));
        for (scope, tokens, expected) in [
            (scope(None, None), 0..17, 16),
            (scope(None, None), 0..16, 12),
            (scope(None, None), 1..18, 0),
            (scope(Some("x"), None), 0..17, 0),
            (scope(None, Some("x")), 0..17, 0),
        ] {
            let found = kv.lookup(&make(&scope, tokens.clone())).tokens(4);
            assert_eq!(found, expected, "{hash:?} {scope:?} {tokens:?}");
        }
    }
}
