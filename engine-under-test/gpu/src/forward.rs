//! The forward pass: one sequence of launches for a whole mixed batch.

use pb_contract::{Clock, Nanos, Numerics};
use pb_core::Chunk;
use pb_kernels_cuda::ops::{
    self, DecodePlan, GemmBy, Partials, PlacedDecode, PlacedPrefill, PrefillArgs, PrefillPlan,
    RopeKv,
};
use pb_kernels_cuda::{Buffer, Device, DeviceExt, Elem, GemmOut, KernelError, StoreElem};
use pb_model::config::LlamaConfig;
use pb_model::forward::{ForwardTiming, LogitRow, LogitSink, WantedRow, wanted_rows};

use crate::batch::Batch;
use crate::pool::Pool;
use crate::weights::{DeviceWeights, Layer};

/// Rows whose logits are computed and copied at once.
const LOGIT_TILE: usize = 64;

/// Blocks of threads that a decode launch should have at least: a few for every multiprocessor of
/// a large GPU.
const DECODE_ITEMS: usize = 512;

/// What a pass reads.
pub(crate) struct Model<'a, D, T, S> {
    pub(crate) device: &'a D,
    pub(crate) config: &'a LlamaConfig,
    pub(crate) numerics: Numerics,
    pub(crate) weights: &'a DeviceWeights<T>,
    pub(crate) pool: &'a Pool<S>,
}

/// Buffers of one pass, a row for every token of the batch.
struct Scratch<T> {
    rows: usize,
    positions: Buffer<u32>,
    slots: Buffer<[u32; 2]>,
    residual: Buffer<f32>,
    normed: Buffer<T>,
    qkv: Buffer<T>,
    attended: Buffer<T>,
    delta: Buffer<T>,
    gate_up: Buffer<T>,
    act: Buffer<T>,
}

/// Attention of a batch, its plans on the device.
struct Work<'a> {
    prefill: Option<PlacedPrefill<'a>>,
    decode: Option<(PlacedDecode<'a>, Partials)>,
}

