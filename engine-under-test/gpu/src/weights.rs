//! The model's weights in device memory.

use pb_kernels_cuda::{Buffer, Device, DeviceExt, Elem, KernelError};
use pb_model::Weights;
use pb_model::forward::RopeTables;
use pb_model::weights::LayerWeights;

/// One layer; queries, keys and values are one product, and so are gate and up.
pub(crate) struct Layer<T> {
    pub(crate) attn_norm: Buffer<T>,
    pub(crate) qkv: Buffer<T>,
    pub(crate) qkv_bias: Option<Buffer<T>>,
    pub(crate) o: Buffer<T>,
    pub(crate) mlp_norm: Buffer<T>,
    pub(crate) gate_up: Buffer<T>,
    pub(crate) down: Buffer<T>,
}

/// Every weight, and the rotary tables.
pub(crate) struct DeviceWeights<T> {
    pub(crate) embed: Buffer<T>,
    pub(crate) layers: Vec<Layer<T>>,
    pub(crate) final_norm: Buffer<T>,
    /// The embedding, where the two are tied.
    pub(crate) head: Buffer<T>,
    pub(crate) cos: Buffer<f32>,
    pub(crate) sin: Buffer<f32>,
}

/// Places `parts`, one after the other, rounded.
fn place<T: Elem>(
    device: &impl Device,
    name: &str,
    parts: &[&[f32]],
) -> Result<Buffer<T>, KernelError> {
    let values = parts.iter().flat_map(|part| part.iter());
    device.input(name, &values.map(|x| T::round(*x)).collect::<Vec<T>>())
}

/// The biases of queries, keys and values side by side, zero where one has none.
fn qkv_bias(l: &LayerWeights) -> Option<Vec<f32>> {
    let biases = [&l.q_bias, &l.k_bias, &l.v_bias];
    biases.iter().any(|b| b.is_some()).then(|| {
        let parts = biases.iter().zip([&l.q, &l.k, &l.v]);
        let part = |(bias, m): (&&Option<Vec<f32>>, &pb_model::weights::Matrix)| {
            Option::clone(bias).unwrap_or_else(|| vec![0.0; m.rows])
        };
        parts.flat_map(part).collect()
    })
}

impl<T: Elem> DeviceWeights<T> {
    pub(crate) fn new(device: &impl Device, weights: &Weights) -> Result<Self, KernelError> {
        let layer = |l: &LayerWeights| {
            Ok(Layer {
                attn_norm: place(device, "attention norm", &[&l.attn_norm])?,
                qkv: place(device, "q k v", &[&l.q.data, &l.k.data, &l.v.data])?,
                qkv_bias: qkv_bias(l)
                    .map(|bias| place(device, "q k v bias", &[&bias]))
                    .transpose()?,
                o: place(device, "o", &[&l.o.data])?,
                mlp_norm: place(device, "mlp norm", &[&l.mlp_norm])?,
                gate_up: place(device, "gate up", &[&l.gate.data, &l.up.data])?,
                down: place(device, "down", &[&l.down.data])?,
            })
        };
        let embed = place(device, "embedding", &[&weights.embed.data])?;
        let head = match &weights.lm_head {
            Some(head) => place(device, "head", &[&head.data])?,
            None => embed,
        };
        let rope = RopeTables::new(&weights.config);
        Ok(DeviceWeights {
            embed,
            layers: weights.layers.iter().map(layer).collect::<Result<_, _>>()?,
            final_norm: place(device, "final norm", &[&weights.final_norm])?,
            head,
            cos: device.input("cosines", &rope.cos)?,
            sin: device.input("sines", &rope.sin)?,
        })
    }
}

/// The weights as a device with elements of type `T` sees them: every one rounded. A reference
/// must start from these, or it would judge the rounding of the weights.
pub fn rounded<T: Elem + Into<f32>>(weights: &Weights) -> Weights {
    let mut all = weights.clone();
    let round = |data: &mut Vec<f32>| {
        data.iter_mut().for_each(|x| *x = T::round(*x).into());
    };
    round(&mut all.embed.data);
    round(&mut all.final_norm);
    all.lm_head.iter_mut().for_each(|m| round(&mut m.data));
    for l in &mut all.layers {
        let matrices = [
            &mut l.q,
            &mut l.k,
            &mut l.v,
            &mut l.o,
            &mut l.gate,
            &mut l.up,
            &mut l.down,
        ];
        matrices.into_iter().for_each(|m| round(&mut m.data));
        [&mut l.attn_norm, &mut l.mlp_norm]
            .into_iter()
            .for_each(round);
        let biases = [&mut l.q_bias, &mut l.k_bias, &mut l.v_bias];
        biases.into_iter().flatten().for_each(round);
    }
    all
}
