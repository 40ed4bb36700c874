//! From which prompt on it pays to send keys and values layer by layer.

use super::KvShape;

/// Tokens above which a transfer layer by layer gives an earlier first decoded token than one in
/// bulk, when sealing and posting a layer by itself keeps the prefill for `post_us` microseconds:
/// `post * link / layer bytes per token`. Absent for one layer, which has nothing to overlap.
///
/// With `s` the time of one layer on the link, `c` its computation and `p` a post, bulk takes
/// `L c + p + L s` and streaming `L (c + p) + max(s, L s - (L - 1) (c + p))`. Where the link
/// keeps up, `s <= c + p`, the difference is `(L - 1) (p - s)`; where it does not, `-(L - 1) c`.
/// So streaming gains exactly when `s > p`: a layer must take longer to send than to post.
pub fn streaming_pays_above_tokens(
    shape: KvShape,
    link_bytes_per_s: f64,
    post_us: f64,
) -> Option<f64> {
    let layer_bytes = shape.layer_bytes_per_token() as f64;
    (shape.layers > 1).then(|| post_us * 1e-6 * link_bytes_per_s / layer_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First token with streaming less first token with bulk, ms, as the events follow each other:
    /// layer after layer is computed and posted, and goes when the link is free.
    fn difference_ms(layers: u32, slice_ms: f64, layer_ms: f64, post_ms: f64) -> f64 {
        let (mut computed, mut sent) = (0.0_f64, 0.0_f64);
        for _ in 0..layers {
            computed += layer_ms + post_ms;
            sent = sent.max(computed) + slice_ms;
        }
        // Bulk is one post, behind the last layer.
        sent - f64::from(layers) * (layer_ms + slice_ms) - post_ms
    }

    #[test]
    fn it_pays_when_a_layer_takes_longer_to_send_than_to_post() {
        // 8B in bf16: 32 layers of 8 heads of 128, 4096 bytes a token and layer.
        let shape = KvShape {
            layers: 32,
            kv_heads: 8,
            head_dim: 128,
            element_bytes: 2,
        };
        for gbps in [1.0, 10.0, 100.0, 400.0] {
            for post_us in [2.0, 8.0, 25.0] {
                let link = gbps * 1e9 / 8.0;
                let above = streaming_pays_above_tokens(shape, link, post_us).unwrap();
                let gains = |tokens: f64| {
                    let slice_ms = tokens * 4096.0 / link * 1e3;
                    difference_ms(32, slice_ms, tokens * 2e-3, post_us * 1e-3) < 0.0
                };
                assert!(gains(above * 1.01), "{gbps} {post_us}");
                assert!(!gains(above * 0.99), "{gbps} {post_us}");
            }
        }
        // 100 Gb/s and 8 us: 100,000 bytes, 24.4 tokens.
        let above = streaming_pays_above_tokens(shape, 12.5e9, 8.0).unwrap();
        assert!((above - 24.414).abs() < 1e-3, "{above}");
        let one = KvShape { layers: 1, ..shape };
        assert_eq!(streaming_pays_above_tokens(one, 12.5e9, 8.0), None);
    }
}
