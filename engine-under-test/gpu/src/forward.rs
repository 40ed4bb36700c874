//! The forward pass: one sequence of launches for a whole mixed batch.

use pb_contract::{Clock, Numerics};
use pb_core::Chunk;
use pb_kernels_cuda::ops::{
    self, GemmBy, Partials, PlacedDecode, PlacedLora, PlacedPrefill, PlacedPrefillSplit,
    PrefillArgs, RopeKv,
};
use pb_kernels_cuda::{Buffer, Device, DeviceExt, Elem, GemmOut, KernelError, Purpose, StoreElem};
use pb_model::config::LlamaConfig;
use pb_model::forward::{ForwardTiming, LogitSink};

use crate::adapters::{DeviceAdapters, Product};
use crate::batch::{Batch, Rows};
use crate::graphs::DecodeGraphs;
use crate::head::{self, LOGIT_TILE};
use crate::plans::Plans;
use crate::pool::Pool;
use crate::weights::{DeviceWeights, Layer};

/// What a pass reads.
pub(crate) struct Model<'a, D, T, S> {
    pub(crate) device: &'a D,
    pub(crate) config: &'a LlamaConfig,
    pub(crate) numerics: Numerics,
    pub(crate) weights: &'a DeviceWeights<T>,
    pub(crate) adapters: &'a DeviceAdapters<T>,
    pub(crate) pool: &'a Pool<S>,
    /// Steps that are recorded, if any are.
    pub(crate) graphs: Option<&'a DecodeGraphs<T>>,
}

/// Buffers of one pass, a row for every token of the batch.
pub(crate) struct Scratch<T> {
    rows: usize,
    pub(crate) positions: Buffer<u32>,
    pub(crate) slots: Buffer<[u32; 2]>,
    residual: Buffer<f32>,
    pub(crate) normed: Buffer<T>,
    qkv: Buffer<T>,
    attended: Buffer<T>,
    delta: Buffer<T>,
    gate_up: Buffer<T>,
    act: Buffer<T>,
}

impl<T: Elem> Scratch<T> {
    /// Room for as many rows as there are positions and slots.
    pub(crate) fn new(
        d: &impl Device,
        c: &LlamaConfig,
        (positions, slots): (Buffer<u32>, Buffer<[u32; 2]>),
    ) -> Result<Self, KernelError> {
        let rows = positions.len();
        Ok(Scratch {
            rows,
            positions,
            slots,
            residual: d.empty("residual", rows * c.hidden)?,
            normed: d.empty("normed", rows * c.hidden)?,
            qkv: d.empty("q k v", rows * (c.q_dim() + 2 * c.kv_dim()))?,
            attended: d.empty("attended", rows * c.q_dim())?,
            delta: d.empty("delta", rows * c.hidden)?,
            gate_up: d.empty("gate up", rows * 2 * c.ffn)?,
            act: d.empty("gated", rows * c.ffn)?,
        })
    }

    /// The first `rows` rows.
    pub(crate) fn first(&self, rows: usize) -> Self {
        let all = self.rows;
        Scratch {
            rows,
            positions: self.positions.slice(0, rows),
            slots: self.slots.slice(0, rows),
            residual: first_rows(&self.residual, rows, all),
            normed: first_rows(&self.normed, rows, all),
            qkv: first_rows(&self.qkv, rows, all),
            attended: first_rows(&self.attended, rows, all),
            delta: first_rows(&self.delta, rows, all),
            gate_up: first_rows(&self.gate_up, rows, all),
            act: first_rows(&self.act, rows, all),
        }
    }
}

/// The first `rows` of `all` rows.
fn first_rows<U>(buffer: &Buffer<U>, rows: usize, all: usize) -> Buffer<U> {
    buffer.slice(0, buffer.len() / all * rows)
}

