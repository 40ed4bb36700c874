//! Images in a directory: one file a block, of which a crash leaves whole ones or none.
//!
//! ```text
//! DIR/lock            held while an engine uses the directory; marks it as a block store
//! DIR/incoming/N      being written; removed at the next start
//! DIR/blocks/ab/NAME  finished; NAME is the key in hexadecimal, `ab` two digits of its digest
//! ```
//!
//! A file is written under `incoming`, synced and renamed, so a name under `blocks` always stands
//! for a file that was complete. The directory itself is not synced: a name that a crash loses is
//! a miss. The checksum of every image is verified when it is read, because disks forget.
//!
//! The order of use lives in memory. At a start blocks are ordered by the tick of their write,
//! which their header holds.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::TierError;
use crate::frame::{self, HEADER_BYTES};
use crate::key::TierKey;
use crate::lru::Lru;
use crate::tier::{PutOutcome, Tier, TierKind};

const LOCK: &str = "lock";
const INCOMING: &str = "incoming";
const BLOCKS: &str = "blocks";

/// What becomes of images that make room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Read and handed out, for the tier below.
    Keep,
    /// Only removed.
    Drop,
}

/// Bounded disk space. The bound covers the files' lengths, headers included.
#[derive(Debug)]
pub struct DiskTier {
    dir: PathBuf,
    capacity_bytes: u64,
    victims: Victims,
    /// Length of each file.
    held: Lru<u64>,
    /// Goes up with every write, over restarts too.
    write_tick: u64,
    discarded: u64,
    _lock: DirLock,
}

/// Held while the directory is in use; the system releases it when the process ends, however it
/// ends.
#[derive(Debug)]
struct DirLock(File);

impl Drop for DirLock {
    /// Closing alone is not enough: a child process that is being started at this moment has a
    /// copy of the descriptor, and would keep the lock until it runs its own program.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl DiskTier {
    /// Opens the store in `dir`, which is made if absent, for at most `capacity_bytes`. Torn files
    /// of an earlier engine are removed, files that are not the store's are left alone.
    ///
    /// # Errors
    /// Another engine has the directory, it holds something else, or it cannot be read or written.
    pub fn open(dir: &Path, capacity_bytes: u64, victims: Victims) -> Result<Self, TierError> {
        let lock = lock(dir)?;
        let mut tier = DiskTier {
            dir: dir.to_path_buf(),
            capacity_bytes,
            victims,
            held: Lru::default(),
            write_tick: 0,
            discarded: 0,
            _lock: lock,
        };
        let incoming = dir.join(INCOMING);
        match fs::remove_dir_all(&incoming) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(TierError::io(&incoming, "cannot be emptied")(e));
            }
            _ => create_dir(&incoming)?,
        }
        create_dir(&dir.join(BLOCKS))?;
        tier.scan()?;
        tier.make_room(0, Victims::Drop)?;
        Ok(tier)
    }

    /// Files that were torn, altered or of another version, and have been removed.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Finds the blocks of earlier engines and orders them by the tick of their write.
    fn scan(&mut self) -> Result<(), TierError> {
        let mut found: Vec<(u64, TierKey, u64)> = Vec::new();
        for folder in entries(&self.dir.join(BLOCKS))? {
            if !folder.is_dir() {
                continue;
            }
            for path in entries(&folder)? {
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(key) = name.and_then(TierKey::from_hex) else {
                    continue;
                };
                // A right name in a wrong folder would never be found again.
                if path != self.path(&key) {
                    continue;
                }
                match inspect(&path, &key) {
                    Some((tick, bytes)) => found.push((tick, key, bytes)),
                    // Not of our making: never found, and not ours to remove.
                    None if path.is_dir() => {}
                    None => {
                        fs::remove_file(&path)
                            .map_err(TierError::io(&path, "torn, and cannot be removed"))?;
                        self.discarded += 1;
                    }
                }
            }
        }
        found.sort_unstable();
        self.write_tick = found.last().map_or(0, |(tick, ..)| tick.saturating_add(1));
        for (_, key, bytes) in found {
            self.held.insert(key, bytes, bytes);
        }
        Ok(())
    }

    fn path(&self, key: &TierKey) -> PathBuf {
        let name = key.to_hex();
        let folder = &name[name.len() - 2..];
        self.dir.join(BLOCKS).join(folder).join(&name)
    }

    /// Reads and verifies a file; false when it is gone. A bad one is removed.
    fn read(&mut self, key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError> {
        out.clear();
        let path = self.path(key);
        let bytes = self.held.touch(key).copied().unwrap_or(0);
        let read = File::open(&path).and_then(|file| {
            out.reserve(bytes as usize);
            // One byte more than expected is enough to see that a file has grown.
            file.take(bytes + 1).read_to_end(out)
        });
        if let Err(e) = read {
            out.clear();
            self.held.remove(key);
            return match e.kind() {
                ErrorKind::NotFound => Ok(false),
                _ => Err(TierError::io(&path, "cannot be read")(e)),
            };
        }
        if let Err(what) = frame::open(key, out) {
            out.clear();
            self.held.remove(key);
            self.discarded += 1;
            // A file that cannot be removed either is checked again at the next start.
            let _ = fs::remove_file(&path);
            let place = path.display().to_string();
            return Err(TierError::Corrupt { place, what });
        }
        out.drain(..HEADER_BYTES);
        Ok(true)
    }

    /// Removes the least recently used blocks until `bytes` more would fit.
    fn make_room(&mut self, bytes: u64, victims: Victims) -> Result<PutOutcome, TierError> {
        let mut outcome = PutOutcome::default();
        while self.held.bytes() + bytes > self.capacity_bytes {
            let Some(oldest) = self.held.oldest() else {
                break;
            };
            let mut image = Vec::new();
            // A victim that cannot be read is lost, as it would be without a tier below.
            if victims == Victims::Keep && matches!(self.read(&oldest, &mut image), Ok(true)) {
                outcome.victims.push((oldest, image));
            }
            self.remove(&oldest)?;
            outcome.evicted += 1;
        }
        Ok(outcome)
    }

    fn remove(&mut self, key: &TierKey) -> Result<(), TierError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(TierError::io(&path, "cannot be removed")(e));
            }
            _ => self.held.remove(key),
        };
        Ok(())
    }

    /// Writes the file of a block; on an error nothing of it stays.
    fn write(&mut self, key: &TierKey, image: &[u8]) -> Result<(), TierError> {
        let (path, tick) = (self.path(key), self.write_tick);
        let incoming = self.dir.join(INCOMING).join(tick.to_string());
        self.write_tick += 1;
        let written = File::create(&incoming).and_then(|mut file| {
            file.write_all(&frame::header(key, tick, image))?;
            file.write_all(image)?;
            file.sync_all()?;
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::rename(&incoming, &path)
        });
        written.map_err(|e| {
            // What cannot be removed now is removed at the next start.
            let _ = fs::remove_file(&incoming);
            TierError::io(&path, "cannot be written")(e)
        })
    }
}

