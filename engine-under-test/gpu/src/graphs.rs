//! Decode steps as recorded graphs.
//!
//! A step of single tokens launches the same kernels whatever the tokens are. So its launches are
//! recorded once for each size, on memory that stays where it is, and run again after the words
//! that they read (tokens, places, plans, block tables) were written anew. Sizes are few: rows are
//! filled up to a power of two by rows that are stored nowhere, and so are the ranges of keys of
//! `fast` and the tiles of rows that share an adapter. A size is recorded when it comes for the
//! second time: the first time its launches run by themselves, and load what must not be loaded
//! while a graph is recorded.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pb_contract::Numerics;
use pb_kernels_cuda::ops::{
    self, BatchSeq, DecodePlan, GemmBy, LoraPlan, NO_SLOT, Partials, PlacedDecode, PlacedLora,
    PlacedPrefill, PrefillPlan,
};
use pb_kernels_cuda::{
    Buffer, Device, DeviceExt, Elem, GemmOut, Graph, KernelError, Purpose, StoreElem,
};
use pb_model::config::LlamaConfig;

use crate::adapters::DeviceAdapters;
use crate::batch::{Batch, Rows};
use crate::forward::{Model, Scratch, Work};
use crate::plans::DECODE_ITEMS;

/// Ranges of keys of one step at most; a step of more goes the plain way.
const ITEMS_MAX: usize = 2 * DECODE_ITEMS;

/// What launches depend on beside the words that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    /// Rows, those that fill up among them.
    rows: usize,
    /// Ranges of keys; 0 where attention is not split.
    items: usize,
    /// Keys of a range.
    split: usize,
    /// Tiles of rows that share an adapter; 0 where no row has one.
    lora_tiles: usize,
}

/// Where words lie in their buffer; sections begin at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Sections {
    positions: usize,
    slots: usize,
    seqs: usize,
    tiles: usize,
    items: usize,
    first_items: usize,
    lora_rows: usize,
    lora_tiles: usize,
    tables: usize,
}

impl Sections {
    fn new(rows: usize) -> Self {
        let mut end = rows.next_multiple_of(4);
        let mut section = |words: usize| {
            let start = end;
            end += words.next_multiple_of(4);
            start
        };
        Sections {
            positions: section(rows),
            slots: section(2 * rows),
            seqs: section(4 * rows),
            tiles: section(2 * rows),
            items: section(2 * ITEMS_MAX),
            first_items: section(rows + 1),
            lora_rows: section(rows),
            lora_tiles: section(4 * rows),
            tables: section(0),
        }
    }
}

/// Memory of recorded steps, and the steps.
pub(crate) struct DecodeGraphs<T> {
    rows_max: usize,
    /// Entries of all block tables of a step, at most.
    table_entries: usize,
    sections: Sections,
    words: Buffer<u32>,
    scratch: Scratch<T>,
    partials: Option<Partials>,
    /// What lies between the two products of adapters, where there are any.
    inner: Option<Buffer<T>>,
    logits: Buffer<f32>,
    /// `None` while a size came only once.
    known: RefCell<BTreeMap<Size, Option<Graph>>>,
}

impl<T: Elem> DecodeGraphs<T> {
    /// Memory for steps of up to `rows_max` rows and `blocks` blocks a row; `None` for 0 rows.
    pub(crate) fn new(
        device: &impl Device,
        config: &LlamaConfig,
        adapters: &DeviceAdapters<T>,
        numerics: Numerics,
        (rows_max, blocks): (usize, usize),
    ) -> Result<Option<Self>, KernelError> {
        device.forget_graphs()?;
        if rows_max == 0 {
            return Ok(None);
        }
        let sections = Sections::new(rows_max);
        let table_entries = rows_max * blocks;
        // Written by the host; kernels only read it.
        let words = vec![0u32; sections.tables + table_entries];
        let words = device.for_purpose(Purpose::Plans, || device.input("step", &words))?;
        let part = |first, len| words.slice(first, len);
        let positions = part(sections.positions, rows_max);
        let slots = part(sections.slots, 2 * rows_max).of();
        Ok(Some(DecodeGraphs {
            rows_max,
            table_entries,
            sections,
            words,
            scratch: Scratch::new(device, config, (positions, slots))?,
            partials: match numerics {
                Numerics::Fast => {
                    let (heads, d) = (config.q_heads, config.d_head);
                    Some(Partials::new(device, ITEMS_MAX, heads, d)?)
                }
                Numerics::Exact | Numerics::F64 => None,
            },
            inner: match adapters.inner_len(rows_max) {
                0 => None,
                len => Some(device.empty("lora inner", len)?),
            },
            logits: device.empty("logits", rows_max * config.vocab)?,
            known: RefCell::default(),
        }))
    }
}

