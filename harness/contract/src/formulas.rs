//! The arithmetic behind the numbers that people quote about prefill, caching and transfer.
//!
//! Each function is one formula with its units, so that a report can print the formula beside
//! the value and a reader can redo it by hand. They are predictions of work, never of time: the
//! report puts them next to measurements and derives neither from the other. The ideal times are
//! lower bounds that leave out protocol, staging and queueing.
//!
//! ```
//! use pb_contract::formulas::KvShape;
//! let llama_8b = KvShape { layers: 32, kv_heads: 8, head_dim: 128, element_bytes: 2 };
//! assert_eq!(llama_8b.bytes_per_token(), 131_072);
//! ```

mod streaming;

pub use streaming::streaming_pays_above_tokens;

/// Floating-point operations per byte of one linear layer in the limit of a wide input:
/// `I = 2 / (b * (1/d' + 1/M))`, with `M = batch * tokens` rows, output width `d'` and `b` bytes
/// an element. Zero when a size is zero.
pub fn linear_intensity_flop_per_byte(rows: f64, output_width: f64, element_bytes: f64) -> f64 {
    2.0 / (element_bytes * (1.0 / output_width + 1.0 / rows))
}

/// What [`linear_intensity_flop_per_byte`] approaches with ever more rows: `2 * d' / b`.
pub fn saturated_intensity_flop_per_byte(output_width: f64, element_bytes: f64) -> f64 {
    2.0 * output_width / element_bytes
}

/// The intensity above which a device is bound by arithmetic and below which by memory:
/// `peak_flop_per_s / bandwidth_bytes_per_s`, in FLOP/byte.
pub fn ridge_flop_per_byte(peak_flop_per_s: f64, bandwidth_bytes_per_s: f64) -> f64 {
    peak_flop_per_s / bandwidth_bytes_per_s
}

/// What limits a step on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Intensity at or above the ridge.
    Compute,
    /// Intensity below the ridge.
    Memory,
}

/// Which side of the device's ridge an intensity is on (both in FLOP/byte).
pub fn bound(intensity_flop_per_byte: f64, ridge_flop_per_byte: f64) -> Bound {
    if intensity_flop_per_byte >= ridge_flop_per_byte {
        Bound::Compute
    } else {
        Bound::Memory
    }
}

/// Shortest decode step when every weight is read once, in milliseconds:
/// `weight_bytes / bandwidth_bytes_per_s * 1e3`.
pub fn weight_streaming_floor_ms(weight_bytes: f64, bandwidth_bytes_per_s: f64) -> f64 {
    weight_bytes / bandwidth_bytes_per_s * 1e3
}

/// Query-key pairs of causal attention over a prompt of which a prefix is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixWork {
    /// Tokens to compute, `U = P - K`.
    pub fresh_tokens: u64,
    /// Fresh queries on cached keys, `U * K`.
    pub suffix_prefix_pairs: u128,
    /// Fresh queries on fresh keys, `U * (U + 1) / 2`.
    pub suffix_suffix_pairs: u128,
    /// The two together.
    pub total_pairs: u128,
    /// Pairs that the cache saves, `K * (K + 1) / 2`.
    pub skipped_pairs: u128,
    /// Pairs without a cache, `P * (P + 1) / 2`; always `total + skipped`.
    pub full_pairs: u128,
}

/// The pairs of a prompt of `prompt_tokens` tokens of which `cached_tokens` are cached; `None`
/// when more are cached than there are.
pub fn prefix_work(prompt_tokens: u64, cached_tokens: u64) -> Option<PrefixWork> {
    let fresh_tokens = prompt_tokens.checked_sub(cached_tokens)?;
    let (fresh, cached) = (u128::from(fresh_tokens), u128::from(cached_tokens));
    let suffix_prefix_pairs = fresh * cached;
    let suffix_suffix_pairs = triangle(fresh);
    Some(PrefixWork {
        fresh_tokens,
        suffix_prefix_pairs,
        suffix_suffix_pairs,
        total_pairs: suffix_prefix_pairs + suffix_suffix_pairs,
        skipped_pairs: triangle(cached),
        full_pairs: triangle(u128::from(prompt_tokens)),
    })
}

