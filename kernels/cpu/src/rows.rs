//! Matrices whose rows need not be adjacent, so that q, k and v can be used straight out of
//! one fused projection buffer instead of being copied apart first.

/// Read-only rows: row `i` starts at `data[i * stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Values, starting at the first value of row 0.
    pub data: &'a [f32],
    /// Distance between the starts of adjacent rows, in values.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `data`, one every `stride` values.
    pub fn new(data: &'a [f32], stride: usize) -> Self {
        Rows { data, stride }
    }

    /// The first `width` values of row `i`.
    ///
    /// # Panics
    /// When the row does not lie inside the data.
    pub fn row(&self, i: usize, width: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..width]
    }

    /// Asserts that `rows` rows of `width` values lie inside the data.
    pub(crate) fn check(&self, rows: usize, width: usize, what: &str) {
        check(self.data.len(), self.stride, rows, width, what);
    }
}

/// Writable rows: row `i` starts at `data[i * stride]`.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Values, starting at the first value of row 0.
    pub data: &'a mut [f32],
    /// Distance between the starts of adjacent rows, in values.
    pub stride: usize,
}

impl<'a> RowsMut<'a> {
    /// Rows of `data`, one every `stride` values.
    pub fn new(data: &'a mut [f32], stride: usize) -> Self {
        RowsMut { data, stride }
    }

    /// Asserts that `rows` rows of `width` values lie inside the data and do not overlap.
    pub(crate) fn check(&self, rows: usize, width: usize, what: &str) {
        check(self.data.len(), self.stride, rows, width, what);
    }
}

fn check(len: usize, stride: usize, rows: usize, width: usize, what: &str) {
    assert!(
        rows <= 1 || stride >= width,
        "{what}: stride {stride} below row width {width}"
    );
    let need = rows.checked_sub(1).map_or(0, |last| last * stride + width);
    assert!(
        len >= need,
        "{what}: {len} values for {rows} rows, need {need}"
    );
}
