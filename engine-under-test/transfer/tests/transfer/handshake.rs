//! Every part of the identity, changed alone.

use pb_contract::{KvDtype, Numerics};
use pb_transfer::{Allow, Conversion, GeometryError, Peer, Refusal, agree, legs};

use crate::engines::{at_rank, peer, with_dtype};

type Change = (&'static str, fn(&mut Peer));

/// One change for each field of [`Peer`] and of what it holds.
const CHANGES: [Change; 15] = [
    ("weights", |p| p.identity.weights[31] ^= 1),
    ("layers", |p| p.layers += 1),
    ("kv_heads", |p| p.kv_heads *= 2),
    ("d_head", |p| p.d_head += 1),
    ("positional.rope_theta", |p| {
        p.identity.positional.rope_theta = 1e6
    }),
    ("positional.rope_scaling", |p| {
        p.identity.positional.rope_scaling[0].1 = 8.0
    }),
    ("positional.offset", |p| p.identity.positional.offset = 1),
    ("positional.max_position", |p| {
        p.identity.positional.max_position += 1
    }),
    ("positional.sliding_window", |p| {
        p.identity.positional.sliding_window = Some(512)
    }),
    ("kv.layout", |p| {
        p.identity.kv.layout = "block image 2".to_owned()
    }),
    ("kv.dtype", |p| p.identity.kv.dtype = KvDtype::Bf16),
    ("engine.block_size", |p| p.identity.engine.block_size = 32),
    ("tp_degree", |p| p.tp_degree = 2),
    ("engine.numerics", |p| {
        p.identity.engine.numerics = Numerics::Fast
    }),
    ("engine.revision", |p| {
        p.identity.engine.revision = "cpu 2".to_owned()
    }),
];

fn everything() -> Allow {
    Allow {
        block_size: true,
        tp_degree: true,
        dtype: Conversion::Rounded,
        arithmetic: true,
    }
}

#[test]
fn equal_engines_agree_and_need_no_relayout() {
    let one = peer([2, 4, 8], 16);
    let agreement = agree(&one, &one, &Allow::default()).unwrap();
    assert!(agreement.is_direct());
    assert_eq!(agreement.heads, 0..4);
    // 2 sides x 4 heads x 8 elements x 16 tokens x 4 bytes.
    assert_eq!(agreement.cell().bytes(), 4096);
    let one_run = std::iter::once(0..4096).collect::<Vec<_>>();
    assert_eq!(agreement.source_pieces(), one_run);
}

#[test]
fn each_difference_is_refused_by_name_with_both_values() {
    let source = peer([2, 4, 8], 16);
    for (field, change) in CHANGES {
        let mut sink = source.clone();
        change(&mut sink);
        for (a, b) in [(&source, &sink), (&sink, &source)] {
            let refusal = agree(a, b, &Allow::default()).unwrap_err();
            let Refusal::Differs {
                field: named,
                source_value,
                sink_value,
                ..
            } = &refusal
            else {
                panic!("{field}: {refusal}");
            };
            assert_eq!(*named, field);
            assert_ne!(source_value, sink_value, "{field}");
            let text = refusal.to_string();
            assert!(
                text.contains(source_value) && text.contains(sink_value),
                "{text}"
            );
        }
    }
    let mut sink = source.clone();
    sink.identity.engine.block_size = 32;
    let text = agree(&source, &sink, &Allow::default())
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "engine.block_size differs: source has 16, sink has 32; allow block_size to have blocks \
         re-laid out"
    );
}

#[test]
fn only_what_a_relayout_bridges_can_be_allowed() {
    let bridged = [
        "kv.dtype",
        "engine.block_size",
        "tp_degree",
        "engine.numerics",
    ];
    for (field, change) in CHANGES {
        let source = peer([2, 4, 8], 16);
        let mut sink = source.clone();
        change(&mut sink);
        let agreed = agree(&source, &sink, &everything()).is_ok();
        let expected = bridged.contains(&field) || field == "engine.revision";
        assert_eq!(agreed, expected, "{field}");
    }
}

