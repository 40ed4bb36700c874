//! Which parts of a transfer are where: sets of cells, and spans of them.
//!
//! A *cell* is one layer of one block of the transfer; blocks are counted from the first token. A
//! *span* is a rectangle of cells, its cells in the order of blocks and then of layers.

/// A rectangle of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First block.
    pub block: u32,
    /// Blocks.
    pub blocks: u32,
    /// First layer.
    pub layer: u32,
    /// Layers.
    pub layers: u32,
}

impl Span {
    /// All of a transfer.
    pub const fn whole(blocks: u32, layers: u32) -> Span {
        Span {
            block: 0,
            blocks,
            layer: 0,
            layers,
        }
    }

    /// One cell.
    pub const fn cell(block: u32, layer: u32) -> Span {
        Span {
            block,
            blocks: 1,
            layer,
            layers: 1,
        }
    }

    /// How many cells.
    pub fn cells(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.layers)
    }

    /// Whether it is not empty and lies within a transfer of that size.
    pub fn is_within(&self, blocks: u32, layers: u32) -> bool {
        let fits = |first: u32, n: u32, all: u32| {
            n > 0 && first.checked_add(n).is_some_and(|end| end <= all)
        };
        fits(self.block, self.blocks, blocks) && fits(self.layer, self.layers, layers)
    }

    /// Its cells as (block, layer), in the order in which they are sent.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let Span {
            block,
            blocks,
            layer,
            layers,
        } = *self;
        (block..block + blocks).flat_map(move |b| (layer..layer + layers).map(move |l| (b, l)))
    }
}

/// In which direction neighbouring cells lie side by side in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All layers of a block, then the next block.
    BlockMajor,
    /// All blocks of a layer, then the next layer.
    LayerMajor,
}

/// A set of cells of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellSet {
    blocks: u32,
    layers: u32,
    bits: Vec<u64>,
    len: u64,
}

impl CellSet {
    /// The empty set within `blocks` blocks of `layers` layers.
    pub fn new(blocks: u32, layers: u32) -> CellSet {
        let cells = u64::from(blocks) * u64::from(layers);
        CellSet {
            blocks,
            layers,
            bits: vec![0; cells.div_ceil(64) as usize],
            len: 0,
        }
    }

    fn at(&self, block: u32, layer: u32) -> (usize, u64) {
        let i = u64::from(block) * u64::from(self.layers) + u64::from(layer);
        ((i / 64) as usize, 1 << (i % 64))
    }

    /// Whether the cell is in the set.
    pub fn contains(&self, block: u32, layer: u32) -> bool {
        let (word, bit) = self.at(block, layer);
        self.bits[word] & bit != 0
    }

    /// Adds a cell; false when it was there.
    pub fn insert(&mut self, block: u32, layer: u32) -> bool {
        let (word, bit) = self.at(block, layer);
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.len += u64::from(new);
        new
    }

    /// Takes a cell out; false when it was not there.
    pub fn remove(&mut self, block: u32, layer: u32) -> bool {
        let (word, bit) = self.at(block, layer);
        let held = self.bits[word] & bit != 0;
        self.bits[word] &= !bit;
        self.len -= u64::from(held);
        held
    }

    /// Whether all layers of `block` are in the set.
    pub fn has_block(&self, block: u32) -> bool {
        (0..self.layers).all(|layer| self.contains(block, layer))
    }

    /// Cells in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there are all.
    pub fn is_full(&self) -> bool {
        self.len == u64::from(self.blocks) * u64::from(self.layers)
    }

    /// The first cell in the given order.
    fn first(&self, order: Order) -> Option<(u32, u32)> {
        if self.is_empty() {
            return None;
        }
        let held = |&(b, l): &(u32, u32)| self.contains(b, l);
        match order {
            Order::BlockMajor => {
                let word = self.bits.iter().position(|w| *w != 0)?;
                let i = word as u64 * 64 + u64::from(self.bits[word].trailing_zeros());
                let layers = u64::from(self.layers);
                Some(((i / layers) as u32, (i % layers) as u32))
            }
            Order::LayerMajor => (0..self.layers)
                .flat_map(|l| (0..self.blocks).map(move |b| (b, l)))
                .find(held),
        }
    }

