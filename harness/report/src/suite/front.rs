//! Which settings nothing beats: the Pareto front of two latencies.

use super::settings::Over;
use super::unfit::Unfit;

/// A setting of one condition with its two latencies over blocks; less is better in both.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Name of the arm.
    pub(super) arm: String,
    /// Latency of the horizontal axis.
    pub(super) x: Over,
    /// Latency of the vertical axis.
    pub(super) y: Over,
    /// Why nothing may be chosen by one of both.
    pub(super) unfit: Option<Unfit>,
}

/// How a point stands to the others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    /// By the medians: the point that is at least as good in both and better in one. Of several
    /// the one that is so in most blocks.
    pub(super) dominated_by: Option<usize>,
    /// Blocks in which that one is so, of the blocks that have both.
    pub(super) in_blocks: (usize, usize),
    /// Blocks in which no other point is better, of the blocks that have this one.
    pub(super) on_front: (usize, usize),
    /// It is unfit, so it is neither on the front nor does it beat another.
    pub(super) unfit: Option<Unfit>,
}

impl Standing {
    /// Whether no other point beats it.
    pub(super) fn is_on_front(&self) -> bool {
        self.dominated_by.is_none() && self.unfit.is_none()
    }
}

impl Point {
    /// Medians of both latencies, when both were measured.
    pub(super) fn middle(&self) -> Option<(f64, f64)> {
        Some((self.x.median()?, self.y.median()?))
    }

    fn in_block(&self, block: usize) -> Option<(f64, f64)> {
        Some((self.x.in_block(block)?, self.y.in_block(block)?))
    }

    fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.x.values.iter().map(|(block, _)| *block);
        all.filter(|&block| self.y.in_block(block).is_some())
    }
}

/// Whether `a` is at least as good as `b` in both and better in one.
fn dominates(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0 <= b.0 && a.1 <= b.1 && a != b
}

/// How each point stands, in the order of the points; absent for points without both latencies.
pub(super) fn standings(points: &[Point]) -> Vec<Option<Standing>> {
    let standing = |number: usize, point: &Point| {
        let middle = point.middle()?;
        let better_in = |other: &Point| {
            let both: Vec<bool> = point
                .blocks()
                .filter_map(|block| Some(dominates(other.in_block(block)?, point.in_block(block)?)))
                .collect();
            (both.iter().filter(|yes| **yes).count(), both.len())
        };
        if point.unfit.is_some() {
            return Some(Standing {
                dominated_by: None,
                in_blocks: (0, 0),
                on_front: (0, 0),
                unfit: point.unfit,
            });
        }
        let rivals = points.iter().enumerate();
        let rivals = rivals.filter(|(i, other)| *i != number && other.unfit.is_none());
        let best = rivals
            .clone()
            .filter(|(_, other)| other.middle().is_some_and(|m| dominates(m, middle)))
            .map(|(i, other)| (better_in(other), std::cmp::Reverse(i)))
            .max();
        let free = point.blocks().filter(|&block| {
            let own = point.in_block(block);
            !rivals.clone().any(|(_, other)| {
                let pair = other.in_block(block).zip(own);
                pair.is_some_and(|(other, own)| dominates(other, own))
            })
        });
        Some(Standing {
            dominated_by: best.map(|(_, std::cmp::Reverse(i))| i),
            in_blocks: best.map_or((0, 0), |(blocks, _)| blocks),
            on_front: (free.count(), point.blocks().count()),
            unfit: None,
        })
    };
    let all = points.iter().enumerate();
    all.map(|(number, point)| standing(number, point)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(values: &[f64]) -> Over {
        Over {
            values: values.iter().copied().enumerate().collect(),
            cells: values.len(),
        }
    }

    fn point(x: &[f64], y: &[f64]) -> Point {
        Point {
            arm: String::new(),
            x: over(x),
            y: over(y),
            unfit: None,
        }
    }

    #[test]
    fn the_front_and_who_beats_whom() {
        // By hand: 0 (1, 9) and 1 (5, 2) are on the front; 2 (6, 3) is beaten by 1 in two of its
        // three blocks; 3 has no second latency; 4 is equal to 1, which beats nothing.
        let points = [
            point(&[1.0, 1.0, 1.0], &[9.0, 9.0, 9.0]),
            point(&[5.0, 5.0, 5.0], &[2.0, 2.0, 2.0]),
            point(&[6.0, 6.0, 4.0], &[3.0, 3.0, 3.0]),
            point(&[1.0], &[]),
            point(&[5.0, 5.0, 5.0], &[2.0, 2.0, 2.0]),
        ];
        let found = standings(&points);
        let of = |i: usize| found[i].clone().unwrap();
        assert_eq!(of(0).dominated_by, None);
        assert_eq!(of(0).on_front, (3, 3));
        assert_eq!(of(1).dominated_by, None);
        assert_eq!((of(2).dominated_by, of(2).in_blocks), (Some(1), (2, 3)));
        assert_eq!(of(2).on_front, (1, 3));
        assert_eq!(found[3], None);
        assert_eq!(of(4).dominated_by, None);
    }

    #[test]
    fn what_is_unfit_is_no_place_to_be() {
        // By its medians 0 beats 1; but it jumps.
        let jumping = Point {
            unfit: Some(Unfit::Jumps),
            ..point(&[1.0, 1.0, 90.0], &[1.0, 1.0, 1.0])
        };
        let points = [jumping, point(&[2.0; 3], &[2.0; 3])];
        let found = standings(&points);
        let of = |i: usize| found[i].clone().unwrap();
        assert!(!of(0).is_on_front() && of(1).is_on_front());
        assert_eq!(of(1).on_front, (3, 3));
    }
}
