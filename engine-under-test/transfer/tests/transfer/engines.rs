//! Pairs of engines to connect.

use pb_contract::{KvDtype, Numerics};
use pb_kv::{CacheIdentity, EngineFormat, KvFormat, Positional};
use pb_transfer::Peer;

/// A rank of an engine with `layers` layers, `kv_heads` heads of dimension `d_head`.
pub(crate) fn peer([layers, kv_heads, d_head]: [usize; 3], block_size: usize) -> Peer {
    Peer {
        identity: CacheIdentity {
            weights: [7; 32],
            positional: Positional {
                rope_theta: 1e5,
                rope_scaling: vec![("linear.factor".to_owned(), 4.0)],
                offset: 0,
                max_position: 8192,
                sliding_window: None,
            },
            kv: KvFormat {
                dtype: KvDtype::F32,
                scales: vec![],
                layout: "block image 1".to_owned(),
            },
            engine: EngineFormat {
                numerics: Numerics::Exact,
                block_size,
                revision: "cpu 1".to_owned(),
            },
        },
        layers,
        kv_heads,
        d_head,
        tp_degree: 1,
        tp_rank: 0,
    }
}

/// The same rank with another element type, and scales for fp8.
pub(crate) fn with_dtype(mut peer: Peer, dtype: KvDtype, scale: f32) -> Peer {
    peer.identity.kv.dtype = dtype;
    if matches!(dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2) {
        // Another one for each side of each layer.
        let scales = (0..2 * peer.layers).map(|i| scale * (1.0 + i as f32 / 8.0));
        peer.identity.kv.scales = scales.collect();
    }
    peer
}

/// Rank `rank` of `degree`.
pub(crate) fn at_rank(mut peer: Peer, degree: usize, rank: usize) -> Peer {
    (peer.tp_degree, peer.tp_rank) = (degree, rank);
    peer
}
