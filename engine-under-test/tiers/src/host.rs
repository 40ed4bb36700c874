//! Images in the memory of this process.

use crate::error::TierError;
use crate::key::TierKey;
use crate::lru::Lru;
use crate::tier::{PutOutcome, Tier, TierKind};

/// Bounded host memory. The bound covers images, not the few bytes of bookkeeping for each.
#[derive(Debug)]
pub struct HostTier {
    capacity_bytes: u64,
    held: Lru<Image>,
}

/// Keeps a dump of the tier readable: length instead of contents.
struct Image(Vec<u8>);

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl HostTier {
    /// An empty tier for at most `capacity_bytes` of images.
    pub fn new(capacity_bytes: u64) -> Self {
        HostTier {
            capacity_bytes,
            held: Lru::default(),
        }
    }
}

impl Tier for HostTier {
    fn kind(&self) -> TierKind {
        TierKind::Host
    }

    fn contains(&self, key: &TierKey) -> bool {
        self.held.contains(key)
    }

    fn get(&mut self, key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError> {
        out.clear();
        let found = self.held.touch(key);
        if let Some(image) = found {
            out.extend_from_slice(&image.0);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, key: &TierKey, image: &[u8]) -> Result<PutOutcome, TierError> {
        let mut outcome = PutOutcome::default();
        if self.held.touch(key).is_some() {
            (outcome.stored, outcome.present) = (true, true);
            return Ok(outcome);
        }
        let bytes = image.len() as u64;
        if bytes > self.capacity_bytes {
            return Ok(outcome);
        }
        while self.held.bytes() + bytes > self.capacity_bytes {
            let Some(oldest) = self.held.oldest() else {
                break;
            };
            if let Some(Image(victim)) = self.held.remove(&oldest) {
                outcome.evicted += 1;
                outcome.victims.push((oldest, victim));
            }
        }
        self.held.insert(*key, bytes, Image(image.to_vec()));
        outcome.stored = true;
        Ok(outcome)
    }

    fn blocks(&self) -> u64 {
        self.held.len()
    }

    fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    fn clear(&mut self) -> Result<(), TierError> {
        self.held.clear();
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.held.check()?;
        if self.held.bytes() > self.capacity_bytes {
            return Err(format!(
                "host tier holds {} bytes of at most {}",
                self.held.bytes(),
                self.capacity_bytes
            ));
        }
        Ok(())
    }
}