fn triangle(n: u128) -> u128 {
    n * (n + 1) / 2
}

/// Tokens found by a cache of full blocks that holds the first `shared_tokens` of a prompt:
/// `min(shared_tokens, prompt_tokens - 1)`, rounded down to whole blocks, because at least the
/// last token is computed. `None` when `block_size` is zero.
pub fn block_hit_tokens(prompt_tokens: u64, shared_tokens: u64, block_size: u64) -> Option<u64> {
    let usable = shared_tokens.min(prompt_tokens.saturating_sub(1));
    usable
        .checked_div(block_size)
        .map(|blocks| blocks * block_size)
}

/// Floating-point operations of the linear layers: `2 * tokens * active_parameters`.
pub fn linear_flop(tokens: f64, active_parameters: f64) -> f64 {
    2.0 * tokens * active_parameters
}

/// Floating-point operations of attention: `4 * layers * query_heads * pairs * head_dim` (scores
/// and weighted sum, two each). Without softmax.
pub fn attention_flop(layers: f64, query_heads: f64, pairs: f64, head_dim: f64) -> f64 {
    4.0 * layers * query_heads * pairs * head_dim
}

/// What the size of a KV cache depends on. Key-value heads, not query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: u64,
    /// Key-value heads of a layer.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Bytes of an element.
    pub element_bytes: u64,
}

impl KvShape {
    /// `2 * layers * kv_heads * head_dim * element_bytes`, keys and values together.
    pub fn bytes_per_token(self) -> u128 {
        u128::from(self.layers) * self.layer_bytes_per_token()
    }

    /// `2 * kv_heads * head_dim * element_bytes`: one layer's share.
    pub fn layer_bytes_per_token(self) -> u128 {
        2 * u128::from(self.kv_heads) * u128::from(self.head_dim) * u128::from(self.element_bytes)
    }

    /// Bytes of `tokens` tokens.
    pub fn payload_bytes(self, tokens: u64) -> u128 {
        self.bytes_per_token().saturating_mul(u128::from(tokens))
    }
}

/// Bytes per second of a link given in gigabits (10^9 bits) per second.
pub fn bytes_per_s_from_gbit(gbit_per_s: f64) -> f64 {
    gbit_per_s * 1e9 / 8.0
}

/// Shortest time in milliseconds to move a payload: `payload_bytes / link_bytes_per_s * 1e3`.
pub fn ideal_transfer_ms(payload_bytes: f64, link_bytes_per_s: f64) -> f64 {
    payload_bytes / link_bytes_per_s * 1e3
}

/// A transfer that follows the computation layer by layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerWise {
    /// Transfer of one layer.
    pub layer_transfer_ms: f64,
    /// Transfer time of one layer over its compute time: above 1 the link is the bottleneck.
    pub ratio: f64,
    /// Transfer time that remains after the last layer is computed.
    pub exposed_ms: f64,
    /// The whole payload moved after the computation.
    pub bulk_ms: f64,
}

/// Streams `layers` equal layers of `layer_bytes` bytes, each sent as soon as it is computed
/// (`layer_compute_ms` each) and in order over one link.
///
/// `t = layer_bytes / link`, `exposed = t + (layers - 1) * max(0, t - compute)` and
/// `bulk = layers * t`: with `t <= compute` only the last layer is exposed, 1/layers of the bulk
/// time.
pub fn layer_wise_transfer(
    layers: u64,
    layer_bytes: f64,
    link_bytes_per_s: f64,
    layer_compute_ms: f64,
) -> LayerWise {
    let layer_transfer_ms = ideal_transfer_ms(layer_bytes, link_bytes_per_s);
    let lag_ms = (layer_transfer_ms - layer_compute_ms).max(0.0);
    LayerWise {
        layer_transfer_ms,
        ratio: layer_transfer_ms / layer_compute_ms,
        exposed_ms: layer_transfer_ms + layers.saturating_sub(1) as f64 * lag_ms,
        bulk_ms: layers as f64 * layer_transfer_ms,
    }
}

