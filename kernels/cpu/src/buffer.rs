//! Buffers that start on a cache line, and a per-thread scratch.
//!
//! A 64-byte load that straddles two cache lines costs double, and `Vec<f32>` only promises
//! four-byte alignment; so weights, caches and scratch live in lines of 64 bytes.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: an array of bytes: no padding, every bit pattern is valid.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// A zero-initialised buffer of `T` that starts on a 64-byte boundary; used like a slice.
#[derive(Clone)]
pub struct AlignedBuf<T> {
    lines: Vec<Line>,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> AlignedBuf<T> {
    /// `len` elements, all zero.
    pub fn zeroed(len: usize) -> Self {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        AlignedBuf {
            lines: vec![Line::zeroed(); lines],
            len,
            element: std::marker::PhantomData,
        }
    }
}

impl<T: Pod> Default for AlignedBuf<T> {
    fn default() -> Self {
        AlignedBuf::zeroed(0)
    }
}

impl<T: Pod> Deref for AlignedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice::<Line, T>(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for AlignedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut::<Line, T>(&mut self.lines)[..self.len]
    }
}

impl<T> std::fmt::Debug for AlignedBuf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} elements)", self.len)
    }
}

/// Lends a per-thread aligned scratch of `len` floats with unspecified contents.
///
/// The buffer is moved out while lent, so a nested call gets its own instead of a panic.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<AlignedBuf<f32>> = RefCell::new(AlignedBuf::zeroed(0));
    }
    let mut buf = SCRATCH.with(|s| std::mem::take(&mut *s.borrow_mut()));
    if buf.len() < len {
        buf = AlignedBuf::zeroed(len);
    }
    let out = f(&mut buf[..len]);
    SCRATCH.with(|s| *s.borrow_mut() = buf);
    out
}

#[cfg(test)]
mod tests {
    use super::{AlignedBuf, with_scratch};

    #[test]
    fn buffers_are_aligned_zeroed_and_of_the_asked_length() {
        for len in [0usize, 1, 15, 16, 17, 1000] {
            let buf = AlignedBuf::<f32>::zeroed(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % 64, 0);
            assert!(buf.iter().all(|x| *x == 0.0));
        }
    }

    #[test]
    fn nested_scratch_does_not_alias() {
        with_scratch(8, |outer| {
            outer.fill(1.0);
            with_scratch(8, |inner| inner.fill(2.0));
            assert!(outer.iter().all(|x| *x == 1.0));
        });
    }
}
