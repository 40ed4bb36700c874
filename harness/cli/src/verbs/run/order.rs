//! Which arm runs when: matched blocks in a random order that cancels a drift.

use pb_contract::Stream;

use crate::verbs::suite::Fresh;

/// Cells that one server process serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the arm.
    pub(crate) arm: usize,
    /// Numbers of the conditions, in the order in which they are run.
    pub(crate) conditions: Vec<usize>,
}

/// One block: every arm under every condition, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Number, from 0.
    pub(crate) index: usize,
    /// Seed of the schedules of all its cells.
    pub(crate) seed: u64,
    /// What is run, in order.
    pub(crate) steps: Vec<Step>,
}

/// All blocks of a suite.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The suite's seed.
    pub(crate) seed: u64,
    /// Number of arms.
    pub(crate) arms: usize,
    /// Number of conditions.
    pub(crate) conditions: usize,
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// How long a server lives.
    pub(crate) fresh: Fresh,
    /// Seeds of the blocks, where they are given.
    pub(crate) seeds: Option<Vec<u64>>,
}

impl Blocks {
    /// The blocks in order. In each pair of blocks the order of the arms is drawn for the first
    /// one and reversed for the second, so that a linear drift of the machine cancels over both.
    pub(crate) fn all(&self) -> Vec<Block> {
        // 52 bits, so that every reader of JSON keeps all of them.
        let mut drawn = Stream::new(self.seed, "seeds of blocks");
        let mut seed = |index: usize| {
            let own = drawn.next_u64() >> 12;
            let given = self.seeds.as_ref().and_then(|seeds| seeds.get(index));
            given.copied().unwrap_or(own)
        };
        let block = |index| Block {
            index,
            seed: seed(index),
            steps: self.steps(index),
        };
        (0..self.blocks).map(block).collect()
    }

    fn steps(&self, block: usize) -> Vec<Step> {
        let conditions = self.order(self.conditions, block, "order of conditions");
        match self.fresh {
            Fresh::Block => {
                let arms = self.order(self.arms, block, "order of arms").into_iter();
                let step = |arm| Step {
                    arm,
                    conditions: conditions.clone(),
                };
                arms.map(step).collect()
            }
            Fresh::Cell => {
                let steps = conditions.into_iter().flat_map(|condition| {
                    let label = format!("order of arms, condition {condition}");
                    let arms = self.order(self.arms, block, &label).into_iter();
                    arms.map(move |arm| Step {
                        arm,
                        conditions: vec![condition],
                    })
                });
                steps.collect()
            }
        }
    }

    /// A random order of `0..n` for each pair of blocks, reversed in the second one.
    fn order(&self, n: usize, block: usize, label: &str) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        Stream::new(self.seed, &format!("{label}, pair {}", block / 2)).shuffle(&mut order);
        if block % 2 == 1 {
            order.reverse();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn blocks(arms: usize, conditions: usize, blocks: usize, fresh: Fresh, seed: u64) -> Blocks {
        Blocks {
            seed,
            arms,
            conditions,
            blocks,
            fresh,
            seeds: None,
        }
    }

    /// (block, condition) to the arms in the order in which they run.
    fn orders(all: &[Block]) -> BTreeMap<(usize, usize), Vec<usize>> {
        let mut orders: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for block in all {
            for step in &block.steps {
                for condition in &step.conditions {
                    orders
                        .entry((block.index, *condition))
                        .or_default()
                        .push(step.arm);
                }
            }
        }
        orders
    }

    #[test]
    fn every_block_has_each_arm_under_each_condition_exactly_once() {
        for (arms, conditions, count) in
            (1..5).flat_map(|a| (1..4).flat_map(move |c| (1..6).map(move |b| (a, c, b))))
        {
            for fresh in [Fresh::Cell, Fresh::Block] {
                for seed in 0..4 {
                    let all = blocks(arms, conditions, count, fresh, seed).all();
                    assert_eq!(all.len(), count);
                    let mut seen = BTreeSet::new();
                    let mut cells = 0;
                    for block in &all {
                        for step in &block.steps {
                            for &condition in &step.conditions {
                                cells += 1;
                                seen.insert((block.index, condition, step.arm));
                            }
                        }
                    }
                    assert_eq!(cells, arms * conditions * count);
                    assert_eq!(seen.len(), cells, "a cell is there twice");
                    let servers: usize = all.iter().map(|block| block.steps.len()).sum();
                    let expected = match fresh {
                        Fresh::Cell => cells,
                        Fresh::Block => arms * count,
                    };
                    assert_eq!(servers, expected);
                }
            }
        }
    }

    #[test]
    fn the_second_block_of_a_pair_is_the_first_one_reversed() {
        for fresh in [Fresh::Cell, Fresh::Block] {
            let orders = orders(&blocks(4, 3, 8, fresh, 7).all());
            for ((block, condition), order) in &orders {
                if block % 2 == 0 {
                    let mut second = orders[&(block + 1, *condition)].clone();
                    second.reverse();
                    assert_eq!(*order, second);
                }
            }
        }
    }

    #[test]
    fn every_order_is_as_likely_as_any_other() {
        let mut counts: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for seed in 0..600 {
            for order in orders(&blocks(3, 1, 1, Fresh::Cell, seed).all()).into_values() {
                *counts.entry(order).or_default() += 1;
            }
        }
        assert_eq!(counts.len(), 6);
        // 100 expected of each, binomial deviation 9.1: five of them.
        assert!(counts.values().all(|n| n.abs_diff(100) < 46), "{counts:?}");
    }

    #[test]
    fn seeds_differ_between_blocks_repeat_with_the_suite_and_may_be_given() {
        let seeds =
            |blocks: Blocks| -> Vec<u64> { blocks.all().iter().map(|block| block.seed).collect() };
        let own = seeds(blocks(2, 1, 50, Fresh::Cell, 3));
        assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), 50);
        assert_eq!(own, seeds(blocks(2, 1, 50, Fresh::Cell, 3)));
        assert_ne!(own, seeds(blocks(2, 1, 50, Fresh::Cell, 4)));
        assert!(own.iter().all(|seed| *seed < 1 << 52));
        // A suite with more blocks begins with the same ones.
        assert_eq!(own, seeds(blocks(2, 1, 60, Fresh::Cell, 3))[..50]);
        let given = Blocks {
            seeds: Some(vec![11, 12, 13]),
            ..blocks(2, 1, 2, Fresh::Cell, 3)
        };
        assert_eq!(seeds(given), [11, 12]);
    }
}
