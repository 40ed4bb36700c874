//! How long kernels take, on a device that has time.

mod adapters;
mod fp8;

use half::bf16;

use super::found::Found;
use super::suite::has_vendor_gemm;
use super::values::{Rng, typed};
use crate::device::{Buffer, Device, DeviceExt, VendorGemm};
use crate::error::KernelError;
use crate::ops::{
    self, BatchSeq, DecodePlan, GemmBy, KvPool, KvShape, Partials, PrefillArgs, PrefillBy,
    PrefillPlan, RopeKv, SampleRow, Stores,
};

/// Written between launches, so that none finds its inputs in the second-level cache.
const SCRUB_BYTES: usize = 256 << 20;

/// Launches of one measurement; the median counts.
const REPEATS: usize = 11;

/// Sets of inputs that launches take in turn.
const SETS: usize = 3;

/// One kernel at one shape, timed.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Kernel.
    pub kernel: &'static str,
    /// Shape, in words.
    pub shape: String,
    /// Median time of a launch in nanoseconds, inputs cold.
    pub median_ns: u64,
    /// Shortest and longest time in nanoseconds.
    pub range_ns: [u64; 2],
    /// Bytes that it must read and that it must write.
    pub traffic: [u64; 2],
    /// Floating-point operations that it must do.
    pub flops: u64,
}

impl Timed {
    /// Bytes that it must move.
    pub fn bytes(&self) -> u64 {
        self.traffic[0] + self.traffic[1]
    }

    /// How near it came to what bounds it.
    pub fn shares(&self, c: &Ceilings) -> Shares {
        let ns = self.median_ns.max(1) as f64;
        let gemm = c.gemm_flops_per_s.map(|g| self.flops as f64 / g * 1e9 / ns);
        Shares {
            of_read: self.bytes() as f64 / c.read_bytes_per_s * 1e9 / ns,
            of_copy: self.bytes() as f64 / c.copy_bytes_per_s * 1e9 / ns,
            of_memory: c.traffic_ns(self.traffic) / ns,
            of_product: gemm,
        }
    }
}

/// A launch's rates as shares of what the device reaches.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Of reading, as if it wrote nothing.
    pub of_read: f64,
    /// Of a copy, as if half of its bytes were written.
    pub of_copy: f64,
    /// Of its own mix of reads and writes: the one that says how good it is.
    pub of_memory: f64,
    /// Of the matrix product, if there is one to compare with.
    pub of_product: Option<f64>,
}

/// What the device reaches without our kernels.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// Bytes a second of reading alone.
    pub read_bytes_per_s: f64,
    /// Bytes a second of a large copy, reads and writes together.
    pub copy_bytes_per_s: f64,
    /// Operations a second of a large bf16 product by the vendor's library, if there is one.
    pub gemm_flops_per_s: Option<f64>,
}

impl Ceilings {
    /// The least time of `[read, written]` bytes in nanoseconds. Every byte written is copied from
    /// one that is read, at the rate of a copy; what more is read goes at the rate of reading. What
    /// more is written goes as a copy does: writing alone is not measured.
    fn traffic_ns(&self, [read, written]: [u64; 2]) -> f64 {
        let copied = 2 * read.min(written) + written.saturating_sub(read);
        let only_read = read.saturating_sub(written);
        let seconds =
            copied as f64 / self.copy_bytes_per_s + only_read as f64 / self.read_bytes_per_s;
        seconds * 1e9
    }
}

/// Times `work` with cold inputs; it is given the number of the set of inputs to take. `None` from
/// a device without time, which then runs nothing.
fn cold<D: Device + ?Sized>(
    device: &D,
    scrub: Buffer<u8>,
    mut work: impl FnMut(usize) -> Result<(), KernelError>,
) -> Result<Option<Vec<u64>>, KernelError> {
    if device.time_ns(&mut || Ok(()))?.is_none() {
        return Ok(None);
    }
    work(0)?; // Loads the kernel and chooses algorithms.
    let mut times = Vec::new();
    for i in 0..REPEATS {
        device.zero(scrub)?;
        times.extend(device.time_ns(&mut || work(i % SETS))?);
    }
    times.sort_unstable();
    Ok(Some(times))
}

