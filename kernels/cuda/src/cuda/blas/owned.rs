//! What cuBLASLt made, given back on every way out of a function.

use super::{failed, lt};
use crate::error::KernelError;

/// How the library takes something back.
type GiveBack<T> = unsafe fn(T) -> Result<(), lt::CublasError>;

/// Something that the library made; it gets it back when this is dropped.
pub(super) struct Owned<T: Copy> {
    pub(super) it: T,
    give_back: GiveBack<T>,
}

impl<T: Copy> Owned<T> {
    pub(super) fn new(
        made: Result<T, lt::CublasError>,
        call: &'static str,
        give_back: GiveBack<T>,
    ) -> Result<Self, KernelError> {
        let it = made.map_err(failed(call))?;
        Ok(Owned { it, give_back })
    }
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, given back once, used by nobody after this. A failure to
        // free is nothing to act on.
        let _ = unsafe { (self.give_back)(self.it) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::{Owned, lt};

    #[test]
    fn what_the_library_made_goes_back_once_and_nothing_does_that_it_did_not_make() {
        unsafe fn count(back: &'static AtomicUsize) -> Result<(), lt::CublasError> {
            back.fetch_add(1, Relaxed);
            Ok(())
        }
        static BACK: AtomicUsize = AtomicUsize::new(0);
        let owned = Owned::new(Ok(&BACK), "create", count).ok();
        assert!(owned.is_some());
        assert_eq!(BACK.load(Relaxed), 0);
        drop(owned);
        assert_eq!(BACK.load(Relaxed), 1);
        let refusal =
            lt::CublasError(cudarc::cublaslt::sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED);
        assert!(Owned::new(Err(refusal), "create", count).is_err());
        assert_eq!(BACK.load(Relaxed), 1);
    }
}
