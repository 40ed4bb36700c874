//! Keys and values can be read layer by layer while a pass goes on.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{BlockId, KvDtype, Numerics, TokenId, WallClock};
use pb_model::forward::{
    ForwardOptions, IMAGE_HEADER_BYTES, LayerKv, LogitRow, LogitRows, LogitSink, SeqInput, build,
};
use pb_model::lora::AdapterSet;
use pb_model::synth::{self, Kind, Size};

use common::prompt;

/// What is there of each block when a layer is told of; and in which order they were.
#[derive(Default)]
struct Watch {
    blocks: Vec<BlockId>,
    order: Vec<usize>,
    parts: BTreeMap<(BlockId, usize), Vec<u8>>,
}

impl LogitSink for Watch {
    fn row(&mut self, _seq: usize, _position: usize, _logits: LogitRow<'_>) {}

    fn token(&mut self, _seq: usize, _token: TokenId) {}

    fn layer_written(&mut self, layer: usize, kv: &dyn LayerKv) {
        self.order.push(layer);
        for &block in &self.blocks {
            let mut part = Vec::new();
            kv.read(block, &mut part);
            self.parts.insert((block, layer), part);
        }
    }
}

#[test]
fn a_layer_is_final_when_it_is_told_of() {
    let model = synth::model(Kind::Sharp, Size::Tiny, 3).unwrap();
    let weights = Arc::new(model.weights);
    let layers = weights.config.layers;
    assert!(layers > 1);
    let reference = [(Numerics::F64, KvDtype::F64)];
    let packed = [
        KvDtype::F32,
        KvDtype::Bf16,
        KvDtype::F16,
        KvDtype::Fp8E4m3,
        KvDtype::Fp8E5m2,
        KvDtype::Int8,
    ];
    let exact = packed.map(|dtype| (Numerics::Exact, dtype));
    let fast = packed.map(|dtype| (Numerics::Fast, dtype));
    for (numerics, kv_dtype) in reference.into_iter().chain(exact).chain(fast) {
        let options = ForwardOptions {
            numerics,
            kv_dtype,
            block_size: 8,
            ..ForwardOptions::default()
        };
        let mut decoder = build(&weights, &Arc::new(AdapterSet::default()), options).unwrap();
        // Two sequences at a time, one in the middle of its blocks.
        let tables = [[3, 9, 4].map(BlockId), [7, 0, 12].map(BlockId)];
        let prompts = [prompt(1, 24), prompt(2, 21)];
        let entry = |seq: usize, from: usize, to: usize| SeqInput {
            tokens: &prompts[seq][from..to],
            start: from,
            block_table: &tables[seq],
            rows: LogitRows::Last,
            is_prefill: true,
            adapter: None,
        };
        for batch in [
            [entry(0, 0, 11), entry(1, 0, 8)],
            [entry(0, 11, 24), entry(1, 8, 21)],
        ] {
            let mut watch = Watch {
                blocks: tables.concat(),
                ..Watch::default()
            };
            decoder.forward(&batch, &WallClock, &mut watch);
            let order: Vec<usize> = (0..layers).collect();
            assert_eq!(watch.order, order, "{numerics:?} {kv_dtype:?}");
            for &block in &watch.blocks {
                let mut image = Vec::new();
                decoder.read_block(block, &mut image);
                let image = &image[IMAGE_HEADER_BYTES..];
                let parts = image.chunks_exact(image.len() / layers);
                for (layer, part) in parts.enumerate() {
                    let seen = &watch.parts[&(block, layer)];
                    assert!(seen == part, "{numerics:?} {kv_dtype:?} {block:?} {layer}");
                    // No other layer's part could pass for it, once all blocks are written.
                    let below = watch.parts.get(&(block, layer.wrapping_sub(1)));
                    let all_written = batch[0].start > 0;
                    assert!(!all_written || below.is_none_or(|below| below != part));
                }
            }
        }
    }
}
