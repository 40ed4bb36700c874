//! Adapters of low rank: what they add to the rows of a batch that asked for them.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device, DeviceExt};
use crate::elem::Elem;
use crate::error::{KernelError, require};

/// Rows of a tile, as `lora.cu` has it.
const TILE: usize = 16;
/// Ranks of a block of `lora_shrink`.
const RANKS: usize = 64;
/// Columns of a block of `lora_expand`.
const COLUMNS: usize = 256;
/// Partial sums of the four warps of `lora_shrink`.
const SHARED_BYTES: u32 = (4 * TILE * RANKS * 4) as u32;
/// Parts of a fused product at most: queries, keys and values.
const PARTS_MAX: usize = 3;

/// One change: `scale * b (a x)`, `a` is `[rank][inputs]`, `b` is `[outputs][rank]`, on the device
/// with the rank padded by zeros to a multiple of 8.
#[derive(Clone, Copy, Debug)]
pub struct LoraDelta<T> {
    a: Buffer<T>,
    b: Buffer<T>,
    rank: usize,
    scale: f32,
}

impl<T: Elem> LoraDelta<T> {
    /// Rounds `a` and `b` and places them.
    ///
    /// # Errors
    /// When they are not of one rank above 0, or the device has no room.
    pub fn place(
        device: &(impl Device + ?Sized),
        (a, b): (&[f32], &[f32]),
        rank: usize,
        scale: f32,
    ) -> Result<Self, KernelError> {
        let op = "lora";
        let whole = rank > 0 && a.len().is_multiple_of(rank) && b.len().is_multiple_of(rank);
        let found = (a.len(), b.len());
        require(whole, op, "a and b", found, format!("whole rows of {rank}"))?;
        require(scale.is_finite(), op, "scale", scale, "a number")?;
        let padded = rank.next_multiple_of(8);
        let round = |x: &f32| T::round(*x);
        let mut left: Vec<T> = a.iter().map(round).collect();
        left.resize(padded * (a.len() / rank), T::zeroed());
        let mut right = Vec::with_capacity(padded * (b.len() / rank));
        for row in b.chunks_exact(rank) {
            right.extend(row.iter().map(round));
            right.extend(std::iter::repeat_n(T::zeroed(), padded - rank));
        }
        Ok(LoraDelta {
            a: device.input("lora a", &left)?,
            b: device.input("lora b", &right)?,
            rank: padded,
            scale,
        })
    }
}

/// `LoraPart` of `lora.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Part {
    a: u64,
    b: u64,
    rank: u32,
    scale: f32,
}

/// Where a part of a fused product lies in a row of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraColumns {
    /// First column.
    pub first: usize,
    /// Columns.
    pub count: usize,
}

/// A product whose parts adapters change, with the changes of all adapters.
#[derive(Clone, Debug)]
pub struct LoraSite<T> {
    parts: Buffer<Part>,
    columns: Vec<LoraColumns>,
    adapters: usize,
    inputs: usize,
    /// Largest rank: the distance of parts in the inner values.
    rank: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Elem> LoraSite<T> {
    /// A product of `inputs` terms with parts at `columns`; `deltas` are, adapter by adapter, the
    /// changes of these parts.
    ///
    /// # Errors
    /// When shapes disagree, `inputs` is no multiple of 8, a column is odd, or there are more than
    /// three parts.
    pub fn new(
        device: &(impl Device + ?Sized),
        inputs: usize,
        columns: &[LoraColumns],
        deltas: &[Vec<Option<LoraDelta<T>>>],
    ) -> Result<Self, KernelError> {
        let op = "lora";
        let count = columns.len();
        require(
            (1..=PARTS_MAX).contains(&count),
            op,
            "parts",
            count,
            "1 to 3",
        )?;
        let good = inputs > 0 && inputs.is_multiple_of(8);
        require(good, op, "terms", inputs, "a multiple of 8")?;
        for c in columns {
            let even = c.first.is_multiple_of(2) && c.count.is_multiple_of(2) && c.count > 0;
            require(even, op, "columns", c, "even")?;
        }
        let (mut parts, mut rank) = (Vec::new(), 0);
        for adapter in deltas {
            require(
                adapter.len() == count,
                op,
                "parts",
                adapter.len(),
                count.to_string(),
            )?;
            for (delta, c) in adapter.iter().zip(columns) {
                let Some(d) = delta else {
                    parts.push(Part::zeroed());
                    continue;
                };
                let found = (d.a.len(), d.b.len());
                let want = (d.rank * inputs, d.rank * c.count);
                require(found == want, op, "a and b", found, format!("{want:?}"))?;
                rank = rank.max(d.rank);
                parts.push(Part {
                    a: d.a.address(),
                    b: d.b.address(),
                    rank: d.rank as u32,
                    scale: d.scale,
                });
            }
        }
        Ok(LoraSite {
            parts: device.input("lora parts", &parts)?,
            columns: columns.to_vec(),
            adapters: deltas.len(),
            inputs,
            rank,
            kind: std::marker::PhantomData,
        })
    }

    /// Values between the two products for `rows` rows.
    pub fn inner_len(&self, rows: usize) -> usize {
        rows * self.columns.len() * self.rank
    }
}

/// Which adapter each row of a batch takes: rows by adapter, in tiles that share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraPlan {
    rows: Vec<u32>,
    /// Adapter, first listed row, rows, unused.
    tiles: Vec<[u32; 4]>,
    adapters: usize,
    batch_rows: usize,
}

