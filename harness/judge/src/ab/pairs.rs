//! Which block pairs take part, and how many do not and why.
//!
//! A pair is dropped as a whole: keeping A's half of a block in which B failed would compare
//! different conditions.

use super::metric::{ArmValues, Excluded, Scale};

/// The values of the pairs that are kept, in block order.
pub(super) struct Pairs {
    pub(super) a: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) excluded: Excluded,
}

impl Pairs {
    pub(super) fn of(values: &ArmValues, scale: Scale) -> Self {
        let mut pairs = Self {
            a: Vec::new(),
            b: Vec::new(),
            excluded: Excluded::default(),
        };
        for (a, b) in values.a.iter().zip(&values.b) {
            let (a, b) = (a.filter(|v| v.is_finite()), b.filter(|v| v.is_finite()));
            match (a, b) {
                (None, _) => pairs.excluded.missing_a += 1,
                (Some(_), None) => pairs.excluded.missing_b += 1,
                (Some(a), Some(b)) => {
                    if matches!(scale, Scale::Ratio { .. }) && (a <= 0.0 || b <= 0.0) {
                        pairs.excluded.not_positive += 1;
                    } else {
                        pairs.a.push(a);
                        pairs.b.push(b);
                    }
                }
            }
        }
        pairs
    }

    pub(super) fn len(&self) -> usize {
        self.a.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_kept_or_counted_once() {
        let values = ArmValues {
            a: vec![
                Some(1.0),
                None,
                Some(2.0),
                None,
                Some(0.0),
                Some(f64::NAN),
                Some(3.0),
            ],
            b: vec![
                Some(4.0),
                Some(1.0),
                None,
                None,
                Some(1.0),
                Some(1.0),
                Some(-1.0),
            ],
        };
        let ratio = Pairs::of(&values, Scale::Ratio { margin: 0.03 });
        assert_eq!((ratio.a, ratio.b), (vec![1.0], vec![4.0]));
        let want = Excluded {
            missing_a: 3,
            missing_b: 1,
            not_positive: 2,
        };
        assert_eq!((ratio.excluded, want.total()), (want, 6));
        let difference = Pairs::of(&values, Scale::Difference { margin: 1.0 });
        assert_eq!(
            (difference.a, difference.b),
            (vec![1.0, 0.0, 3.0], vec![4.0, 1.0, -1.0])
        );
    }
}
