//! What can go wrong with a tier.

use std::path::{Path, PathBuf};

/// Why a tier cannot be opened, or why one of its operations failed.
///
/// No message holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// An option that cannot be met.
    #[error("tiers.{key} = {value}: {fix}")]
    Option {
        /// Name of the option.
        key: &'static str,
        /// What it was set to; left out where it may hold a credential.
        value: String,
        /// What to do.
        fix: &'static str,
    },
    /// Another engine has the directory.
    #[error("{}: in use by another engine: give each engine a disk_dir of its own", .0.display())]
    Locked(PathBuf),
    /// The directory holds something else, which a size-bounded tier must not touch.
    #[error("{}: not empty and not a block store: give disk_dir a new directory", .0.display())]
    Foreign(PathBuf),
    /// The file system refused.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A stored image is torn, of another version or altered. It has been removed.
    #[error("{place}: {what}; removed")]
    Corrupt {
        /// File or key.
        place: String,
        /// How it was noticed.
        what: &'static str,
    },
    /// The server answered with an error.
    #[error("redis server: {0}")]
    Server(String),
    /// The server did not answer in time or cannot be reached; the tier rests for a while.
    #[error("redis server: {0}; the tier rests")]
    Unreachable(String),
}

impl TierError {
    /// For `map_err`: a failed action on `path`.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| TierError::Io {
            path,
            action,
            source,
        }
    }
}
