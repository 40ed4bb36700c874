//! Comparison helpers shared by this crate's unit tests.

/// Asserts `|got - want| <= relative * |want| + absolute`.
#[track_caller]
pub(crate) fn close(got: f64, want: f64, relative: f64, absolute: f64) {
    let allowed = relative * want.abs() + absolute;
    assert!(
        (got - want).abs() <= allowed,
        "got {got:e}, want {want:e}, off by {:e}, allowed {allowed:e}",
        (got - want).abs()
    );
}