/// Attention and adapters of a batch, their plans on the device.
pub(crate) struct Work<'a, T> {
    pub(crate) prefill: Option<PlacedPrefill<'a>>,
    pub(crate) split: Option<(PlacedPrefillSplit<'a>, Partials)>,
    pub(crate) decode: Option<(PlacedDecode<'a>, Partials)>,
    /// With room for what lies between the two products.
    pub(crate) lora: Option<(PlacedLora<'a>, Buffer<T>)>,
}

impl<D: Device, T: Elem, S: StoreElem<T>> Model<'_, D, T, S>
where
    f32: GemmOut<T>,
{
    pub(crate) fn by(&self) -> GemmBy {
        match self.numerics {
            Numerics::Fast => GemmBy::Vendor,
            Numerics::Exact | Numerics::F64 => GemmBy::Kernel,
        }
    }

    /// Computes `batch` and hands the logits of its wanted rows to `sink`.
    pub(crate) fn forward(
        &self,
        chunks: &[Chunk<'_>],
        batch: &Batch<'_>,
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, KernelError> {
        let mut timing = ForwardTiming::default();
        if batch.tokens.is_empty() {
            return Ok(timing);
        }
        let inputs: Vec<_> = chunks.iter().map(Chunk::input).collect();
        let wanted = head::wanted(&inputs, self.config.vocab, sink);
        if let Some(graphs) = self.graphs
            && let Some(logits) = self.decode_by_graph(graphs, batch)?
        {
            self.hand_over(&wanted, &logits, clock, sink, &mut timing.sink_ns)?;
            return Ok(timing);
        }
        let plans = Plans::new(batch, self.config, self.numerics)?;
        let work = self.place(&plans)?;

        let device = self.device;
        let words = || -> Result<_, KernelError> {
            let positions = device.input("positions", &batch.positions)?;
            let slots = device.input("slots", &batch.slots)?;
            let tokens = device.input("tokens", &batch.tokens)?;
            Ok((positions, slots, tokens))
        };
        let (positions, slots, tokens) = device.for_purpose(Purpose::Plans, words)?;
        let s = Scratch::new(device, self.config, (positions, slots))?;
        self.body((&tokens, batch.rows()), &work, &s)?;
        if !wanted.is_empty() {
            self.norm(&s, &self.weights.final_norm, true)?;
        }
        for tile in wanted.chunks(LOGIT_TILE) {
            self.head(tile, &s.normed, clock, sink, &mut timing.sink_ns)?;
        }
        Ok(timing)
    }

    /// Puts the plans that have work on the device.
    fn place<'p>(&self, plans: &'p Plans) -> Result<Work<'p, T>, KernelError> {
        let device = self.device;
        let partials = |items| {
            let (q_heads, d_head) = (self.config.q_heads, self.config.d_head);
            Partials::new(device, items, q_heads, d_head)
        };
        let (prefill, split) = (&plans.prefill, &plans.split);
        let (decode, lora) = (&plans.decode, &plans.lora);
        let prefill = (!prefill.is_empty()).then(|| {
            let place = || ops::place_prefill(device, prefill);
            device.for_purpose(Purpose::Plans, place)
        });
        let split = (split.partials() > 0).then(|| {
            let place = || ops::place_prefill_split(device, split);
            let placed = device.for_purpose(Purpose::Plans, place)?;
            Ok((placed, partials(split.partials())?))
        });
        let decode = (decode.items() > 0).then(|| {
            let place = || ops::place_decode(device, decode);
            let placed = device.for_purpose(Purpose::Plans, place)?;
            Ok((placed, partials(decode.items())?))
        });
        let lora = (!lora.is_empty()).then(|| {
            let place = || ops::place_lora(device, lora);
            let placed = device.for_purpose(Purpose::Plans, place)?;
            let inner = self.adapters.inner_len(lora.rows());
            Ok((placed, device.empty("lora inner", inner)?))
        });
        Ok(Work {
            prefill: prefill.transpose()?,
            split: split.transpose()?,
            decode: decode.transpose()?,
            lora: lora.transpose()?,
        })
    }

    /// A product of layer `index`, with what adapters change of it.
    fn project(
        &self,
        (index, which): (usize, Product),
        work: &Work<'_, T>,
        (x, rows): (&Buffer<T>, usize),
        out: &Buffer<T>,
    ) -> Result<(), KernelError> {
        let l: &Layer<T> = &self.weights.layers[index];
        let (w, bias) = match which {
            Product::Qkv => (&l.qkv, l.qkv_bias.as_ref()),
            Product::O => (&l.o, None),
            Product::GateUp => (&l.gate_up, None),
            Product::Down => (&l.down, None),
        };
        ops::gemm(self.device, self.by(), (x, rows), w, bias, out)?;
        match &work.lora {
            Some((placed, inner)) => {
                let site = self.adapters.site(index, which);
                ops::lora(self.device, placed, site, (x, out), inner)
            }
            None => Ok(()),
        }
    }

    /// Embedding and all layers.
    pub(crate) fn body(
        &self,
        (tokens, rows): (&Buffer<u32>, Rows<'_>),
        work: &Work<'_, T>,
        s: &Scratch<T>,
    ) -> Result<(), KernelError> {
        let (embed, hidden) = (&self.weights.embed, self.config.hidden);
        ops::embed(self.device, embed, tokens, rows.tokens, hidden, &s.residual)?;
        (0..self.config.layers).try_for_each(|index| self.layer(index, rows, work, s))
    }

    /// Where rows go, and their angles.
    pub(crate) fn rope<'r>(&'r self, rows: Rows<'r>, s: &'r Scratch<T>) -> RopeKv<'r> {
        RopeKv {
            q_heads: self.config.q_heads,
            cos: &self.weights.cos,
            sin: &self.weights.sin,
            positions: rows.positions,
            slots: rows.slots,
            on_device: (&s.positions, &s.slots),
        }
    }

    /// The norm of the residual stream, after `delta` was added to it if `add`.
    pub(crate) fn norm(
        &self,
        s: &Scratch<T>,
        weight: &Buffer<T>,
        add: bool,
    ) -> Result<(), KernelError> {
        let (device, eps) = (self.device, self.config.rms_eps as f32);
        if add {
            ops::add_rmsnorm(device, &s.residual, &s.delta, weight, eps, &s.normed)
        } else {
            ops::rmsnorm(device, &s.residual, weight, eps, &s.normed)
        }
    }

    /// One decoder layer. What it adds to the residual stream stays in `delta`: the next norm
    /// forms the sum.
    fn layer(
        &self,
        index: usize,
        rows: Rows<'_>,
        work: &Work<'_, T>,
        s: &Scratch<T>,
    ) -> Result<(), KernelError> {
        let (device, c, m) = (self.device, self.config, s.rows);
        let project = |which, x, out| self.project((index, which), work, (x, m), out);
        let l: &Layer<T> = &self.weights.layers[index];
        let pool = &self.pool.layers[index];
        self.norm(s, &l.attn_norm, index > 0)?;
        project(Product::Qkv, &s.normed, &s.qkv)?;
        ops::rope_kv(device, &s.qkv, &self.rope(rows, s), pool)?;
        let args = PrefillArgs {
            q: &s.qkv,
            q_stride: c.q_dim() + 2 * c.kv_dim(),
            q_heads: c.q_heads,
            pool,
            out: &s.attended,
        };
        if let Some(placed) = &work.prefill {
            ops::prefill_placed(device, placed, &args)?;
        }
        if let Some((placed, partials)) = &work.split {
            ops::prefill_split_placed(device, placed, &args, partials)?;
        }
        if let Some((placed, partials)) = &work.decode {
            ops::decode_placed(device, placed, &args, partials)?;
        }
        project(Product::O, &s.attended, &s.delta)?;
        self.norm(s, &l.mlp_norm, true)?;
        project(Product::GateUp, &s.normed, &s.gate_up)?;
        ops::silu_mul(device, &s.gate_up, c.ffn, &s.act)?;
        project(Product::Down, &s.act, &s.delta)
    }
}
