//! What the tests share: the library, and how a verdict is asserted.

use std::path::Path;
use std::sync::OnceLock;

pub(crate) use pb_kernels_cuda::check::{
    Expected, Rng, Stored, Value, Verdict, bits, f64s, judge, typed,
};
use pb_kernels_cuda::{KernelError, Library};

/// Where the tests of all crates keep built kernels.
fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
}

/// The library of one file with macros; `None`, with a message, where nothing can compile it.
pub(crate) fn variant(file: &str, defines: &[&str]) -> Option<Library> {
    available(Library::build_variant(directory(), file, defines))
}

/// The library of all files with macros; files that know none of them are not built again.
pub(crate) fn all_files(defines: &[&str]) -> Option<Library> {
    available(Library::build_with(directory(), defines))
}

fn available(built: Result<Library, KernelError>) -> Option<Library> {
    match built {
        Ok(library) => Some(library),
        Err(e @ KernelError::NoCompiler { .. }) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The library of all kernels, built once.
pub(crate) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| available(Library::build(directory())))
        .as_ref()
}

/// Asserts both rules and prints how much of them was used.
pub(crate) fn accept(what: &str, got: &[f64], want: &[Expected]) {
    let verdict = judge(got, want);
    println!(
        "{what}: {:.0} % of the rule, {:.0} % of the bound",
        100.0 * verdict.of_rule,
        100.0 * verdict.of_bound
    );
    assert!(verdict.passes(), "{what}: {verdict:?}");
}