impl LoraPlan {
    /// A plan for rows of which each has an adapter or none.
    pub fn new(adapters: &[Option<usize>]) -> Self {
        let with = adapters.iter().enumerate();
        let mut listed: Vec<(usize, u32)> = with
            .filter_map(|(row, adapter)| adapter.map(|a| (a, row as u32)))
            .collect();
        listed.sort_unstable();
        let mut plan = LoraPlan {
            batch_rows: adapters.len(),
            ..LoraPlan::default()
        };
        for same in listed.chunk_by(|a, b| a.0 == b.0) {
            plan.adapters = same[0].0 + 1;
            for tile in same.chunks(TILE) {
                let first = plan.rows.len() as u32;
                plan.tiles
                    .push([tile[0].0 as u32, first, tile.len() as u32, 0]);
                plan.rows.extend(tile.iter().map(|(_, row)| row));
            }
        }
        plan
    }

    /// The plan with tiles of no rows, up to `tiles` in all: launches of plans of one length are
    /// alike. A plan without adapters stays empty.
    pub fn padded(mut self, tiles: usize) -> Self {
        if let Some([adapter, first, ..]) = self.tiles.last().copied() {
            // What a tile without rows reads is what its neighbour reads.
            let tiles = tiles.max(self.tiles.len());
            self.tiles.resize(tiles, [adapter, first, 0, 0]);
        }
        self
    }

    /// Listed rows, as the kernels read them.
    pub fn row_words(&self) -> &[u32] {
        &self.rows
    }

    /// Tiles, likewise.
    pub fn tile_words(&self) -> &[[u32; 4]] {
        &self.tiles
    }

    /// Whether no row has an adapter.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows with an adapter.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }
}

/// A plan on a device, for as many products as the batch goes through.
#[derive(Debug)]
pub struct PlacedLora<'a> {
    plan: &'a LoraPlan,
    rows: u64,
    tiles: u64,
}

/// Copies a plan to the device.
///
/// # Errors
/// When the device has no room.
pub fn place_lora<'a>(
    device: &(impl Device + ?Sized),
    plan: &'a LoraPlan,
) -> Result<PlacedLora<'a>, KernelError> {
    Ok(PlacedLora {
        plan,
        rows: device.input("lora rows", &plan.rows)?.address(),
        tiles: device.input("lora tiles", &plan.tiles)?.address(),
    })
}

