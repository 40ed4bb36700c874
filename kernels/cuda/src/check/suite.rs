//! Every kernel at many shapes, on any device.

use half::{bf16, f16};

use super::case::{Case, Chunk, Sizes};
use super::formulas::{product, rmsnorm, rotate, silu_mul};
use super::found::{Found, NotAvailable};
use super::judge::{Expected, Verdict, judge};
use super::values::{Rng, Stored, Value, f64s, typed};
use crate::device::{Device, DeviceExt, Product, VendorGemm};
use crate::elem::{E4m3, Elem, GemmOut};
use crate::error::KernelError;
use crate::ops::{self, GemmBy, KvPool, KvShape, PrefillBy, RopeKv};

/// A kernel at one shape, judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Kernel.
    pub kernel: String,
    /// Shape, in words.
    pub shape: String,
    /// Outputs compared.
    pub outputs: usize,
    /// How far off it was, or what stopped it.
    pub outcome: Result<Verdict, String>,
}

impl Judged {
    /// Whether it is right.
    pub fn passes(&self) -> bool {
        self.outcome.as_ref().is_ok_and(Verdict::passes)
    }
}

/// What came out and what must.
pub(super) type Compared = (Vec<f64>, Vec<Expected>);

pub(super) struct Suite<'a, D: ?Sized> {
    pub(super) device: &'a D,
    each: &'a mut dyn FnMut(Found),
}

/// Validates all kernels on `device` and hands each result to `each`; `full` adds long prefixes
/// and large products, which an emulated device takes minutes for.
///
/// # Errors
/// When the device fails; a kernel that is wrong, or that a checking device stops, is a result, and
/// so is a vendor's library that refuses a call.
pub fn validate<D: Device + ?Sized>(
    device: &D,
    full: bool,
    each: &mut dyn FnMut(Found),
) -> Result<(), KernelError> {
    let mut suite = Suite { device, each };
    suite.rows::<bf16>()?;
    suite.rows::<f16>()?;
    suite.products::<bf16>(full)?;
    suite.products::<f16>(full)?;
    super::fp8::rows::<bf16, D>(&mut suite)?;
    super::fp8::rows::<f16, D>(&mut suite)?;
    super::fp8::products(&mut suite, full)?;
    super::lora::adapters::<bf16, D>(&mut suite, full)?;
    super::lora::adapters::<f16, D>(&mut suite, full)?;
    suite.rotation::<bf16>()?;
    suite.rotation::<f16>()?;
    suite.attention(full)?;
    super::memory::blocks(&mut suite)?;
    super::memory::samples(&mut suite)
}

/// Outputs that must be equal.
pub(super) fn equal<T: PartialEq>(got: &[T], want: &[T]) -> Compared {
    let exact = Expected {
        exact: 0.0,
        naive: 0.0,
        f32_bound: 0.0,
        bound: 0.0,
    };
    let mut wrong: Vec<f64> = got
        .iter()
        .zip(want)
        .map(|(g, w)| f64::from(u8::from(g != w)))
        .collect();
    if got.len() != want.len() {
        wrong.push(1.0);
    }
    let expected = vec![exact; wrong.len()];
    (wrong, expected)
}