impl Tier for DiskTier {
    fn kind(&self) -> TierKind {
        TierKind::Disk
    }

    fn contains(&self, key: &TierKey) -> bool {
        self.held.contains(key)
    }

    fn get(&mut self, key: &TierKey, out: &mut Vec<u8>) -> Result<bool, TierError> {
        out.clear();
        if !self.held.contains(key) {
            return Ok(false);
        }
        self.read(key, out)
    }

    fn put(&mut self, key: &TierKey, image: &[u8]) -> Result<PutOutcome, TierError> {
        if self.held.touch(key).is_some() {
            return Ok(PutOutcome {
                stored: true,
                present: true,
                ..PutOutcome::default()
            });
        }
        let bytes = (HEADER_BYTES + image.len()) as u64;
        if bytes > self.capacity_bytes {
            return Ok(PutOutcome::default());
        }
        let mut outcome = self.make_room(bytes, self.victims)?;
        self.write(key, image)?;
        self.held.insert(*key, bytes, bytes);
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
        while let Some(oldest) = self.held.oldest() {
            self.remove(&oldest)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.held.check()?;
        if self.held.bytes() > self.capacity_bytes {
            return Err(format!(
                "disk tier holds {} bytes of at most {}",
                self.held.bytes(),
                self.capacity_bytes
            ));
        }
        Ok(())
    }
}

/// Takes the directory: it must be new, empty or a block store, and nobody else's.
fn lock(dir: &Path) -> Result<DirLock, TierError> {
    create_dir(dir)?;
    let path = dir.join(LOCK);
    if !path.exists() && !entries(dir)?.is_empty() {
        return Err(TierError::Foreign(dir.to_path_buf()));
    }
    let file = File::create(&path).map_err(TierError::io(&path, "cannot be made"))?;
    match file.try_lock() {
        Ok(()) => Ok(DirLock(file)),
        Err(TryLockError::WouldBlock) => Err(TierError::Locked(dir.to_path_buf())),
        Err(TryLockError::Error(e)) => Err(TierError::io(&path, "cannot be locked")(e)),
    }
}

fn create_dir(dir: &Path) -> Result<(), TierError> {
    fs::create_dir_all(dir).map_err(TierError::io(dir, "cannot be made"))
}

/// Paths in a directory, sorted.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, TierError> {
    let unreadable = || TierError::io(dir, "cannot be listed");
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable())? {
        paths.push(entry.map_err(unreadable())?.path());
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Tick and length of a finished file, by its header alone; `None` when it cannot be one.
fn inspect(path: &Path, key: &TierKey) -> Option<(u64, u64)> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    let tick = frame::read_header(key, &header, metadata.len()).ok()?;
    metadata.is_file().then_some((tick, metadata.len()))
}