/// Measures the ceilings; `None` from a device without time.
///
/// # Errors
/// When the device fails.
pub fn ceilings<D: Device + ?Sized>(device: &D) -> Result<Option<Ceilings>, KernelError> {
    if device.time_ns(&mut || Ok(()))?.is_none() {
        return Ok(None);
    }
    let mark = device.mark();
    let scrub = device.zeroed::<u8>("scrub", SCRUB_BYTES)?;
    // Half of 2 GiB to the other half, in blocks of 1 MiB.
    let (block, pairs) = (1usize << 20, 1024u32);
    let store = device.zeroed::<u8>("copied", 2 * pairs as usize * block)?;
    let stores = Stores::new(device, &[store], block)?;
    let list: Vec<[u32; 2]> = (0..pairs).map(|i| [i, pairs + i]).collect();
    let copy = cold(device, scrub, |_| ops::block_copy(device, &stores, &list))?;
    let all: Vec<u32> = (0..2 * pairs).collect();
    let sums = device.zeroed::<u64>("sums", all.len())?;
    let read = cold(device, scrub, |_| {
        ops::block_checksum(device, &stores, &all, &sums)
    })?;
    let n = 8192usize;
    let a = device.zeroed::<bf16>("a", n * n)?;
    let w = device.zeroed::<bf16>("w", n * n)?;
    let out = device.zeroed::<bf16>("out", n * n)?;
    let product = crate::device::Product {
        a: a.address(),
        w: w.address(),
        out: out.address(),
        mnk: [n; 3],
        elem: "bf16",
        out_elem: "bf16",
        scales: None,
    };
    let mut has = true;
    let gemm = cold(device, scrub, |_| {
        has = device.vendor_gemm(&product)? == VendorGemm::Computed;
        Ok(())
    })?;
    device.release(mark)?;
    let per_s = |work: f64, times: Option<Vec<u64>>| {
        times.map(|t| work * 1e9 / t[t.len() / 2].max(1) as f64)
    };
    // The copy reads one half and writes the other; the checksum reads both.
    let moved = 2.0 * f64::from(pairs) * block as f64;
    let flops = 2.0 * (n as f64).powi(3);
    let read = per_s(moved, read);
    Ok(per_s(moved, copy).map(|copy_bytes_per_s| Ceilings {
        // A checksum that waits for its arithmetic says too little of the memory.
        read_bytes_per_s: read.map_or(copy_bytes_per_s, |r| r.max(copy_bytes_per_s)),
        copy_bytes_per_s,
        gemm_flops_per_s: per_s(flops, gemm).filter(|_| has),
    }))
}

struct Timer<'a, D: ?Sized> {
    device: &'a D,
    scrub: Buffer<u8>,
    each: &'a mut dyn FnMut(Found),
}

/// Times every kernel at shapes of serving (8 billion parameters: hidden 4096, 32 query and 8
/// key/value heads of 128, feed-forward 14336) and hands each result to `each`. Nothing from a
/// device without time.
///
/// # Errors
/// When the device fails.
pub fn time_all<D: Device + ?Sized>(
    device: &D,
    each: &mut dyn FnMut(Found),
) -> Result<(), KernelError> {
    if device.time_ns(&mut || Ok(()))?.is_none() {
        return Ok(());
    }
    let mark = device.mark();
    let scrub = device.zeroed::<u8>("scrub", SCRUB_BYTES)?;
    let mut timer = Timer {
        device,
        scrub,
        each,
    };
    for rows in [1, 64, 512, 2048] {
        timer.rows(rows)?;
    }
    for rows in [1, 64, 512, 2048] {
        timer.products(rows)?;
        timer.fp8(rows)?;
    }
    for rows in [1, 64, 512] {
        timer.adapters(rows)?;
    }
    for (len, prefix) in [(512, 0), (512, 2048), (512, 8192), (2048, 0)] {
        timer.attention(1, len, prefix)?;
    }
    for (batch, keys) in [(1, 4096), (64, 1024), (64, 4096)] {
        timer.attention(batch, 1, keys - 1)?;
    }
    timer.blocks()?;
    timer.samples()?;
    device.release(mark)
}

/// Sizes of the model whose shapes are timed.
const HIDDEN: usize = 4096;
const FFN: usize = 14_336;
const VOCAB: usize = 128_256;
const Q_HEADS: usize = 32;
const KV: KvShape = KvShape {
    block_size: 16,
    kv_heads: 8,
    d_head: 128,
};