impl<D: Device + ?Sized> Suite<'_, D> {
    /// Runs one check and reports it; memory that it took is given back.
    pub(super) fn one(
        &mut self,
        kernel: &str,
        shape: String,
        run: impl FnOnce(&D) -> Result<Compared, KernelError>,
    ) -> Result<(), KernelError> {
        let mark = self.device.mark();
        let (outputs, outcome) = match run(self.device) {
            Ok((got, want)) => (got.len(), Ok(judge(&got, &want))),
            Err(
                e @ (KernelError::Fault(_)
                | KernelError::Argument { .. }
                | KernelError::Vendor { .. }),
            ) => (0, Err(e.to_string())),
            Err(e) => return Err(e),
        };
        self.device.release(mark)?;
        (self.each)(Found::Judged(Judged {
            kernel: kernel.to_owned(),
            shape,
            outputs,
            outcome,
        }));
        Ok(())
    }

    /// Reports that a check was not run.
    pub(super) fn not_available(&mut self, kernel: &'static str, shape: String, why: &'static str) {
        (self.each)(Found::NotAvailable(NotAvailable { kernel, shape, why }));
    }

    /// Operations on rows.
    fn rows<T: Value>(&mut self) -> Result<(), KernelError> {
        for (rows, hidden) in [(1, 8), (3, 576), (2, 4096)] {
            let shape = format!("{} {rows}x{hidden}", T::NAME);
            let mut rng = Rng(hidden as u64);
            let table: Vec<T> = typed(&rng.values(5 * hidden, 1.0));
            let tokens: Vec<u32> = (0..rows as u32).map(|i| 4 - i).collect();
            let chosen: Vec<T> = tokens
                .iter()
                .flat_map(|t| table[*t as usize * hidden..][..hidden].to_vec())
                .collect();
            self.one("embed", shape.clone(), |d| {
                let (from, ids) = (d.input("table", &table)?, d.input("tokens", &tokens)?);
                let out = d.empty::<f32>("out", rows * hidden)?;
                ops::embed(d, &from, &ids, &tokens, hidden, &out)?;
                let want: Vec<f32> = chosen.iter().map(|x| x.f64() as f32).collect();
                Ok(equal(&d.download(&out)?, &want))
            })?;
            self.one("gather_rows", shape.clone(), |d| {
                let from = d.input("from", &table)?;
                let out = d.empty::<T>("out", rows * hidden)?;
                ops::gather_rows(d, &from, &tokens, hidden, &out)?;
                Ok(equal(&d.download(&out)?, &chosen))
            })?;
            self.norms::<T>(rows, hidden, &shape)?;
            self.one("silu_mul", shape, |d| {
                let host: Vec<T> = typed(&Rng(3).values(rows * 2 * hidden, 9.0));
                let gate_up = d.input("gate up", &host)?;
                let out = d.empty::<T>("out", rows * hidden)?;
                ops::silu_mul(d, &gate_up, hidden, &out)?;
                let pairs = host
                    .chunks_exact(2 * hidden)
                    .flat_map(|row| row[..hidden].iter().zip(&row[hidden..]));
                let want = pairs
                    .map(|(g, u)| silu_mul::<T>(g.f64(), u.f64()))
                    .collect();
                Ok((f64s(&d.download(&out)?), want))
            })?;
        }
        Ok(())
    }

    fn norms<T: Value>(&mut self, rows: usize, h: usize, shape: &str) -> Result<(), KernelError> {
        let (mut rng, eps) = (Rng(h as u64 + 1), 1e-5f32);
        let x = rng.values(rows * h, 4.0);
        let delta: Vec<T> = typed(&rng.values(rows * h, 2.0));
        let weight: Vec<T> = typed(&rng.values(h, 1.0));
        let want = |x: &[f32]| -> Vec<Expected> {
            let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let row = |row: &[f64]| rmsnorm::<T>(row, &f64s(&weight), f64::from(eps));
            x.chunks_exact(h).flat_map(row).collect()
        };
        self.one("rmsnorm", shape.to_owned(), |d| {
            let (x_there, w) = (d.upload("x", &x)?, d.input("weight", &weight)?);
            let out = d.empty::<T>("out", rows * h)?;
            ops::rmsnorm(d, &x_there, &w, eps, &out)?;
            Ok((f64s(&d.download(&out)?), want(&x)))
        })?;
        self.one("add_rmsnorm", shape.to_owned(), |d| {
            let (x_there, w) = (d.upload("x", &x)?, d.input("weight", &weight)?);
            let added = d.input("delta", &delta)?;
            let out = d.empty::<T>("out", rows * h)?;
            ops::add_rmsnorm(d, &x_there, &added, &w, eps, &out)?;
            let both = x.iter().zip(&delta);
            let sums: Vec<f32> = both.map(|(x, d)| x + d.f64() as f32).collect();
            let (mut got, mut expected) = equal(&d.download(&x_there)?, &sums);
            got.extend(f64s(&d.download(&out)?));
            expected.extend(want(&sums));
            Ok((got, expected))
        })
    }

    /// Matrix products, by our kernel and by the vendor's library where there is one.
    fn products<T: Value + Into<f64>>(&mut self, full: bool) -> Result<(), KernelError>
    where
        f32: GemmOut<T>,
    {
        let mut shapes: Vec<[usize; 3]> =
            vec![[1, 64, 64], [17, 66, 72], [65, 130, 200], [3, 960, 576]];
        if full {
            shapes.extend([[512, 576, 1536], [200, 1024, 4096]]);
        }
        for [m, n, k] in shapes {
            for (by, name) in [(GemmBy::Kernel, "gemm"), (GemmBy::Vendor, "gemm vendor")] {
                // A library gives no guarantee below 16-byte rows of the result.
                let skipped = by == GemmBy::Vendor && !n.is_multiple_of(8);
                if skipped || (by == GemmBy::Vendor && !has_vendor_gemm(self.device)?) {
                    continue;
                }
                let shape = format!("{} {m}x{n}x{k}", T::NAME);
                self.product::<T, T>(name, &shape, by, [m, n, k])?;
                self.product::<T, f32>(name, &format!("{shape} to f32"), by, [m, n, k])?;
            }
        }
        Ok(())
    }

    fn product<T: Value, O: GemmOut<T> + Into<f64>>(
        &mut self,
        name: &str,
        shape: &str,
        by: GemmBy,
        [m, n, k]: [usize; 3],
    ) -> Result<(), KernelError> {
        self.one(name, shape.to_owned(), |d| {
            let mut rng = Rng((m + n * k) as u64);
            let a: Vec<T> = typed(&rng.values(m * k, 2.0));
            let w: Vec<T> = typed(&rng.values(n * k, 1.0));
            let (left, right) = (d.input("a", &a)?, d.input("w", &w)?);
            let out = d.empty::<O>("out", m * n)?;
            ops::gemm(d, by, (&left, m), &right, None, &out)?;
            let (a, w, wide) = (f64s(&a), f64s(&w), O::SUFFIX == "_f32");
            let one = |i: usize| {
                let (a, row) = (&a[i / n * k..][..k], &w[i % n * k..][..k]);
                product::<T>(a, row, 0.0, wide)
            };
            let got = d.download(&out)?.into_iter().map(Into::into).collect();
            Ok((got, (0..m * n).map(one).collect()))
        })
    }

    /// Rotation, and the write into blocks.
    fn rotation<T: Value>(&mut self) -> Result<(), KernelError> {
        for (q_heads, kv_heads, d_head) in [(3, 1, 64), (8, 2, 128)] {
            let shape = KvShape {
                block_size: 8,
                kv_heads,
                d_head,
            };
            let (half, width) = (d_head / 2, (q_heads + 2 * kv_heads) * d_head);
            let table = |f: fn(f64) -> f64| -> Vec<f32> {
                let row = |p: u32| (0..half).map(move |i| f(angle(p, i, d_head)) as f32);
                (0..=2048).flat_map(row).collect()
            };
            let host: Vec<T> = typed(&Rng(5).values(POSITIONS.len() * width, 2.0));
            let name = format!("{} {q_heads}+{kv_heads} heads of {d_head}", T::NAME);
            let turn = Turn {
                q_heads,
                shape,
                host: &host,
            };
            self.one("rope_kv", name, |d| {
                let qkv = d.upload("qkv", &host)?;
                let blank = vec![T::of(0.0); 4 * shape.block_elems()];
                let pool = KvPool {
                    k: d.upload("keys", &blank)?,
                    v: d.upload("values", &blank)?,
                    shape,
                    k_scale: 1.0,
                    v_scale: 1.0,
                };
                let args = RopeKv {
                    q_heads,
                    cos: &d.input("cos", &table(f64::cos))?,
                    sin: &d.input("sin", &table(f64::sin))?,
                    positions: &POSITIONS,
                    slots: &SLOTS,
                    on_device: (
                        &d.input("positions", &POSITIONS)?,
                        &d.input("slots", &SLOTS)?,
                    ),
                };
                ops::rope_kv(d, &qkv, &args, &pool)?;
                let (q, k) = (d.download(&qkv)?, d.download(&pool.k)?);
                let v = d.download(&pool.v)?;
                Ok(turn.compare(&q, &k, &v))
            })?;
        }
        Ok(())
    }

    /// Prefill and decode over the paged store.
    fn attention(&mut self, full: bool) -> Result<(), KernelError> {
        // Head dimension, group, block size, prefix and length.
        let mut shapes = vec![
            [64, 3, 16, 0, 17],
            [64, 3, 16, 33, 40],
            [64, 1, 8, 130, 16],
            [128, 4, 32, 1, 65],
            [128, 8, 16, 200, 1],
        ];
        if full {
            shapes.extend([
                [64, 4, 16, 2048, 128],
                [128, 8, 16, 511, 128],
                [128, 1, 64, 0, 257],
            ]);
        }
        for [d, group, block, prefix, len] in shapes {
            let sizes = Sizes {
                d,
                group,
                kv_heads: 2,
                block,
            };
            let chunks = [Chunk { prefix, len }, Chunk { prefix: 3, len: 2 }];
            self.prefill::<bf16, bf16>(sizes, &chunks)?;
            self.prefill::<f16, f16>(sizes, &chunks)?;
            self.prefill::<bf16, E4m3>(sizes, &chunks)?;
            self.split::<bf16, bf16>(sizes, &chunks)?;
            self.split::<f16, f16>(sizes, &chunks)?;
            self.split::<bf16, E4m3>(sizes, &chunks)?;
            let singles = [prefix + len, 63, 0].map(|prefix| Chunk { prefix, len: 1 });
            self.decode::<bf16, bf16>(sizes, &singles)?;
            self.decode::<f16, f16>(sizes, &singles)?;
            self.decode::<bf16, E4m3>(sizes, &singles)?;
        }
        Ok(())
    }

    fn prefill<T: Value, S: Stored<T>>(
        &mut self,
        sizes: Sizes,
        chunks: &[Chunk],
    ) -> Result<(), KernelError> {
        let case = Case::<T, S>::new(1, sizes, chunks);
        let Chunk { prefix, len } = chunks[0];
        let shape = format!(
            "{}{} {} {len}@{prefix}",
            T::NAME,
            S::SUFFIX,
            in_words(sizes)
        );
        for by in [PrefillBy::Mma, PrefillBy::Wgmma] {
            if by.takes::<T, S>() && (by == PrefillBy::Mma || self.device.has_wgmma()) {
                self.one(by.name(), shape.clone(), |d| {
                    Ok((f64s(&case.prefill_by(d, by)?), case.expected()))
                })?;
            }
        }
        Ok(())
    }

    fn split<T: Value, S: Stored<T>>(
        &mut self,
        sizes: Sizes,
        chunks: &[Chunk],
    ) -> Result<(), KernelError> {
        let case = Case::<T, S>::new(3, sizes, chunks);
        let Chunk { prefix, len } = chunks[0];
        let name = in_words(sizes);
        let shape = format!("{}{} {name} {len}@{prefix} split 64", T::NAME, S::SUFFIX);
        self.one("prefill_split", shape, |d| {
            Ok((f64s(&case.prefill_split(d, 64)?), case.expected()))
        })
    }

    fn decode<T: Value, S: Stored<T>>(
        &mut self,
        sizes: Sizes,
        chunks: &[Chunk],
    ) -> Result<(), KernelError> {
        let case = Case::<T, S>::new(2, sizes, chunks);
        let (name, keys) = (in_words(sizes), chunks[0].prefix + 1);
        let shape = format!("{}{} {name} {keys} keys", T::NAME, S::SUFFIX);
        self.one("decode", shape, |d| {
            Ok((f64s(&case.decode(d, 64)?), case.expected()))
        })
    }
}