impl<D: Device, T: Elem, S: StoreElem<T>> Model<'_, D, T, S>
where
    f32: GemmOut<T>,
{
    fn by(&self) -> GemmBy {
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
        let group = self.config.group();
        // In `exact` every row goes through one kernel, so that it has one order of sums.
        let split = self.numerics == Numerics::Fast;
        let singles = batch.seqs(|c| split && !c.is_prefill && c.tokens.len() == 1);
        let others = batch.seqs(|c| !(split && !c.is_prefill && c.tokens.len() == 1));
        let prefill = PrefillPlan::new(&others, group)?;
        let keys = DecodePlan::balanced_split(&singles, DECODE_ITEMS);
        let decode = DecodePlan::new(&singles, keys)?;
        let work = self.place(&prefill, &decode, (!others.is_empty(), !singles.is_empty()))?;

        let s = self.scratch(batch)?;
        let tokens = self.device.input("tokens", &batch.tokens)?;
        let hidden = self.config.hidden;
        let embed = &self.weights.embed;
        ops::embed(
            self.device,
            embed,
            &tokens,
            &batch.tokens,
            hidden,
            &s.residual,
        )?;
        for index in 0..self.config.layers {
            self.layer(index, batch, &work, &s)?;
        }
        let inputs: Vec<_> = chunks.iter().map(Chunk::input).collect();
        let wanted = wanted_rows(&inputs);
        if !wanted.is_empty() {
            self.norm(&s, &self.weights.final_norm, true)?;
        }
        for tile in wanted.chunks(LOGIT_TILE) {
            self.logits(tile, &s, clock, sink, &mut timing.sink_ns)?;
        }
        Ok(timing)
    }

    fn place<'p>(
        &self,
        prefill: &'p PrefillPlan,
        decode: &'p DecodePlan,
        (has_prefill, has_decode): (bool, bool),
    ) -> Result<Work<'p>, KernelError> {
        let (q_heads, d_head) = (self.config.q_heads, self.config.d_head);
        Ok(Work {
            prefill: match has_prefill {
                true => Some(ops::place_prefill(self.device, prefill)?),
                false => None,
            },
            decode: match has_decode {
                true => Some((
                    ops::place_decode(self.device, decode)?,
                    Partials::new(self.device, decode.items(), q_heads, d_head)?,
                )),
                false => None,
            },
        })
    }

    fn scratch(&self, batch: &Batch<'_>) -> Result<Scratch<T>, KernelError> {
        let (d, c, rows) = (self.device, self.config, batch.tokens.len());
        Ok(Scratch {
            rows,
            positions: d.input("positions", &batch.positions)?,
            slots: d.input("slots", &batch.slots)?,
            residual: d.empty("residual", rows * c.hidden)?,
            normed: d.empty("normed", rows * c.hidden)?,
            qkv: d.empty("q k v", rows * (c.q_dim() + 2 * c.kv_dim()))?,
            attended: d.empty("attended", rows * c.q_dim())?,
            delta: d.empty("delta", rows * c.hidden)?,
            gate_up: d.empty("gate up", rows * 2 * c.ffn)?,
            act: d.empty("gated", rows * c.ffn)?,
        })
    }

    /// The norm of the residual stream, after `delta` was added to it if `add`.
    fn norm(&self, s: &Scratch<T>, weight: &Buffer<T>, add: bool) -> Result<(), KernelError> {
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
        batch: &Batch<'_>,
        work: &Work<'_>,
        s: &Scratch<T>,
    ) -> Result<(), KernelError> {
        let (device, c, by, m) = (self.device, self.config, self.by(), s.rows);
        let l: &Layer<T> = &self.weights.layers[index];
        let pool = &self.pool.layers[index];
        self.norm(s, &l.attn_norm, index > 0)?;
        ops::gemm(
            device,
            by,
            (&s.normed, m),
            &l.qkv,
            l.qkv_bias.as_ref(),
            &s.qkv,
        )?;
        let rope = RopeKv {
            q_heads: c.q_heads,
            cos: &self.weights.cos,
            sin: &self.weights.sin,
            positions: &batch.positions,
            slots: &batch.slots,
            on_device: (&s.positions, &s.slots),
        };
        ops::rope_kv(device, &s.qkv, &rope, pool)?;
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
        if let Some((placed, partials)) = &work.decode {
            ops::decode_placed(device, placed, &args, partials)?;
        }
        ops::gemm(device, by, (&s.attended, m), &l.o, None, &s.delta)?;
        self.norm(s, &l.mlp_norm, true)?;
        ops::gemm(device, by, (&s.normed, m), &l.gate_up, None, &s.gate_up)?;
        ops::silu_mul(device, &s.gate_up, c.ffn, &s.act)?;
        ops::gemm(device, by, (&s.act, m), &l.down, None, &s.delta)
    }

    /// Logits of one tile of wanted rows.
    fn logits(
        &self,
        tile: &[WantedRow],
        s: &Scratch<T>,
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
        sink_ns: &mut Nanos,
    ) -> Result<(), KernelError> {
        let (device, c) = (self.device, self.config);
        let mark = device.mark();
        let rows: Vec<u32> = tile.iter().map(|w| w.row as u32).collect();
        let picked = device.empty::<T>("picked rows", rows.len() * c.hidden)?;
        ops::gather_rows(device, &s.normed, &rows, c.hidden, &picked)?;
        let logits = device.empty::<f32>("logits", rows.len() * c.vocab)?;
        let picked = (&picked, rows.len());
        ops::gemm(device, self.by(), picked, &self.weights.head, None, &logits)?;
        let host = device.download(&logits)?;
        device.release(mark)?;
        let before = clock.now();
        for (w, row) in tile.iter().zip(host.chunks_exact(c.vocab)) {
            sink.row(w.seq, w.position, LogitRow::F32(row));
        }
        *sink_ns += clock.now() - before;
        Ok(())
    }
}