#[test]
fn element_types_follow_the_table_of_conversions() {
    use KvDtype::{Bf16, F16, F32, F64, Fp8E4m3, Fp8E5m2, Int8};
    let all = [F64, F32, Bf16, F16, Fp8E4m3, Fp8E5m2, Int8];
    // Rows: from; columns: to. `=` same, `x` exact, `r` rounded, `-` no rule.
    let table = [
        "=------", "-=rrrr-", "-x=rrr-", "-xr=rr-", "-xrr=r-", "-xrrr=-", "------=",
    ];
    for (from, row) in all.iter().zip(table) {
        for (to, rule) in all.iter().zip(row.chars()) {
            let [a, b] = [from, to].map(|&d| with_dtype(peer([2, 4, 8], 16), d, 0.5));
            let with = |dtype| {
                let allow = Allow {
                    dtype,
                    ..Allow::default()
                };
                agree(&a, &b, &allow).is_ok()
            };
            let got = [Conversion::Never, Conversion::Exact, Conversion::Rounded].map(with);
            let expected = match rule {
                '=' => [true; 3],
                'x' => [false, true, true],
                'r' => [false, false, true],
                _ => [false; 3],
            };
            assert_eq!(got, expected, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn other_scales_are_other_codes() {
    let source = with_dtype(peer([2, 4, 8], 16), KvDtype::Fp8E4m3, 0.5);
    let mut sink = source.clone();
    sink.identity.kv.scales[3] *= 2.0;
    let text = agree(&source, &sink, &Allow::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("kv.scales differs: source has [0.625, 0.6875] in layer 1"),
        "{text}"
    );
    let agreed = agree(&source, &sink, &everything()).unwrap();
    assert!(!agreed.is_direct());
    // Scales of 1 may be left out.
    let ones = with_dtype(peer([2, 4, 8], 16), KvDtype::Fp8E4m3, 1.0);
    let (mut a, mut b) = (ones.clone(), ones);
    a.identity.kv.scales = vec![1.0; 4];
    b.identity.kv.scales.clear();
    assert!(agree(&a, &b, &Allow::default()).unwrap().is_direct());
}

#[test]
fn shapes_that_are_none_are_refused() {
    let good = peer([2, 4, 8], 16);
    let refused = |change: fn(&mut Peer)| {
        let mut bad = good.clone();
        change(&mut bad);
        agree(&good, &bad, &everything()).unwrap_err()
    };
    let range = |field, value, largest| {
        Refusal::Geometry(GeometryError::Range {
            field,
            value,
            largest,
        })
    };
    assert_eq!(refused(|p| p.layers = 0), range("layers", 0, 4096));
    assert_eq!(
        refused(|p| p.identity.engine.block_size = usize::MAX),
        range("block_size", usize::MAX, 65_536)
    );
    let heads = GeometryError::Heads {
        tp_degree: 3,
        kv_heads: 4,
    };
    assert_eq!(refused(|p| p.tp_degree = 3), Refusal::Geometry(heads));
    let rank = GeometryError::Rank {
        rank: 1,
        tp_degree: 1,
    };
    assert_eq!(refused(|p| p.tp_rank = 1), Refusal::Geometry(rank));
    assert!(matches!(
        refused(|p| p.identity.kv.scales = vec![1.0; 3]),
        Refusal::Scales {
            found: 3,
            expected: 0
        }
    ));
    let fp8 = with_dtype(good.clone(), KvDtype::Fp8E5m2, f32::INFINITY);
    assert!(matches!(
        agree(&fp8, &fp8, &everything()),
        Err(Refusal::Scale { .. })
    ));
}

/// Which ranks hold a head, by walking over ranks and heads.
fn holders(degree: usize, kv_heads: usize, head: usize) -> Vec<usize> {
    let shared = |rank: usize| {
        if degree <= kv_heads {
            head / (kv_heads / degree) == rank
        } else {
            rank / (degree / kv_heads) == head
        }
    };
    (0..degree).filter(|&rank| shared(rank)).collect()
}

#[test]
fn legs_give_every_sink_rank_each_of_its_heads_once() {
    let kv_heads = 4;
    for (from, to) in [1, 2, 4, 8]
        .into_iter()
        .flat_map(|a| [1, 2, 4, 8].map(|b| (a, b)))
    {
        let [source, sink] = [from, to].map(|degree| {
            let mut geometry = peer([1, kv_heads, 2], 4).geometry();
            geometry.tp_degree = degree;
            geometry
        });
        for rank in 0..to {
            let mut got = Vec::new();
            for leg in legs(&source, &sink, rank) {
                for head in leg.heads {
                    assert!(holders(from, kv_heads, head).contains(&leg.source_rank));
                    got.push(head);
                }
            }
            let expected: Vec<usize> = (0..kv_heads)
                .filter(|&head| holders(to, kv_heads, head).contains(&rank))
                .collect();
            assert_eq!(got, expected, "{from} to {to}, rank {rank}");
        }
    }
}

#[test]
fn a_rank_without_heads_for_the_other_is_refused() {
    let [a, b] = [0, 1].map(|rank| at_rank(peer([2, 4, 8], 16), 2, rank));
    assert!(agree(&a, &a, &Allow::default()).is_ok());
    let text = agree(&a, &b, &Allow::default()).unwrap_err().to_string();
    assert!(
        text.starts_with("source tp_rank 0 of 2 holds no KV head for sink tp_rank 1"),
        "{text}"
    );
}

#[test]
fn decode_takes_one_block_more_when_the_last_is_full() {
    let geometry = peer([1, 1, 1], 16).geometry();
    for (tokens, prefill, decode) in [(1, 1, 1), (15, 1, 1), (16, 1, 2), (17, 2, 2), (32, 2, 3)] {
        assert_eq!(geometry.blocks_for(tokens), prefill, "{tokens}");
        assert_eq!(geometry.decode_blocks_for(tokens), decode, "{tokens}");
    }
}