/// Whether the device has a vendor's library for products.
pub(super) fn has_vendor_gemm<D: Device + ?Sized>(device: &D) -> Result<bool, KernelError> {
    let mark = device.mark();
    let x = device.input("x", &[bf16::ONE; 16 * 16])?;
    let out = device.upload("out", &[bf16::ZERO; 16 * 16])?;
    let said = device.vendor_gemm(&Product {
        a: x.address(),
        w: x.address(),
        out: out.address(),
        mnk: [16, 16, 16],
        elem: bf16::NAME,
        out_elem: bf16::NAME,
        scales: None,
    })?;
    device.release(mark)?;
    Ok(said == VendorGemm::Computed)
}

pub(super) fn in_words(s: Sizes) -> String {
    format!("d{} group {} block {}", s.d, s.group, s.block)
}

const POSITIONS: [u32; 4] = [0, 1, 511, 2048];
const SLOTS: [[u32; 2]; 4] = [[3, 0], [0, 7], [1, 2], [0, 0]];

/// The angle of a pair at a position, theta 10,000.
fn angle(position: u32, pair: usize, d_head: usize) -> f64 {
    f64::from(position) * 10_000f64.powf(-(2.0 * pair as f64) / d_head as f64)
}

/// Rows at [`POSITIONS`] that go to [`SLOTS`].
struct Turn<'a, T> {
    q_heads: usize,
    shape: KvShape,
    host: &'a [T],
}

