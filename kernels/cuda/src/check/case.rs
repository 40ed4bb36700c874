//! One attention problem: sequences in one shuffled pool, and what must come out.

use super::formulas::{Head, attention};
use super::judge::Expected;
use super::values::{Rng, Stored, Value, typed};
use crate::device::{Device, DeviceExt};
use crate::error::{KernelError, require};
use crate::ops::{
    BatchSeq, DecodePlan, KvPool, KvShape, Partials, PrefillArgs, PrefillBy, PrefillPlan,
    PrefillSplitPlan, decode, decode_placed, place_decode, place_prefill, place_prefill_split,
    prefill, prefill_placed, prefill_placed_by, prefill_split_placed,
};

/// A chunk of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Tokens before it.
    pub prefix: usize,
    /// Its tokens.
    pub len: usize,
}

/// Sizes of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Dimension of a head.
    pub d: usize,
    /// Query heads for each key/value head.
    pub group: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Tokens of a block.
    pub block: usize,
}

/// Content of a problem, on the host.
pub struct Case<T, S> {
    sizes: Sizes,
    chunks: Vec<Chunk>,
    /// Rows of q lie among keys and values, as the projection leaves them; those are poison.
    qkv: Vec<T>,
    k: Vec<S>,
    v: Vec<S>,
    tables: Vec<Vec<u32>>,
    scales: [f32; 2],
}

impl<T: Value, S: Stored<T>> Case<T, S> {
    /// Random content; the same seed gives the same.
    pub fn new(seed: u64, sizes: Sizes, chunks: &[Chunk]) -> Self {
        let mut rng = Rng(seed);
        let Sizes {
            d, block, kv_heads, ..
        } = sizes;
        let q_width = sizes.group * kv_heads * d;
        let stride = q_width + 2 * kv_heads * d;
        let used: Vec<usize> = chunks
            .iter()
            .map(|c| (c.prefix + c.len).div_ceil(block))
            .collect();
        let blocks = used.iter().sum::<usize>() + 3;
        let mut ids: Vec<u32> = (0..blocks as u32).collect();
        rng.shuffle(&mut ids);
        let mut case = Case {
            sizes,
            chunks: chunks.to_vec(),
            qkv: Vec::new(),
            k: vec![S::poison(); blocks * block * kv_heads * d],
            v: vec![S::poison(); blocks * block * kv_heads * d],
            tables: Vec::new(),
            scales: if S::SCALED { [0.011, 0.007] } else { [1.0; 2] },
        };
        for (chunk, used) in chunks.iter().zip(used) {
            for _ in 0..chunk.len {
                case.qkv.extend(typed::<T>(&rng.values(q_width, 3.0)));
                case.qkv.extend(vec![T::of(f32::NAN); stride - q_width]);
            }
            case.tables.push(ids.split_off(ids.len() - used));
            let table = case.tables[case.tables.len() - 1].clone();
            for position in 0..chunk.prefix + chunk.len {
                case.fill(&mut rng, &table, position);
            }
        }
        case
    }

    /// Where dimension `i` of a key and of a value lie, by the definition of the layout.
    fn at(&self, table: &[u32], position: usize, head: usize, i: usize) -> [usize; 2] {
        let Sizes {
            d, block, kv_heads, ..
        } = self.sizes;
        let (slot, start) = (position % block, table[position / block] as usize * block);
        let base = (start * kv_heads + head * block) * d;
        [base + i * block + slot, base + slot * d + i]
    }

    fn fill(&mut self, rng: &mut Rng, table: &[u32], position: usize) {
        for head in 0..self.sizes.kv_heads {
            let values = rng.values(2 * self.sizes.d, 1.0);
            for i in 0..self.sizes.d {
                let [k, v] = self.at(table, position, head, i);
                self.k[k] = S::encode(values[2 * i], self.scales[0]);
                self.v[v] = S::encode(values[2 * i + 1], self.scales[1]);
            }
        }
    }

