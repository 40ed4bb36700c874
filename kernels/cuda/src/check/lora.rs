//! Adapters of low rank: a batch whose rows have several adapters or none, and what must come out.

use super::formulas::{product, scaled_product};
use super::suite::{Compared, Suite, equal};
use super::values::{Rng, Value, f64s, typed};
use crate::device::{Device, DeviceExt};
use crate::error::KernelError;
use crate::ops::{
    LoraColumns, LoraDelta, LoraPlan, LoraSite, lora_expand, lora_shrink, place_lora,
};

/// `a`, `b`, rank and scale of one change.
type Delta = (Vec<f32>, Vec<f32>, usize, f32);

/// A problem on the host.
pub struct LoraCase<T> {
    inputs: usize,
    columns: Vec<LoraColumns>,
    /// `[adapter][part]`.
    deltas: Vec<Vec<Option<Delta>>>,
    /// Adapter of every row.
    adapters: Vec<Option<usize>>,
    x: Vec<T>,
    out: Vec<T>,
    out_width: usize,
}

impl<T: Value> LoraCase<T> {
    /// Random content. `ranks` are, adapter by adapter, those of the parts, 0 where a part is left
    /// alone; parts have `outputs` columns each, two columns apart.
    pub fn new(
        seed: u64,
        inputs: usize,
        outputs: &[usize],
        ranks: &[Vec<usize>],
        adapters: &[Option<usize>],
    ) -> Self {
        let mut rng = Rng(seed);
        let (mut columns, mut out_width) = (Vec::new(), 2);
        for count in outputs.iter().copied() {
            let first = out_width;
            columns.push(LoraColumns { first, count });
            out_width += count + 2;
        }
        let low = |values: Vec<f32>| -> Vec<f32> {
            values.iter().map(|v| T::of(*v).f64() as f32).collect()
        };
        let mut delta = |(part, rank): (usize, &usize)| {
            let (a, b) = (
                low(rng.values(rank * inputs, 1.0)),
                low(rng.values(outputs[part] * rank, 1.0)),
            );
            (*rank > 0).then_some((a, b, *rank, 0.75 + part as f32))
        };
        let deltas = ranks
            .iter()
            .map(|of_adapter| of_adapter.iter().enumerate().map(&mut delta).collect())
            .collect();
        LoraCase {
            inputs,
            columns,
            deltas,
            adapters: adapters.to_vec(),
            x: typed(&rng.values(adapters.len() * inputs, 2.0)),
            out: typed(&rng.values(adapters.len() * out_width, 4.0)),
            out_width,
        }
    }

    /// Only the rows for which `chosen` holds.
    pub fn part(&self, chosen: impl Fn(usize) -> bool) -> Self
    where
        T: Clone,
    {
        let rows: Vec<usize> = (0..self.adapters.len()).filter(|r| chosen(*r)).collect();
        let of = |from: &[T], width: usize| -> Vec<T> {
            let row = |r: &usize| from[r * width..][..width].to_vec();
            rows.iter().flat_map(row).collect()
        };
        LoraCase {
            columns: self.columns.clone(),
            deltas: self.deltas.clone(),
            adapters: rows.iter().map(|r| self.adapters[*r]).collect(),
            x: of(&self.x, self.inputs),
            out: of(&self.out, self.out_width),
            ..*self
        }
    }

    /// Values between the products, and the output, on `device`.
    ///
    /// # Errors
    /// What the device says.
    pub fn run(&self, device: &(impl Device + ?Sized)) -> Result<(Vec<T>, Vec<T>), KernelError> {
        let place = |d: &Option<Delta>| {
            let Some((a, b, rank, scale)) = d else {
                return Ok(None);
            };
            LoraDelta::place(device, (a, b), *rank, *scale).map(Some)
        };
        let deltas = self
            .deltas
            .iter()
            .map(|of_adapter| of_adapter.iter().map(place).collect())
            .collect::<Result<Vec<Vec<_>>, KernelError>>()?;
        let site = LoraSite::new(device, self.inputs, &self.columns, &deltas)?;
        let plan = LoraPlan::new(&self.adapters);
        let placed = place_lora(device, &plan)?;
        let (x, out) = (
            device.input("x", &self.x)?,
            device.upload("out", &self.out)?,
        );
        let inner = device.empty::<T>("inner", site.inner_len(plan.rows()))?;
        lora_shrink(device, &placed, &site, &x, &inner)?;
        lora_expand(device, &placed, &site, &inner, &out)?;
        Ok((device.download(&inner)?, device.download(&out)?))
    }