impl<T: Value> Turn<'_, T> {
    /// Rotated queries and keys, and values as they were, against the formula.
    fn compare(&self, q: &[T], k: &[T], v: &[T]) -> Compared {
        let KvShape {
            block_size,
            kv_heads,
            d_head,
        } = self.shape;
        let (half, width) = (d_head / 2, (self.q_heads + 2 * kv_heads) * d_head);
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for (row, [block, slot]) in SLOTS.into_iter().enumerate() {
            let (start, slot) = (block as usize * self.shape.block_elems(), slot as usize);
            for i in 0..(self.q_heads + kv_heads) * half {
                let (head, pair) = (i / half, i % half);
                let at = row * width + head * d_head + pair;
                let (a, b) = (self.host[at].f64(), self.host[at + half].f64());
                want.extend(rotate::<T>(a, b, angle(POSITIONS[row], pair, d_head)));
                got.extend(if head < self.q_heads {
                    [q[at].f64(), q[at + half].f64()]
                } else {
                    let first = (head - self.q_heads) * d_head + pair;
                    let key = |dim: usize| k[start + dim * block_size + slot].f64();
                    [key(first), key(first + half)]
                });
            }
            for i in 0..kv_heads * d_head {
                let (head, dim) = (i / d_head, i % d_head);
                let stored = v[start + (head * block_size + slot) * d_head + dim];
                let given = self.host[row * width + (self.q_heads + kv_heads) * d_head + i];
                let (wrong, exact) = equal(&[stored], &[given]);
                got.extend(wrong);
                want.extend(exact);
            }
        }
        (got, want)
    }
}