/// What a chunk size does to the gap between tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkSlo {
    /// Chunks of the prompt.
    pub chunks: u64,
    /// Prefill time of a full chunk, at the prompt's average speed.
    pub chunk_ms: f64,
    /// Gap between two tokens of a decode that shares its step with a chunk.
    pub itl_ms: f64,
    /// Whether the gap keeps to the objective.
    pub meets: bool,
}

/// Inter-token latency beside a chunked prefill: `chunk_ms = prefill_ms * chunk / prompt`,
/// `itl_ms = decode_ms + chunk_ms`, `chunks = ceil(prompt / chunk)`. `None` when the prompt or
/// the chunk is empty.
pub fn chunk_slo(
    prompt_tokens: u64,
    prefill_ms: f64,
    chunk_tokens: u64,
    decode_ms: f64,
    slo_itl_ms: f64,
) -> Option<ChunkSlo> {
    if prompt_tokens == 0 || chunk_tokens == 0 {
        return None;
    }
    let chunk = chunk_tokens.min(prompt_tokens);
    let chunk_ms = prefill_ms * chunk as f64 / prompt_tokens as f64;
    let itl_ms = decode_ms + chunk_ms;
    let chunks = prompt_tokens.div_ceil(chunk);
    Some(ChunkSlo {
        chunks,
        chunk_ms,
        itl_ms,
        meets: itl_ms <= slo_itl_ms,
    })
}

/// The load-adaptive chunk rule: bigger chunks while few requests decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadAdaptive {
    /// Chunk at and above `threshold` decodes.
    pub min_chunk_tokens: u64,
    /// Chunk from which the ramp descends.
    pub base_chunk_tokens: u64,
    /// Chunk while nothing decodes.
    pub max_chunk_tokens: u64,
    /// Decodes at which the ramp ends.
    pub threshold_decodes: u64,
}

impl Default for LoadAdaptive {
    fn default() -> Self {
        LoadAdaptive {
            min_chunk_tokens: 128,
            base_chunk_tokens: 512,
            max_chunk_tokens: 4096,
            threshold_decodes: 16,
        }
    }
}

