//! Adapters in device memory.

use pb_kernels_cuda::ops::{LoraColumns, LoraDelta, LoraSite};
use pb_kernels_cuda::{Device, Elem, KernelError};
use pb_model::config::LlamaConfig;
use pb_model::lora::{AdapterSet, LoraAdapter, Projection};

/// A fused product of a layer. Its output columns are those of its parts, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// Queries, keys, values.
    Qkv,
    /// Attention output.
    O,
    /// Gate and up of the feed-forward part.
    GateUp,
    /// Down of the feed-forward part.
    Down,
}

impl Product {
    const ALL: [Product; 4] = [Product::Qkv, Product::O, Product::GateUp, Product::Down];

    fn parts(self) -> &'static [Projection] {
        match self {
            Product::Qkv => &[Projection::Q, Projection::K, Projection::V],
            Product::O => &[Projection::O],
            Product::GateUp => &[Projection::Gate, Projection::Up],
            Product::Down => &[Projection::Down],
        }
    }

    /// Terms of the product, and the columns of its parts.
    fn shape(self, config: &LlamaConfig) -> (usize, Vec<LoraColumns>) {
        let (mut inputs, mut first, mut columns) = (0, 0, Vec::new());
        for part in self.parts() {
            let (count, terms) = part.shape(config);
            columns.push(LoraColumns { first, count });
            (inputs, first) = (terms, first + count);
        }
        (inputs, columns)
    }
}

/// The changes of all adapters, by layer and product.
pub(crate) struct DeviceAdapters<T> {
    /// Adapters.
    pub(crate) count: usize,
    layers: Vec<[LoraSite<T>; 4]>,
}

impl<T: Elem> DeviceAdapters<T> {
    /// Places `set`, which fits `config`.
    pub(crate) fn new(
        device: &impl Device,
        config: &LlamaConfig,
        set: &AdapterSet,
    ) -> Result<Self, KernelError> {
        let site = |layer: usize, product: Product| {
            let (inputs, columns) = product.shape(config);
            let of_adapter = |adapter: &LoraAdapter| {
                let parts = product.parts().iter();
                let place = |part: &Projection| match adapter.delta(layer, *part) {
                    Some(d) => {
                        LoraDelta::place(device, (&d.a, &d.b), d.rank, d.scale as f32).map(Some)
                    }
                    None => Ok(None),
                };
                parts.map(place).collect::<Result<Vec<_>, KernelError>>()
            };
            let deltas: Vec<_> = set.iter().map(of_adapter).collect::<Result<_, _>>()?;
            LoraSite::new(device, inputs, &columns, &deltas)
        };
        let layer = |layer: usize| {
            let [qkv, o, gate_up, down] = Product::ALL.map(|product| site(layer, product));
            Ok([qkv?, o?, gate_up?, down?])
        };
        // Without adapters no row asks for a site.
        let layers = if set.is_empty() { 0 } else { config.layers };
        Ok(DeviceAdapters {
            count: set.len(),
            layers: (0..layers).map(layer).collect::<Result<_, KernelError>>()?,
        })
    }

    /// The changes of a product of a layer.
    pub(crate) fn site(&self, layer: usize, product: Product) -> &LoraSite<T> {
        &self.layers[layer][product as usize]
    }

    /// Values between the two products of any site, at most, for `rows` rows.
    pub(crate) fn inner_len(&self, rows: usize) -> usize {
        let sites = self.layers.iter().flatten();
        sites.map(|site| site.inner_len(rows)).max().unwrap_or(0)
    }
}

/// The adapters as a device with elements of type `T` sees them: every value rounded.
///
/// # Panics
/// Never: names stay as they are.
pub fn rounded_adapters<T: Elem + Into<f32>>(set: &AdapterSet) -> AdapterSet {
    let round = |adapter: &LoraAdapter| adapter.map_values(|x| T::round(x).into());
    // OK because the names of a set are good, and are kept.
    AdapterSet::new(set.iter().map(round).collect()).expect("names as before")
}