/// A step filled up to a size, on the host.
struct Filled {
    size: Size,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<[u32; 2]>,
    prefill: PrefillPlan,
    decode: DecodePlan,
    lora: LoraPlan,
}

impl Filled {
    fn new(batch: &Batch<'_>, rows: usize, split: bool, group: usize) -> Result<Self, KernelError> {
        let mut seqs = batch.seqs(|_| true);
        // Some block that there is; what these rows see goes nowhere.
        let fill = (batch.tokens.len()..rows).map(|q_row| BatchSeq {
            q_row,
            q_len: 1,
            start_pos: 0,
            block_table: &[0],
        });
        seqs.extend(fill);
        let (whole, ranges): (&[BatchSeq<'_>], &[BatchSeq<'_>]) =
            if split { (&[], &seqs) } else { (&seqs, &[]) };
        let keys = DecodePlan::balanced_split(ranges, DECODE_ITEMS).next_power_of_two();
        let decode = DecodePlan::new(ranges, keys)?;
        let items = decode.items().next_power_of_two();
        let decode = decode.padded(items);
        let mut adapters = batch.adapters.clone();
        adapters.resize(rows, None);
        let lora = LoraPlan::new(&adapters);
        let tiles = lora.tile_words().len().next_power_of_two();
        let lora = lora.padded(tiles);
        let filled = |values: &[u32]| {
            let mut values = values.to_vec();
            values.resize(rows, 0);
            values
        };
        let mut slots = batch.slots.clone();
        slots.resize(rows, NO_SLOT);
        Ok(Filled {
            size: Size {
                rows,
                items: decode.items(),
                split: if split { keys } else { 0 },
                lora_tiles: lora.tile_words().len(),
            },
            tokens: filled(&batch.tokens),
            positions: filled(&batch.positions),
            slots,
            prefill: PrefillPlan::new(whole, group)?,
            decode,
            lora,
        })
    }

    fn rows(&self) -> Rows<'_> {
        Rows {
            tokens: &self.tokens,
            positions: &self.positions,
            slots: &self.slots,
        }
    }

    fn tables(&self) -> &[u32] {
        match self.decode.items() {
            0 => self.prefill.tables(),
            _ => self.decode.tables(),
        }
    }
}