    /// The chunks as the wrappers want them.
    fn seqs(&self) -> Vec<BatchSeq<'_>> {
        let mut q_row = 0;
        let sequences = self.chunks.iter().zip(&self.tables);
        sequences
            .map(|(chunk, table)| {
                let seq = BatchSeq {
                    q_row,
                    q_len: chunk.len,
                    start_pos: chunk.prefix,
                    block_table: table,
                };
                q_row += chunk.len;
                seq
            })
            .collect()
    }

    fn q_heads(&self) -> usize {
        self.sizes.group * self.sizes.kv_heads
    }

    fn stride(&self) -> usize {
        (self.q_heads() + 2 * self.sizes.kv_heads) * self.sizes.d
    }

    /// What must come out: every row, head and dimension.
    pub fn expected(&self) -> Vec<Expected> {
        let mut out = Vec::new();
        let mut row = 0;
        for (chunk, table) in self.chunks.iter().zip(&self.tables) {
            let keys = chunk.prefix + chunk.len;
            let per_head: Vec<_> = (0..self.sizes.kv_heads)
                .map(|head| (0..keys).map(|p| self.token(table, p, head)).unzip())
                .collect::<Vec<(Vec<_>, Vec<_>)>>();
            for i in 0..chunk.len {
                for head in 0..self.q_heads() {
                    let at = row * self.stride() + head * self.sizes.d;
                    let q: Vec<f64> = self.qkv[at..][..self.sizes.d]
                        .iter()
                        .map(|x| x.f64())
                        .collect();
                    let (k, v) = &per_head[head / self.sizes.group];
                    let visible = chunk.prefix + i + 1;
                    out.extend(attention::<T>(&Head {
                        q: &q,
                        k: &k[..visible],
                        v: &v[..visible],
                    }));
                }
                row += 1;
            }
        }
        out
    }

    /// The only sequence's queries, keys and values: token by token, heads in order.
    pub fn rows(&self) -> [Vec<f32>; 3] {
        let (width, stride) = (self.q_heads() * self.sizes.d, self.stride());
        let queries = self.qkv.chunks_exact(stride).flat_map(|row| &row[..width]);
        let [mut k, mut v] = [Vec::new(), Vec::new()];
        for position in 0..self.chunks[0].prefix + self.chunks[0].len {
            for head in 0..self.sizes.kv_heads {
                let (key, value) = self.token(&self.tables[0], position, head);
                k.extend(key.into_iter().map(|x| x as f32));
                v.extend(value.into_iter().map(|x| x as f32));
            }
        }
        [queries.map(|x| x.f64() as f32).collect(), k, v]
    }

    /// Puts the only sequence on a device and hands `body` its kernel, to be launched as often as
    /// wanted: decode for a single query (in about 512 items), else prefill.
    ///
    /// # Errors
    /// As [`Case::prefill`].
    pub fn launches<R>(
        &self,
        device: &(impl Device + ?Sized),
        body: impl FnOnce(&mut dyn FnMut() -> Result<(), KernelError>) -> R,
    ) -> Result<R, KernelError> {
        let (seqs, mut result) = (self.seqs(), None);
        if self.chunks[0].len > 1 {
            let plan = PrefillPlan::new(&seqs, self.sizes.group)?;
            let placed = place_prefill(device, &plan)?;
            self.on_device(device, |args| {
                result = Some(body(&mut || prefill_placed(device, &placed, args)));
                prefill_placed(device, &placed, args)
            })?;
        } else {
            let plan = DecodePlan::new(&seqs, DecodePlan::balanced_split(&seqs, 512))?;
            let placed = place_decode(device, &plan)?;
            let partials = Partials::new(device, plan.items(), self.q_heads(), self.sizes.d)?;
            self.on_device(device, |args| {
                result = Some(body(&mut || {
                    decode_placed(device, &placed, args, &partials)
                }));
                decode_placed(device, &placed, args, &partials)
            })?;
        }
        // OK because either branch has called `body`.
        Ok(result.expect("the kernel was handed over"))
    }

    /// Key and value of a token and head.
    fn token(&self, table: &[u32], position: usize, head: usize) -> (Vec<f64>, Vec<f64>) {
        let places = (0..self.sizes.d).map(|i| self.at(table, position, head, i));
        let read = |[k, v]: [usize; 2]| {
            (
                self.k[k].decode(self.scales[0]),
                self.v[v].decode(self.scales[1]),
            )
        };
        places.map(read).unzip()
    }

    /// Puts the problem on a device and calls `run`; gives its output.
    fn on_device(
        &self,
        device: &(impl Device + ?Sized),
        run: impl FnOnce(&PrefillArgs<'_, T, S>) -> Result<(), KernelError>,
    ) -> Result<Vec<T>, KernelError> {
        let Sizes {
            d, block, kv_heads, ..
        } = self.sizes;
        let rows = self.qkv.len() / self.stride();
        let pool = KvPool {
            k: device.input("keys", &self.k)?,
            v: device.input("values", &self.v)?,
            shape: KvShape {
                block_size: block,
                kv_heads,
                d_head: d,
            },
            k_scale: self.scales[0],
            v_scale: self.scales[1],
        };
        let (q, out) = (
            device.input("qkv", &self.qkv)?,
            device.empty::<T>("out", rows * self.q_heads() * d)?,
        );
        run(&PrefillArgs {
            q: &q,
            q_stride: self.stride(),
            q_heads: self.q_heads(),
            pool: &pool,
            out: &out,
        })?;
        let left_out = device.unwritten(&out);
        require(left_out == 0, "check", "bytes left out", left_out, "none")?;
        device.download(&out)
    }

    /// The output of prefill, all chunks in one launch, by the kernel that the device takes.
    ///
    /// # Errors
    /// What the device says, and where part of the output was left out.
    pub fn prefill(&self, device: &(impl Device + ?Sized)) -> Result<Vec<T>, KernelError> {
        let plan = PrefillPlan::new(&self.seqs(), self.sizes.group)?;
        self.on_device(device, |args| prefill(device, &plan, args))
    }

    /// The same by a certain kernel.
    ///
    /// # Errors
    /// As [`Case::prefill`]; and when the device has not the kernel.
    pub fn prefill_by(
        &self,
        device: &(impl Device + ?Sized),
        by: PrefillBy,
    ) -> Result<Vec<T>, KernelError> {
        let plan = PrefillPlan::new(&self.seqs(), self.sizes.group)?;
        self.on_device(device, |args| {
            prefill_placed_by(device, by, &place_prefill(device, &plan)?, args)
        })
    }

    /// The output of prefill with the keys in ranges of `split`, all chunks in one launch.
    ///
    /// # Errors
    /// As [`Case::prefill`].
    pub fn prefill_split(
        &self,
        device: &(impl Device + ?Sized),
        split: usize,
    ) -> Result<Vec<T>, KernelError> {
        self.on_device(device, |args| {
            self.launch_split(device, &self.seqs(), split, args)
        })
    }

    fn launch_split(
        &self,
        device: &(impl Device + ?Sized),
        seqs: &[BatchSeq<'_>],
        split: usize,
        args: &PrefillArgs<'_, T, S>,
    ) -> Result<(), KernelError> {
        let plan = PrefillSplitPlan::new(seqs, self.sizes.group, split)?;
        let placed = place_prefill_split(device, &plan)?;
        let partials = Partials::new(device, plan.partials(), self.q_heads(), self.sizes.d)?;
        prefill_split_placed(device, &placed, args, &partials)?;
        let left_out = device.unwritten(&partials.o) + device.unwritten(&partials.max_sum);
        require(
            left_out == 0,
            "check",
            "partial bytes left out",
            left_out,
            "none",
        )
    }

    /// The output of decode, every sequence one query, in ranges of `split` keys.
    ///
    /// # Errors
    /// As [`Case::prefill`].
    pub fn decode(
        &self,
        device: &(impl Device + ?Sized),
        split: usize,
    ) -> Result<Vec<T>, KernelError> {
        let plan = DecodePlan::new(&self.seqs(), split)?;
        let partials = Partials::new(device, plan.items(), self.q_heads(), self.sizes.d)?;
        self.on_device(device, |args| decode(device, &plan, args, &partials))
    }

    /// The sequences one launch each, gathered row by row.
    ///
    /// # Errors
    /// As [`Case::prefill`].
    pub fn decode_each(
        &self,
        device: &(impl Device + ?Sized),
        split: usize,
    ) -> Result<Vec<T>, KernelError> {
        let (mut rows, width) = (Vec::new(), self.q_heads() * self.sizes.d);
        let all = DecodePlan::new(&self.seqs(), split)?;
        let partials = Partials::new(device, all.items(), self.q_heads(), self.sizes.d)?;
        for (i, seq) in self.seqs().into_iter().enumerate() {
            let plan = DecodePlan::new(&[seq], split)?;
            self.on_device(device, |args| {
                decode(device, &plan, args, &partials)?;
                rows.extend_from_slice(&device.download(args.out)?[i * width..(i + 1) * width]);
                // Fills the rest, for the check that everything was written.
                decode(device, &all, args, &partials)
            })?;
        }
        Ok(rows)
    }

    /// The only sequence in chunks of `lens`, one launch each, gathered row by row; with `split`,
    /// the keys of each in ranges of so many.
    ///
    /// # Errors
    /// As [`Case::prefill`].
    ///
    /// # Panics
    /// When `lens` do not add up to the chunk.
    pub fn prefill_in(
        &self,
        device: &(impl Device + ?Sized),
        lens: &[usize],
        split: Option<usize>,
    ) -> Result<Vec<T>, KernelError> {
        assert_eq!(lens.iter().sum::<usize>(), self.chunks[0].len);
        let (mut first, whole) = (0, self.seqs()[0]);
        let (mut rows, width) = (Vec::new(), self.q_heads() * self.sizes.d);
        self.on_device(device, |args| {
            for len in lens {
                let part = BatchSeq {
                    q_row: first,
                    q_len: *len,
                    start_pos: whole.start_pos + first,
                    ..whole
                };
                match split {
                    None => {
                        let plan = PrefillPlan::new(&[part], self.sizes.group)?;
                        prefill(device, &plan, args)?;
                    }
                    Some(split) => self.launch_split(device, &[part], split, args)?,
                }
                let out = device.download(args.out)?;
                rows.extend_from_slice(&out[first * width..(first + len) * width]);
                first += len;
            }
            Ok(())
        })?;
        Ok(rows)
    }
}
