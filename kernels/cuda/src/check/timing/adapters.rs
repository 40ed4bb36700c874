//! Times of the kernels of adapters.

use half::bf16;

use super::{HIDDEN, KV, Q_HEADS, Timer};
use crate::check::values::Rng;
use crate::device::{Device, DeviceExt};
use crate::error::KernelError;
use crate::ops::{self, LoraColumns, LoraDelta, LoraPlan, LoraSite};

impl<D: Device + ?Sized> Timer<'_, D> {
    /// Four adapters of rank 16 on the rows of queries, keys and values, in turn.
    pub(super) fn adapters(&mut self, rows: usize) -> Result<(), KernelError> {
        const RANK: usize = 16;
        let (d, mark) = (self.device, self.device.mark());
        let (count, adapters) = (Q_HEADS * KV.d_head, rows.min(4));
        let kv = KV.kv_heads * KV.d_head;
        let columns = [(0, count), (count, kv), (count + kv, kv)]
            .map(|(first, count)| LoraColumns { first, count });
        let mut rng = Rng(5);
        let mut delta = |c: &LoraColumns| {
            let (a, b) = (
                rng.values(RANK * HIDDEN, 1.0),
                rng.values(c.count * RANK, 1.0),
            );
            LoraDelta::<bf16>::place(d, (&a, &b), RANK, 1.0).map(Some)
        };
        let deltas = (0..adapters)
            .map(|_| columns.iter().map(&mut delta).collect())
            .collect::<Result<Vec<Vec<_>>, _>>()?;
        let site = LoraSite::new(d, HIDDEN, &columns, &deltas)?;
        let of_rows: Vec<Option<usize>> = (0..rows).map(|r| Some(r % adapters)).collect();
        let plan = LoraPlan::new(&of_rows);
        let placed = ops::place_lora(d, &plan)?;
        let width = count + 2 * kv;
        let (x, out) = (
            self.random("x", rows * HIDDEN)?,
            d.zeroed::<bf16>("out", rows * width)?,
        );
        let inner = d.zeroed::<bf16>("inner", site.inner_len(rows))?;
        let (weights, values) = (adapters * RANK, rows * RANK);
        let shape = format!("{rows}x{HIDDEN}, {adapters} of rank {RANK}");
        let read = 2 * (3 * weights * HIDDEN + rows * HIDDEN);
        let work = [read, 2 * 3 * values, 6 * values * HIDDEN];
        self.report("lora_shrink", shape.clone(), work, |_| {
            ops::lora_shrink(d, &placed, &site, &x, &inner)
        })?;
        // The product's outputs are read and written back.
        let read = 2 * (weights * width + rows * width + 3 * values);
        let work = [read, 2 * rows * width, 2 * values * width];
        self.report("lora_expand", shape, work, |_| {
            ops::lora_expand(d, &placed, &site, &inner, &out)
        })?;
        d.release(mark)
    }
}