impl<D: Device, T: Elem, S: StoreElem<T>> Model<'_, D, T, S>
where
    f32: GemmOut<T>,
{
    /// Runs a step of single tokens by a graph, and gives the logits of its rows; `None` when it
    /// must go the plain way.
    pub(crate) fn decode_by_graph(
        &self,
        graphs: &DecodeGraphs<T>,
        batch: &Batch<'_>,
    ) -> Result<Option<Buffer<f32>>, KernelError> {
        let rows = batch.tokens.len().next_power_of_two();
        if !batch.is_decode() || rows > graphs.rows_max {
            return Ok(None);
        }
        let split = self.by() == GemmBy::Vendor;
        let filled = Filled::new(batch, rows, split, self.config.group())?;
        if filled.size.items > ITEMS_MAX || filled.tables().len() > graphs.table_entries {
            return Ok(None);
        }
        self.check_step(graphs, &filled)?;
        graphs.write(self.device, &filled)?;
        let known = graphs.known.borrow().get(&filled.size).copied();
        let graph = match known {
            Some(Some(graph)) => Some(graph),
            Some(None) => Some(self.device.capture(&mut || self.run(graphs, &filled))?),
            None => None,
        };
        match graph {
            Some(graph) => self.device.replay(graph)?,
            None => self.run(graphs, &filled)?,
        }
        graphs.known.borrow_mut().insert(filled.size, graph);
        Ok(Some(graphs.logits.slice(0, rows * self.config.vocab)))
    }

    /// What the operations check before they launch, for launches that were recorded before. That
    /// adapters exist was checked of the batch.
    fn check_step(&self, graphs: &DecodeGraphs<T>, f: &Filled) -> Result<(), KernelError> {
        let (pool, c) = (&self.pool.layers[0], self.config);
        let (blocks, size) = (self.pool.num_blocks, pool.shape.block_size);
        ops::check_tokens(&f.tokens, c.vocab)?;
        let s = graphs.scratch.first(f.size.rows);
        self.rope(f.rows(), &s).check(pool)?;
        f.prefill.check(size, blocks, f.size.rows, c.group())?;
        f.decode.check(size, blocks, f.size.rows)
    }

    /// All launches of a step, on memory that stays.
    fn run(&self, graphs: &DecodeGraphs<T>, f: &Filled) -> Result<(), KernelError> {
        let (rows, c) = (f.size.rows, self.config);
        let s = graphs.scratch.first(rows);
        let tokens = graphs.words.slice(0, rows);
        self.body((&tokens, f.rows()), &graphs.work(f)?, &s)?;
        self.norm(&s, &self.weights.final_norm, true)?;
        let logits = graphs.logits.slice(0, rows * c.vocab);
        let head = &self.weights.head;
        ops::gemm(
            self.device,
            self.by(),
            (&s.normed, rows),
            head,
            None,
            &logits,
        )
    }
}

impl<T: Elem> DecodeGraphs<T> {
    /// The plans of a step, where its words lie.
    fn work<'p>(&self, f: &'p Filled) -> Result<Work<'p, T>, KernelError> {
        let at = self.sections;
        let section = |first, len| self.words.slice(first, len);
        let seqs = section(at.seqs, 4 * self.rows_max).of();
        let tables = section(at.tables, self.table_entries);
        let lora = (!f.lora.is_empty()).then(|| {
            let rows = section(at.lora_rows, self.rows_max);
            let tiles = section(at.lora_tiles, 4 * self.rows_max).of();
            PlacedLora::at(&f.lora, (&rows, &tiles))
        });
        let mut work = Work {
            prefill: None,
            split: None,
            decode: None,
            lora: lora.transpose()?.zip(self.inner),
        };
        if let Some(partials) = self.partials {
            let items = section(at.items, 2 * ITEMS_MAX).of();
            let first_items = section(at.first_items, self.rows_max + 1);
            let lists = ((&seqs, &items), (&first_items, &tables));
            work.decode = Some((PlacedDecode::at(&f.decode, lists.0, lists.1)?, partials));
        } else {
            let tiles = section(at.tiles, 2 * self.rows_max).of();
            let placed = PlacedPrefill::at(&f.prefill, (&seqs, &tiles, &tables))?;
            work.prefill = Some(placed);
        }
        Ok(work)
    }

    /// Writes the words of a step, all at once.
    fn write(&self, device: &impl Device, f: &Filled) -> Result<(), KernelError> {
        let at = self.sections;
        let tables = f.tables();
        let mut words = vec![0u32; at.tables + tables.len()];
        let mut put = |first: usize, values: &[u32]| {
            words[first..first + values.len()].copy_from_slice(values);
        };
        put(0, &f.tokens);
        put(at.positions, &f.positions);
        put(at.slots, f.slots.as_flattened());
        put(at.seqs, f.prefill.seqs().as_flattened());
        put(at.tiles, f.prefill.tiles().as_flattened());
        if f.decode.items() > 0 {
            put(at.seqs, f.decode.seqs().as_flattened());
            put(at.items, f.decode.item_words().as_flattened());
            put(at.first_items, f.decode.first_items());
        }
        put(at.lora_rows, f.lora.row_words());
        put(at.lora_tiles, f.lora.tile_words().as_flattened());
        put(at.tables, tables);
        device.write(self.words.bytes(), bytemuck::cast_slice(&words))
    }
}