impl<'a> PlacedLora<'a> {
    /// A plan whose words lie, or will lie when the launch runs, in memory of the caller's: listed
    /// rows, tiles.
    ///
    /// # Errors
    /// When there is less room than the plan has words.
    pub fn at(
        plan: &'a LoraPlan,
        (rows, tiles): (&Buffer<u32>, &Buffer<[u32; 4]>),
    ) -> Result<Self, KernelError> {
        let (room, words) = (
            [rows.len(), tiles.len()],
            [plan.rows.len(), plan.tiles.len()],
        );
        let enough = room[0] >= words[0] && room[1] >= words[1];
        require(
            enough,
            "lora",
            "room for the plan",
            room,
            format!("{words:?}"),
        )?;
        Ok(PlacedLora {
            plan,
            rows: rows.address(),
            tiles: tiles.address(),
        })
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ShrinkParams {
    x: u64,
    parts: u64,
    rows: u64,
    tiles: u64,
    inner: u64,
    width: u32,
    count: u32,
    stride: u32,
    pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ExpandParams {
    inner: u64,
    parts: u64,
    rows: u64,
    tiles: u64,
    out: u64,
    out_width: u32,
    count: u32,
    stride: u32,
    pad: u32,
    columns: [u32; PARTS_MAX],
    outputs: [u32; PARTS_MAX],
}

impl<T: Elem> LoraSite<T> {
    fn check(&self, placed: &PlacedLora<'_>, inner: &Buffer<T>) -> Result<(), KernelError> {
        let (op, plan) = ("lora", placed.plan);
        let (known, largest) = (self.adapters, plan.adapters);
        require(
            largest <= known,
            op,
            "adapter",
            largest.saturating_sub(1),
            format!("below {known}"),
        )?;
        let wanted = self.inner_len(plan.rows());
        let enough = inner.len() >= wanted;
        require(enough, op, "inner values", inner.len(), wanted.to_string())
    }
}

/// The first of the two products: `inner = scale * x a^T` of every listed row and part, `x` is
/// `[batch rows][inputs]`.
///
/// # Errors
/// When shapes disagree or an adapter does not exist.
pub fn lora_shrink<T: Elem>(
    device: &(impl Device + ?Sized),
    placed: &PlacedLora<'_>,
    site: &LoraSite<T>,
    x: &Buffer<T>,
    inner: &Buffer<T>,
) -> Result<(), KernelError> {
    site.check(placed, inner)?;
    let wanted = placed.plan.batch_rows * site.inputs;
    let whole = x.len() == wanted;
    require(whole, "lora", "x", x.len(), wanted.to_string())?;
    let params = ShrinkParams {
        x: x.address(),
        parts: site.parts.address(),
        rows: placed.rows,
        tiles: placed.tiles,
        inner: inner.address(),
        width: site.inputs as u32,
        count: site.columns.len() as u32,
        stride: site.rank as u32,
        pad: 0,
    };
    let grid = [
        placed.plan.tiles.len() as u32,
        site.columns.len() as u32,
        site.rank.div_ceil(RANKS) as u32,
    ];
    let kernel = format!("lora_shrink_{}", T::NAME);
    launch(device, &kernel, grid, 128, SHARED_BYTES, &params)
}

/// The second: `inner b^T` is added to the columns of every part of the listed rows of `out`,
/// `[batch rows][any]`.
///
/// # Errors
/// As [`lora_shrink`].
pub fn lora_expand<T: Elem>(
    device: &(impl Device + ?Sized),
    placed: &PlacedLora<'_>,
    site: &LoraSite<T>,
    inner: &Buffer<T>,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    site.check(placed, inner)?;
    let (op, rows) = ("lora", placed.plan.batch_rows);
    let width = out.len() / rows.max(1);
    let whole = width * rows == out.len() && width.is_multiple_of(2);
    require(whole, op, "out", out.len(), format!("{rows} even rows"))?;
    let (mut columns, mut outputs) = ([0; PARTS_MAX], [0; PARTS_MAX]);
    for (i, c) in site.columns.iter().enumerate() {
        let inside = c.first + c.count <= width;
        require(inside, op, "columns", c, format!("of {width}"))?;
        (columns[i], outputs[i]) = (c.first as u32, c.count as u32);
    }
    let params = ExpandParams {
        inner: inner.address(),
        parts: site.parts.address(),
        rows: placed.rows,
        tiles: placed.tiles,
        out: out.address(),
        out_width: width as u32,
        count: site.columns.len() as u32,
        stride: site.rank as u32,
        pad: 0,
        columns,
        outputs,
    };
    let most = outputs.into_iter().max().unwrap_or_default() as usize;
    let grid = [
        placed.plan.tiles.len() as u32,
        most.div_ceil(COLUMNS) as u32,
        site.columns.len() as u32,
    ];
    let kernel = format!("lora_expand_{}", T::NAME);
    launch(device, &kernel, grid, 128, 0, &params)
}

/// Adds what the adapters of a batch change of one product: both steps.
///
/// # Errors
/// As [`lora_shrink`].
pub fn lora<T: Elem>(
    device: &(impl Device + ?Sized),
    placed: &PlacedLora<'_>,
    site: &LoraSite<T>,
    (x, out): (&Buffer<T>, &Buffer<T>),
    inner: &Buffer<T>,
) -> Result<(), KernelError> {
    lora_shrink(device, placed, site, x, inner)?;
    lora_expand(device, placed, site, inner, out)
}

#[cfg(test)]
mod tests {
    use super::LoraPlan;

    #[test]
    fn rows_are_listed_by_adapter_in_tiles_of_one() {
        let mut adapters = vec![Some(1), None, Some(0), Some(1)];
        adapters.extend([Some(1); 16]);
        let plan = LoraPlan::new(&adapters);
        let mut rows = vec![2, 0, 3];
        rows.extend(4..20);
        assert_eq!(plan.rows, rows);
        assert_eq!(plan.tiles, [[0, 0, 1, 0], [1, 1, 16, 0], [1, 17, 2, 0]]);
        assert_eq!((plan.adapters, plan.batch_rows), (2, 20));
        assert!(LoraPlan::new(&[None, None]).is_empty());
        let padded = plan.clone().padded(5);
        assert_eq!(padded.tile_words()[..3], plan.tiles);
        assert_eq!(padded.tile_words()[3..], [[1, 17, 0, 0]; 2]);
        assert_eq!(padded.row_words(), plan.rows);
        assert_eq!(plan.clone().padded(2), plan);
        assert!(LoraPlan::new(&[None]).padded(4).tile_words().is_empty());
    }
}
