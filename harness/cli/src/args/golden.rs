//! The command line of `golden`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::name;

/// Arguments of `golden`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench golden verify
  prefillbench golden bless logits_f64 --reason \"epsilon read from the file, not assumed\"

index.toml in the folder has the sha256 of every file, the program that made it, and where the
tolerance of its tests comes from.

Exit codes: 0 as listed, 1 a file changed, is missing or is not listed, 2 bad usage.")]
pub(crate) struct GoldenArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) what: GoldenWhat,
}

/// Actions of `golden`.
#[derive(Debug, Subcommand)]
pub(crate) enum GoldenWhat {
    /// Compare every file with the index.
    Verify {
        /// The folder.
        #[arg(long, default_value = "golden")]
        dir: PathBuf,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Write the files of one set into the index as they are now.
    Bless {
        /// The set: a folder inside the folder.
        set: String,
        /// Why the expected values changed; it is kept in the index.
        #[arg(long, value_parser = name)]
        reason: String,
        /// Command that makes the files; needed for a new set.
        #[arg(long, value_parser = name)]
        generator: Option<String>,
        /// Where the tolerance of the tests comes from; needed for a new set.
        #[arg(long, value_parser = name)]
        tolerance: Option<String>,
        /// The folder.
        #[arg(long, default_value = "golden")]
        dir: PathBuf,
    },
}