impl<D: Device + ?Sized> Timer<'_, D> {
    fn random(&self, name: &str, n: usize) -> Result<Buffer<bf16>, KernelError> {
        self.device
            .upload(name, &typed::<bf16>(&Rng(n as u64).values(n, 1.0)))
    }

    /// Times `work` and reports it; memory that it was given is given back by the caller.
    fn report(
        &mut self,
        kernel: &'static str,
        shape: String,
        [read, written, flops]: [usize; 3],
        work: impl FnMut(usize) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let times = cold(self.device, self.scrub, work)?.unwrap_or_default();
        if let [first, .., last] = times[..] {
            (self.each)(Found::Timed(Timed {
                kernel,
                shape,
                median_ns: times[times.len() / 2],
                range_ns: [first, last],
                traffic: [read as u64, written as u64],
                flops: flops as u64,
            }));
        }
        Ok(())
    }

    fn rows(&mut self, rows: usize) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        let weight = self.random("weight", HIDDEN)?;
        let x = d.zeroed::<f32>("x", SETS * rows * HIDDEN)?;
        let part = |set: usize| x.slice(set * rows * HIDDEN, rows * HIDDEN);
        let (delta, out) = (
            self.random("delta", rows * HIDDEN)?,
            d.zeroed::<bf16>("out", rows * HIDDEN)?,
        );
        let (shape, elems) = (format!("{rows}x{HIDDEN}"), rows * HIDDEN);
        self.report(
            "rmsnorm",
            shape.clone(),
            [4 * elems, 2 * elems, 4 * elems],
            |i| ops::rmsnorm(d, &part(i), &weight, 1e-5, &out),
        )?;
        self.report(
            "add_rmsnorm",
            shape,
            [6 * elems, 6 * elems, 5 * elems],
            |i| ops::add_rmsnorm(d, &part(i), &delta, &weight, 1e-5, &out),
        )?;
        let gate_up = self.random("gate up", SETS * rows * 2 * FFN)?;
        let act = d.zeroed::<bf16>("act", rows * FFN)?;
        let (shape, elems) = (format!("{rows}x{FFN}"), rows * FFN);
        self.report("silu_mul", shape, [4 * elems, 2 * elems, 5 * elems], |i| {
            let from = gate_up.slice(i * 2 * elems, 2 * elems);
            ops::silu_mul(d, &from, FFN, &act)
        })?;
        let table = self.random("table", 4096 * HIDDEN)?;
        let ids: Vec<u32> = (0..rows as u32).map(|i| i * 97 % 4096).collect();
        let tokens = d.input("tokens", &ids)?;
        let (to, elems) = (part(0), rows * HIDDEN);
        self.report(
            "embed",
            format!("{rows}x{HIDDEN}"),
            [2 * elems, 4 * elems, 0],
            |_| ops::embed(d, &table, &tokens, &ids, HIDDEN, &to),
        )?;
        d.release(mark)
    }

    fn products(&mut self, m: usize) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        let has_vendor = has_vendor_gemm(d)?;
        for (n, k) in [
            (6144, HIDDEN),
            (HIDDEN, HIDDEN),
            (2 * FFN, HIDDEN),
            (HIDDEN, FFN),
        ] {
            let inner = d.mark();
            let (a, w) = (self.random("a", m * k)?, self.random("w", n * k)?);
            let out = d.zeroed::<bf16>("out", m * n)?;
            let work = [2 * (m * k + n * k), 2 * m * n, 2 * m * n * k];
            for (kernel, by) in [("gemm", GemmBy::Kernel), ("gemm vendor", GemmBy::Vendor)] {
                if by == GemmBy::Vendor && !has_vendor {
                    continue;
                }
                self.report(kernel, format!("{m}x{n}x{k}"), work, |_| {
                    ops::gemm(d, by, (&a, m), &w, None, &out)
                })?;
            }
            d.release(inner)?;
        }
        d.release(mark)
    }

    /// `batch` sequences of `len` queries after `prefix` tokens; a single query is decode.
    fn attention(&mut self, batch: usize, len: usize, prefix: usize) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        let (per_seq, stride) = (
            (prefix + len).div_ceil(KV.block_size),
            (Q_HEADS + 2 * KV.kv_heads) * KV.d_head,
        );
        let elems = batch * per_seq * KV.block_elems();
        let pool = KvPool {
            k: self.random("keys", elems)?,
            v: self.random("values", elems)?,
            shape: KV,
            k_scale: 1.0,
            v_scale: 1.0,
        };
        let rows = batch * len;
        let qkv = self.random("q k v", rows * stride)?;
        let out = d.zeroed::<bf16>("out", rows * Q_HEADS * KV.d_head)?;
        // Blocks of the sequences lie among one another.
        let tables: Vec<Vec<u32>> = (0..batch)
            .map(|s| (0..per_seq).map(|i| (i * batch + s) as u32).collect())
            .collect();
        let seqs: Vec<BatchSeq<'_>> = tables
            .iter()
            .enumerate()
            .map(|(i, table)| BatchSeq {
                q_row: i * len,
                q_len: len,
                start_pos: prefix,
                block_table: table,
            })
            .collect();
        let args = PrefillArgs {
            q: &qkv,
            q_stride: stride,
            q_heads: Q_HEADS,
            pool: &pool,
            out: &out,
        };
        let pairs = batch * (len * prefix + len * (len + 1) / 2);
        let kv_bytes = 4 * batch * (prefix + len) * KV.kv_heads * KV.d_head;
        let q_bytes = 2 * rows * Q_HEADS * KV.d_head;
        let work = [kv_bytes + q_bytes, q_bytes, 4 * pairs * Q_HEADS * KV.d_head];
        let shape = format!("{batch}x{len}@{prefix}");
        if len > 1 {
            let plan = PrefillPlan::new(&seqs, Q_HEADS / KV.kv_heads)?;
            let placed = ops::place_prefill(d, &plan)?;
            for by in [PrefillBy::Mma, PrefillBy::Wgmma] {
                if by == PrefillBy::Mma || d.has_wgmma() {
                    self.report(by.name(), shape.clone(), work, |_| {
                        ops::prefill_placed_by(d, by, &placed, &args)
                    })?;
                }
            }
            self.rotation(&qkv, &pool, &tables, prefix, len)?;
        } else {
            let plan = DecodePlan::new(&seqs, DecodePlan::balanced_split(&seqs, 512))?;
            let placed = ops::place_decode(d, &plan)?;
            let partials = Partials::new(d, plan.items(), Q_HEADS, KV.d_head)?;
            self.report("decode", shape, work, |_| {
                ops::decode_placed(d, &placed, &args, &partials)
            })?;
        }
        d.release(mark)
    }

    fn rotation(
        &mut self,
        qkv: &Buffer<bf16>,
        pool: &KvPool<bf16>,
        tables: &[Vec<u32>],
        prefix: usize,
        len: usize,
    ) -> Result<(), KernelError> {
        let (d, half) = (self.device, KV.d_head / 2);
        let positions: Vec<u32> = (0..len).map(|i| (prefix + i) as u32).collect();
        let slot = |p: &u32| {
            let p = *p as usize;
            [tables[0][p / KV.block_size], (p % KV.block_size) as u32]
        };
        let slots: Vec<[u32; 2]> = positions.iter().map(slot).collect();
        let table = vec![1.0f32; (prefix + len) * half];
        let args = RopeKv {
            q_heads: Q_HEADS,
            cos: &d.input("cos", &table)?,
            sin: &d.input("sin", &table)?,
            positions: &positions,
            slots: &slots,
            on_device: (
                &d.input("positions", &positions)?,
                &d.input("slots", &slots)?,
            ),
        };
        let elems = len * (2 * Q_HEADS + 4 * KV.kv_heads) * KV.d_head;
        let flops = 3 * len * (Q_HEADS + KV.kv_heads) * KV.d_head;
        self.report(
            "rope_kv",
            format!("{len}@{prefix}"),
            [elems, elems, flops],
            |_| ops::rope_kv(d, qkv, &args, pool),
        )
    }

    fn blocks(&mut self) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        let (block_bytes, blocks, chosen) = (KV.block_elems() * 2, 256usize, 64u32);
        let sides: Vec<Buffer<u8>> = (0..64)
            .map(|_| d.zeroed("store", blocks * block_bytes))
            .collect::<Result<_, _>>()?;
        let stores = Stores::new(d, &sides, block_bytes)?;
        let moved = chosen as usize * stores.staged_bytes();
        let staging = d.zeroed::<u8>("staging", moved)?;
        let sums = d.zeroed::<u64>("sums", chosen as usize * sides.len())?;
        let list: Vec<u32> = (0..chosen).map(|i| i * 3).collect();
        let pairs: Vec<[u32; 2]> = (0..chosen).map(|i| [i * 2, i * 2 + 1]).collect();
        let shape = || format!("{chosen} blocks of 32 layers");
        self.report("block_copy", shape(), [moved, moved, 0], |_| {
            ops::block_copy(d, &stores, &pairs)
        })?;
        self.report("block_gather", shape(), [moved, moved, 0], |_| {
            ops::block_gather(d, &stores, &list, &staging)
        })?;
        self.report("block_scatter", shape(), [moved, moved, 0], |_| {
            ops::block_scatter(d, &stores, &list, &staging)
        })?;
        self.report("block_checksum", shape(), [moved, 0, 0], |_| {
            ops::block_checksum(d, &stores, &list, &sums)
        })?;
        d.release(mark)
    }

    fn samples(&mut self) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        for rows in [1usize, 64] {
            let logits = d.upload("logits", &Rng(4).values(rows * VOCAB, 8.0))?;
            let out = d.zeroed::<u32>("out", rows)?;
            let row = SampleRow {
                temperature: 0.8,
                top_k: 50,
                top_p: 0.95,
                forbidden: &[],
                key: [3; 32],
                draw: 0,
            };
            let all = vec![row; rows];
            let shape = format!("{rows}x{VOCAB} top-k top-p");
            self.report("sample_rows", shape, [4 * rows * VOCAB, 0, 0], |_| {
                ops::sample(d, &logits, &all, &out)
            })?;
        }
        d.release(mark)
    }
}

#[cfg(test)]
mod tests;