    /// A span of at most `max_cells` cells of the set, from the first cell on: as long as possible
    /// in the direction in which memory is contiguous, then as wide.
    ///
    /// # Panics
    /// When `max_cells` is zero.
    pub fn next_span(&self, order: Order, max_cells: u64) -> Option<Span> {
        assert!(max_cells > 0, "a span has a cell");
        let (block, layer) = self.first(order)?;
        let limit = u32::try_from(max_cells).unwrap_or(u32::MAX);
        let layers = match order {
            Order::LayerMajor => 1,
            Order::BlockMajor => (layer..self.layers)
                .take_while(|&l| self.contains(block, l))
                .count() as u32,
        };
        let layers = layers.min(limit);
        let blocks = (block..self.blocks)
            .take_while(|&b| (layer..layer + layers).all(|l| self.contains(b, l)))
            .take((limit / layers) as usize)
            .count() as u32;
        Some(Span {
            block,
            blocks,
            layer,
            layers,
        })
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::Stream;

    use super::*;

    #[test]
    fn spans_cover_a_set_exactly_once_within_their_limit() {
        let mut stream = Stream::new(1, "cells");
        for round in 0..300 {
            let (blocks, layers) = (1 + stream.below(9) as u32, 1 + stream.below(17) as u32);
            let mut set = CellSet::new(blocks, layers);
            let mut left = std::collections::BTreeSet::new();
            for (b, l) in Span::whole(blocks, layers).iter() {
                if stream.below(4) > 0 {
                    assert!(set.insert(b, l) && !set.insert(b, l));
                    left.insert((b, l));
                }
            }
            assert_eq!(set.len(), left.len() as u64);
            assert_eq!(set.is_full(), left.len() as u32 == blocks * layers);
            let order = [Order::BlockMajor, Order::LayerMajor][round % 2];
            let max = 1 + stream.below(20);
            while let Some(span) = set.next_span(order, max) {
                assert!(span.is_within(blocks, layers) && span.cells() <= max);
                for (b, l) in span.iter() {
                    assert!(set.remove(b, l) && left.remove(&(b, l)), "{span:?}");
                }
            }
            assert!(left.is_empty() && set.is_empty());
        }
    }

    #[test]
    fn full_blocks_are_one_span_and_a_layer_of_many_blocks_too() {
        let mut set = CellSet::new(5, 3);
        Span::whole(5, 3).iter().for_each(|(b, l)| {
            set.insert(b, l);
        });
        assert_eq!(
            set.next_span(Order::BlockMajor, 100),
            Some(Span::whole(5, 3))
        );
        assert_eq!(set.next_span(Order::BlockMajor, 7), Some(Span::whole(2, 3)));
        assert_eq!(
            set.next_span(Order::LayerMajor, 100),
            Some(Span::whole(5, 1))
        );
        let mut layer = CellSet::new(5, 3);
        (1..4).for_each(|b| {
            layer.insert(b, 2);
        });
        let expected = Span {
            block: 1,
            blocks: 3,
            layer: 2,
            layers: 1,
        };
        assert_eq!(layer.next_span(Order::BlockMajor, 100), Some(expected));
    }

    #[test]
    fn spans_that_do_not_fit_are_told() {
        assert!(Span::whole(2, 3).is_within(2, 3));
        assert!(!Span::whole(2, 4).is_within(2, 3));
        assert!(!Span::whole(0, 3).is_within(2, 3));
        let wraps = Span {
            block: u32::MAX,
            blocks: 2,
            layer: 0,
            layers: 1,
        };
        assert!(!wraps.is_within(2, 3));
    }
}