    /// Rows with an adapter, in the order in which they are listed.
    fn listed(&self) -> Vec<(usize, usize)> {
        let rows = self.adapters.iter().enumerate();
        let mut listed: Vec<_> = rows.filter_map(|(r, a)| a.map(|a| (a, r))).collect();
        listed.sort_by_key(|(adapter, _)| *adapter);
        listed
    }

    /// Compares both steps with f64; the second is judged on what the first gave.
    ///
    /// # Panics
    /// When the lengths are not those of the problem.
    pub fn compare(&self, inner: &[T], out: &[T]) -> Compared {
        let ranks = self.deltas.iter().flatten().flatten().map(|d| d.2);
        let stride = ranks.map(|r| r.next_multiple_of(8)).max().unwrap_or(0);
        let (parts, width) = (self.columns.len(), self.out_width);
        let listed = self.listed();
        assert_eq!(
            (inner.len(), out.len()),
            (listed.len() * parts * stride, self.out.len())
        );
        let (x, old) = (f64s(&self.x), f64s(&self.out));
        let (mut got, mut want) = (Vec::new(), Vec::new());
        let mut touched = vec![false; out.len()];
        for (i, (adapter, row)) in listed.into_iter().enumerate() {
            for (part, c) in self.columns.iter().enumerate() {
                let Some((a, b, rank, scale)) = &self.deltas[adapter][part] else {
                    continue;
                };
                let x = &x[row * self.inputs..][..self.inputs];
                let between = f64s(&inner[(i * parts + part) * stride..][..*rank]);
                for (r, a) in a.chunks_exact(self.inputs).enumerate() {
                    want.push(scaled_product::<T>(x, &wide(a), f64::from(*scale)));
                    got.push(between[r]);
                }
                for (j, b) in b.chunks_exact(*rank).enumerate() {
                    let at = row * width + c.first + j;
                    want.push(product::<T>(&between, &wide(b), old[at], false));
                    got.push(out[at].f64());
                    touched[at] = true;
                }
            }
        }
        let others = |values: &[T]| -> Vec<T> {
            let left = values.iter().zip(&touched).filter(|(_, t)| !**t);
            left.map(|(v, _)| *v).collect()
        };
        let (wrong, exact) = equal(&others(out), &others(&self.out));
        got.extend(wrong);
        want.extend(exact);
        (got, want)
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

/// Both kernels, with ranks at and beside the ends of tiles; `full` adds SmolLM2's projections.
pub(super) fn adapters<T: Value, D: Device + ?Sized>(
    suite: &mut Suite<'_, D>,
    full: bool,
) -> Result<(), KernelError> {
    let rows: Vec<Option<usize>> = (0..37).map(|r| [Some(1), None, Some(0)][r % 3]).collect();
    let mut shapes = vec![
        (8, vec![2], vec![vec![1], vec![3]]),
        (200, vec![66, 18, 18], vec![vec![4, 0, 4], vec![8, 72, 9]]),
    ];
    if full {
        shapes.push((576, vec![576, 192, 192], vec![vec![16; 3], vec![64; 3]]));
        shapes.push((4096, vec![4096], vec![vec![16], vec![128]]));
    }
    for (inputs, outputs, ranks) in shapes {
        let name = format!("{} {inputs} to {outputs:?}, ranks {ranks:?}", T::NAME);
        let case = LoraCase::<T>::new(7, inputs, &outputs, &ranks, &rows);
        suite.one("lora", name, |d| {
            let (inner, out) = case.run(d)?;
            Ok(case.compare(&inner, &out))
        })?;
    }
    Ok(())
}
