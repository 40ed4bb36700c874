//! The contract of a tier.

use crate::error::TierError;
use crate::key::TierKey;

/// Which tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TierKind {
    /// Memory of this process.
    Host,
    /// A directory.
    Disk,
    /// A Redis-compatible server.
    Redis,
}

impl TierKind {
    /// All, fastest first.
    pub const ALL: [TierKind; 3] = [TierKind::Host, TierKind::Disk, TierKind::Redis];

    /// Lower-case name, as in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            TierKind::Host => "host",
            TierKind::Disk => "disk",
            TierKind::Redis => "redis",
        }
    }
}

/// What a put did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOutcome {
    /// The image is in the tier now. False: it is larger than the tier's bound, or the tier rests.
    pub stored: bool,
    /// It was there before and has only become recent.
    pub present: bool,
    /// Blocks that had to go for it.
    pub evicted: u64,
    /// Their images, for the tier below; empty when the tier was told to drop them.
    pub victims: Vec<(TierKey, Vec<u8>)>,
}

/// A store of block images.
///
/// Laws, which one suite checks for every implementer: `get` gives exactly the bytes of the last
/// `put` under that key or nothing; nothing is ever found under another key; a bounded tier never
/// holds more than its bound; the least recently used block goes first, where use is a `put` or a
/// `get` that found something and time is a count of those.
pub trait Tier: std::fmt::Debug + Send {
    /// Which tier.
    fn kind(&self) -> TierKind;

    /// Whether the tier holds `key`, as far as it can tell without reading it. May be stale.
    fn contains(&self, key: &TierKey) -> bool;

    /// How many of the first keys are held one after the other. Asks a remote server once.
    fn leading(&self, keys: &[TierKey]) -> usize {
        keys.iter().take_while(|key| self.contains(key)).count()
    }

    /// Replaces the contents of `out` with the image under `key`; false, and an empty `out`, when
    /// there is none.
    ///
    /// # Errors
    /// The image exists but cannot be read or is not what was stored. `out` is empty then.
    fn get(&mut self, key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError>;

    /// Stores an image. An image under the same key is the same image: it is not written again.
    ///
    /// # Errors
    /// The image could not be written, and nothing is stored under `key`.
    fn put(&mut self, key: &TierKey, image: &[u8]) -> Result<PutOutcome, TierError>;

    /// Blocks held. For a shared server: those that this process knows of.
    fn blocks(&self) -> u64;

    /// Bytes held, headers included where there are any.
    fn bytes(&self) -> u64;

    /// Forgets all blocks; on a shared server those of this namespace and identity.
    ///
    /// # Errors
    /// Something could not be removed.
    fn clear(&mut self) -> Result<(), TierError>;

    /// Lookups that failed since the tier was opened: those have no result to tell it with.
    fn lookup_errors(&self) -> u64 {
        0
    }

    /// Checks the tier's bookkeeping.
    ///
    /// # Errors
    /// What does not add up.
    fn check(&self) -> Result<(), String>;
}

/// Counts of one tier since it was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Fetches that this tier answered.
    pub hits: u64,
    /// Fetches that reached this tier and that it could not answer, errors included.
    pub misses: u64,
    /// Images written, promotions and victims of the tier above included.
    pub stored: u64,
    /// Images that had to make room.
    pub evicted: u64,
    /// Images not taken: larger than the bound, or the tier rests.
    pub refused: u64,
    /// Operations that failed: torn or altered images, full disks, silent servers.
    pub errors: u64,
    /// Bytes held now.
    pub bytes: u64,
    /// Blocks held now.
    pub blocks: u64,
}
