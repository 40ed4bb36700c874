//! The reference's cache: token slot `s` of a layer holds `kv_dim` values at `s * kv_dim`, where
//! `s = block * block_size + offset`.

use std::sync::Arc;

use pb_contract::{BlockId, KvDtype};

use crate::config::LlamaConfig;
use crate::forward::image::{ImageError, ImageShape, LayerKv, Side};
use crate::forward::judge::StoredKv;
use crate::forward::rounding::KvRounding;
use crate::forward::scales::{KvScales, layer_scales};
use crate::forward::{ForwardOptions, SeqInput};

/// Keys and values of one layer.
struct Layer {
    k: Vec<f64>,
    v: Vec<f64>,
}

/// Keys and values of all layers.
pub(super) struct Cache {
    layers: Vec<Layer>,
    block_size: usize,
    kv_heads: usize,
    d_head: usize,
    rounding: KvRounding,
    scales: Option<Arc<KvScales>>,
    /// When set, the cache holds what another decoder stored: nothing is written, and what would
    /// have been is compared.
    judged: Option<StoredKv>,
}

/// One layer of a cache.
pub(super) struct CachedLayer<'a> {
    cache: &'a Cache,
    layer: usize,
}

impl LayerKv for CachedLayer<'_> {
    fn read(&self, block: BlockId, out: &mut Vec<u8>) {
        let layer = &self.cache.layers[self.layer];
        for (kind, store) in [(Kind::Keys, &layer.k), (Kind::Values, &layer.v)] {
            let places = self.cache.places(kind, block);
            out.extend(places.flat_map(|at| store[at].to_le_bytes()));
        }
    }
}

/// Keys or values: the order of their elements in an image differs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Keys,
    Values,
}

impl Cache {
    pub(super) fn new(config: &LlamaConfig, options: &ForwardOptions) -> Self {
        let mut cache = Cache {
            layers: (0..config.layers)
                .map(|_| Layer {
                    k: Vec::new(),
                    v: Vec::new(),
                })
                .collect(),
            block_size: options.block_size,
            kv_heads: config.kv_heads,
            d_head: config.d_head,
            rounding: KvRounding::new(options.kv_rounding),
            scales: options.kv_scales.clone(),
            judged: None,
        };
        cache.resize(options.block_size, options.num_blocks);
        cache
    }

    fn kv_dim(&self) -> usize {
        self.kv_heads * self.d_head
    }

    /// An empty cache of another shape.
    pub(super) fn resize(&mut self, block_size: usize, num_blocks: usize) {
        let values = block_size * num_blocks * self.kv_dim();
        self.block_size = block_size;
        for layer in &mut self.layers {
            layer.k = vec![0.0; values];
            layer.v = vec![0.0; values];
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let values: usize = self.layers.iter().map(|l| l.k.len() + l.v.len()).sum();
        values * size_of::<f64>()
    }

    /// Largest magnitudes of keys and values of each layer.
    pub(super) fn magnitudes(&self) -> impl Iterator<Item = [f64; 2]> {
        let largest = |x: &[f64]| x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        self.layers
            .iter()
            .map(move |l| [largest(&l.k), largest(&l.v)])
    }

    /// Slot of absolute position `p` of `seq`.
    fn slot(&self, seq: &SeqInput<'_>, p: usize) -> usize {
        seq.block_table[p / self.block_size].0 as usize * self.block_size + p % self.block_size
    }

    /// Takes the keys and values of `seq`'s new tokens, rows from `row` on.
    pub(super) fn store(
        &mut self,
        layer: usize,
        seq: &SeqInput<'_>,
        k: &[f64],
        v: &[f64],
        row: usize,
    ) {
        let (d, dim) = (self.d_head, self.kv_dim());
        let scales = layer_scales(self.scales.as_deref(), layer);
        for i in 0..seq.tokens.len() {
            let (to, from) = (self.slot(seq, seq.start + i) * dim, (row + i) * dim);
            let Layer { k: keys, v: values } = &mut self.layers[layer];
            for (cached, new, scale) in [(keys, k, scales[0]), (values, v, scales[1])] {
                let cached = cached[to..to + dim].chunks_exact_mut(d);
                for (cached, own) in cached.zip(new[from..from + dim].chunks_exact(d)) {
                    let mut kept = own.to_vec();
                    self.rounding.round(&mut kept, scale);
                    match &mut self.judged {
                        None => cached.copy_from_slice(&kept),
                        Some(judged) => judged.compare(layer, cached, own, &kept),
                    }
                }
            }
        }
    }

    /// Keys and values of positions `0..end` of `seq`, token by token.
    pub(super) fn gather(
        &self,
        layer: usize,
        seq: &SeqInput<'_>,
        end: usize,
    ) -> (Vec<f64>, Vec<f64>) {
        let dim = self.kv_dim();
        let rows = |store: &[f64]| {
            (0..end)
                .flat_map(|p| {
                    let at = self.slot(seq, p) * dim;
                    store[at..at + dim].iter().copied()
                })
                .collect()
        };
        (rows(&self.layers[layer].k), rows(&self.layers[layer].v))
    }

    pub(super) fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let len = self.block_size * self.kv_dim();
        let (from, to) = (from.0 as usize * len, to.0 as usize * len);
        for layer in &mut self.layers {
            layer.k.copy_within(from..from + len, to);
            layer.v.copy_within(from..from + len, to);
        }
    }

