//! The pictures of a report, each made from raw rows.
//!
//! Big runs have more points than pixels. What is left out is never left out silently: a plot of
//! gaps keeps the largest of each pixel column, a plot of clouds draws one mark for each pixel
//! that has any, and both say so in their captions.

pub(crate) mod buckets;
pub(crate) mod ecdf;
pub(crate) mod forest;
pub(crate) mod numerics;
pub(crate) mod step_cost;
pub(crate) mod step_time;
pub(crate) mod timeline;

/// A picture with its heading and the sentence under it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// Heading.
    pub title: String,
    /// How to read it, and what was left out.
    pub caption: String,
    /// The picture.
    pub svg: String,
}

/// Width of every picture in pixels of its view box.
pub(crate) const WIDTH: f64 = 760.0;

/// Keeps for each pixel column the point with the largest value, in order of columns.
pub(crate) fn column_maxima(points: impl IntoIterator<Item = (i64, f64)>) -> Vec<(i64, f64)> {
    let mut columns: std::collections::BTreeMap<i64, f64> = std::collections::BTreeMap::new();
    for (column, value) in points {
        let kept = columns.entry(column).or_insert(value);
        if value > *kept {
            *kept = value;
        }
    }
    columns.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_column_stays() {
        let points = [(3, 1.0), (1, 5.0), (3, 9.0), (1, 2.0), (2, 0.5)];
        assert_eq!(column_maxima(points), [(1, 5.0), (2, 0.5), (3, 9.0)]);
    }
}