impl LoadAdaptive {
    /// Chunk size in tokens beside `active_decodes` decodes: `max` at 0, `min` from `threshold`
    /// on, else `floor(base - active / threshold * (base - min))` clamped to `[min, base]`
    /// (computed in integers, so that no rounding error moves it by one).
    pub fn chunk_tokens(self, active_decodes: u64) -> u64 {
        let (min, base) = (self.min_chunk_tokens, self.base_chunk_tokens);
        if active_decodes == 0 {
            return self.max_chunk_tokens;
        }
        if active_decodes >= self.threshold_decodes {
            return min;
        }
        let span = u128::from(base.saturating_sub(min));
        let step = u128::from(self.threshold_decodes);
        // The floor of a difference is the difference with the subtrahend rounded up.
        let drop = (u128::from(active_decodes) * span).div_ceil(step);
        // OK to narrow because drop is at most base - min.
        base.saturating_sub(drop as u64).max(min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, expected: f64, tolerance: f64) {
        assert!(
            (got - expected).abs() <= tolerance,
            "{got} is not {expected} +- {tolerance}"
        );
    }

    #[test]
    fn intensity_and_ridge_points() {
        // 2 / (2 * (1/4096 + 1/512)) = 4096 / 9.
        close(
            linear_intensity_flop_per_byte(512.0, 4096.0, 2.0),
            4096.0 / 9.0,
            1e-9,
        );
        close(
            linear_intensity_flop_per_byte(512.0, 4096.0, 2.0),
            455.0,
            0.2,
        );
        close(saturated_intensity_flop_per_byte(4096.0, 2.0), 4096.0, 0.0);
        close(
            linear_intensity_flop_per_byte(1e15, 4096.0, 2.0),
            4096.0,
            1e-6,
        );
        assert_eq!(linear_intensity_flop_per_byte(0.0, 4096.0, 2.0), 0.0);
        let h100 = ridge_flop_per_byte(989e12, 3.35e12);
        close(h100, 295.0, 0.3);
        assert_eq!(
            bound(linear_intensity_flop_per_byte(512.0, 4096.0, 2.0), h100),
            Bound::Compute
        );
        assert_eq!(
            bound(linear_intensity_flop_per_byte(64.0, 4096.0, 2.0), h100),
            Bound::Memory
        );
    }

    #[test]
    fn weight_streaming_floors() {
        for (bandwidth, ms, tolerance) in
            [(2e12, 70.0, 1e-9), (3.35e12, 42.0, 0.3), (8e12, 17.5, 1e-9)]
        {
            close(weight_streaming_floor_ms(140e9, bandwidth), ms, tolerance);
        }
    }

    #[test]
    fn work_avoided_table() {
        let rows = [
            (
                3000, 2496, 504, 1_257_984, 127_260, 1_385_244, 3_116_256, 4_501_500,
            ),
            (
                4000, 3072, 928, 2_850_816, 431_056, 3_281_872, 4_720_128, 8_002_000,
            ),
        ];
        for (prompt, cached, fresh, uk, uu, total, skipped, full) in rows {
            let expected = PrefixWork {
                fresh_tokens: fresh,
                suffix_prefix_pairs: uk,
                suffix_suffix_pairs: uu,
                total_pairs: total,
                skipped_pairs: skipped,
                full_pairs: full,
            };
            assert_eq!(prefix_work(prompt, cached), Some(expected));
            assert_eq!(total + skipped, full);
        }
        assert_eq!(prefix_work(3, 4), None);
        assert_eq!(prefix_work(0, 0).unwrap().full_pairs, 0);
        // Every pair counted one by one.
        let counted = (10u64..17).map(|query| u128::from(query) + 1).sum::<u128>();
        assert_eq!(prefix_work(17, 10).unwrap().total_pairs, counted);
    }

    #[test]
    fn block_hits_of_the_prefix_table() {
        assert_eq!(block_hit_tokens(3000, 2500, 16), Some(2496));
        assert_eq!(block_hit_tokens(4000, 3100, 32), Some(3072));
        assert_eq!(block_hit_tokens(64, 5, 16), Some(0));
        assert_eq!(block_hit_tokens(64, 64, 16), Some(48));
        assert_eq!(block_hit_tokens(65, 65, 16), Some(64));
        assert_eq!(block_hit_tokens(0, 9, 16), Some(0));
        assert_eq!(block_hit_tokens(64, 64, 0), None);
    }

    #[test]
    fn flop_counts() {
        close(linear_flop(504.0, 8e9), 8.064e12, 1.0);
        // Two queries of one head of width 3 on pairs (0,0), (1,0), (1,1): 3 dot products of 3
        // multiplications and 3 additions, and as many again for the weighted sum.
        assert_eq!(attention_flop(1.0, 1.0, 3.0, 3.0), 36.0);
        // 70 B over 80 layers, 4096 tokens: about 7.2 TFLOP a layer.
        close(linear_flop(4096.0, 70e9 / 80.0), 7.2e12, 0.05e12);
    }

    #[test]
    fn kv_size_and_transfer_table() {
        let shape = |layers| KvShape {
            layers,
            kv_heads: 8,
            head_dim: 128,
            element_bytes: 2,
        };
        let (gb900, gb12) = (900e9, 12.5e9);
        let rows = [
            (
                32,
                2048,
                131_072,
                268_435_456,
                bytes_per_s_from_gbit(100.0),
                21.475,
                5e-4,
            ),
            (
                40,
                4096,
                163_840,
                671_088_640,
                bytes_per_s_from_gbit(200.0),
                26.8435,
                5e-5,
            ),
            (40, 2048, 163_840, 335_544_320, gb900, 0.373, 5e-4),
            (40, 2048, 163_840, 335_544_320, gb12, 26.8, 0.05),
            (80, 4096, 327_680, 1_342_177_280, gb900, 1.49, 5e-3),
            (80, 4096, 327_680, 1_342_177_280, gb12, 107.4, 0.05),
        ];
        for (layers, tokens, per_token, payload, link, ms, tolerance) in rows {
            assert_eq!(shape(layers).bytes_per_token(), per_token);
            assert_eq!(shape(layers).payload_bytes(tokens), payload);
            close(ideal_transfer_ms(payload as f64, link), ms, tolerance);
        }
        assert_eq!(shape(32).payload_bytes(2048), 256 << 20);
        assert_eq!(shape(40).payload_bytes(4096) * 8, 5 << 30);
        assert_eq!(bytes_per_s_from_gbit(100.0), 12.5e9);
    }

    #[test]
    fn layer_wise_streaming_exposes_one_layer_when_compute_covers_it() {
        let shape = KvShape {
            layers: 80,
            kv_heads: 8,
            head_dim: 128,
            element_bytes: 2,
        };
        let layer_bytes = (shape.layer_bytes_per_token() * 4096) as f64;
        close(layer_bytes, 16.8e6, 0.05e6);
        let fast = layer_wise_transfer(80, layer_bytes, 900e9, 10.0);
        close(fast.layer_transfer_ms, 0.019, 5e-4);
        close(fast.exposed_ms, fast.bulk_ms / 80.0, 1e-12);
        let slow = layer_wise_transfer(80, layer_bytes, 12.5e9, 10.0);
        close(slow.layer_transfer_ms, 1.34, 5e-3);
        close(slow.ratio, 0.134, 5e-4);
        close(slow.exposed_ms, 1.34, 5e-3);
        // Hand-worked: 3 layers of 4 ms behind 1 ms of compute each finish at 1 + 3 * 4 = 13,
        // the computation at 3: ten exposed.
        close(layer_wise_transfer(3, 4e6, 1e9, 1.0).exposed_ms, 10.0, 1e-9);
    }

    #[test]
    fn slo_arithmetic() {
        let small = chunk_slo(8192, 800.0, 256, 15.0, 100.0).unwrap();
        assert_eq!(
            small,
            ChunkSlo {
                chunks: 32,
                chunk_ms: 25.0,
                itl_ms: 40.0,
                meets: true
            }
        );
        let large = chunk_slo(8192, 800.0, 1024, 15.0, 100.0).unwrap();
        assert_eq!(
            large,
            ChunkSlo {
                chunks: 8,
                chunk_ms: 100.0,
                itl_ms: 115.0,
                meets: false
            }
        );
        assert_eq!(chunk_slo(0, 800.0, 256, 15.0, 100.0), None);
        assert_eq!(chunk_slo(8192, 800.0, 0, 15.0, 100.0), None);
        // A chunk beyond the prompt is the prompt.
        assert_eq!(chunk_slo(100, 10.0, 1000, 1.0, 11.0).unwrap().itl_ms, 11.0);
    }

    #[test]
    fn load_adaptive_rule() {
        let rule = LoadAdaptive::default();
        // 512 - active * 24 by hand.
        let expected = [
            (0, 4096),
            (1, 488),
            (2, 464),
            (8, 320),
            (15, 152),
            (16, 128),
            (99, 128),
        ];
        for (active, chunk) in expected {
            assert_eq!(rule.chunk_tokens(active), chunk, "{active} decodes");
        }
        // 100 - 1/3 * 10 = 96.67 and 100 - 2/3 * 10 = 93.33, both cut to integers.
        let odd = LoadAdaptive {
            min_chunk_tokens: 90,
            base_chunk_tokens: 100,
            max_chunk_tokens: 200,
            threshold_decodes: 3,
        };
        assert_eq!(
            [1, 2, 3].map(|active| odd.chunk_tokens(active)),
            [96, 93, 90]
        );
    }
}