    /// What images of a cache of `dtype` and this shape say.
    fn image(&self, dtype: KvDtype) -> ImageShape {
        ImageShape {
            dtype,
            layers: self.layers.len(),
            kv_heads: self.kv_heads,
            d_head: self.d_head,
            block_size: self.block_size,
        }
    }

    /// Where the elements of an image, in order, lie in `block`.
    fn places(&self, kind: Kind, block: BlockId) -> impl Iterator<Item = usize> + use<> {
        let (size, d, dim) = (self.block_size, self.d_head, self.kv_dim());
        let first = block.0 as usize * size;
        (0..size * dim).map(move |i| {
            let (head, rest) = (i / (size * d), i % (size * d));
            let (slot, dimension) = match kind {
                Kind::Keys => (rest % size, rest / size),
                Kind::Values => (rest / d, rest % d),
            };
            (first + slot) * dim + head * d + dimension
        })
    }

    pub(super) fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.image(KvDtype::F64).push_header(out);
        for layer in 0..self.layers.len() {
            self.layer(layer).read(block, out);
        }
    }

    /// One layer, to read.
    pub(super) fn layer(&self, layer: usize) -> CachedLayer<'_> {
        CachedLayer { cache: self, layer }
    }

    pub(super) fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), ImageError> {
        let sides = self.image(KvDtype::F64).layers(image)?;
        let exact = KvRounding::new(KvDtype::F64);
        for (layer, [k, v]) in sides.into_iter().enumerate() {
            self.set(layer, Kind::Keys, block, &exact.decode(k.elems, |_| 1.0));
            self.set(layer, Kind::Values, block, &exact.decode(v.elems, |_| 1.0));
        }
        Ok(())
    }

    /// Sets one side of a block to `values`, in the order of an image.
    fn set(&mut self, layer: usize, kind: Kind, block: BlockId, values: &[f64]) {
        let places = self.places(kind, block);
        let layer = &mut self.layers[layer];
        let store = match kind {
            Kind::Keys => &mut layer.k,
            Kind::Values => &mut layer.v,
        };
        for (at, value) in places.zip(values) {
            store[at] = *value;
        }
    }

    /// Fills `block` with what an image of a cache of `dtype` stands for, and judges from then
    /// on.
    pub(super) fn hold(
        &mut self,
        dtype: KvDtype,
        block: BlockId,
        image: &[u8],
    ) -> Result<(), ImageError> {
        let sides = self.image(dtype).layers(image)?;
        for (layer, [k, v]) in sides.into_iter().enumerate() {
            self.check_scales(dtype, layer, [k, v])?;
            let (size, d) = (self.block_size, self.d_head);
            let keys = self.rounding.decode(k.elems, |i| match dtype {
                KvDtype::Int8 => k.scale(i / (size * d) * size + i % size),
                _ => k.scale(0),
            });
            let values = self.rounding.decode(v.elems, |i| match dtype {
                KvDtype::Int8 => v.scale(i / d),
                _ => v.scale(0),
            });
            self.set(layer, Kind::Keys, block, &keys);
            self.set(layer, Kind::Values, block, &values);
        }
        self.judged.get_or_insert_default();
        Ok(())
    }

    fn check_scales(
        &self,
        dtype: KvDtype,
        layer: usize,
        sides: [Side<'_>; 2],
    ) -> Result<(), ImageError> {
        if !matches!(dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2) {
            return Ok(());
        }
        let (found, expected) = (
            sides.map(|side| side.scale(0)),
            layer_scales(self.scales.as_deref(), layer),
        );
        if found == expected {
            return Ok(());
        }
        Err(ImageError::Scales {
            layer,
            found,
            expected,
        })
    }

    /// What the comparison found.
    pub(super) fn judged(&self) -> StoredKv {
        self.judged.clone().unwrap_or_default()
    }
}
