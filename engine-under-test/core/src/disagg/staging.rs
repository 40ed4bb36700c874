//! Copies of blocks for the threads that move them.
//!
//! The pool belongs to the engine's thread, which is in a step most of the time, and a transfer
//! must neither wait for a step nor hold one up. So what is sent is copied out of the pool when it
//! is handed off, and what arrives is copied into it when all of it is here: a copy at each side
//! for the freedom of both. A slot has a name that is not used again, and bytes that come for a
//! slot that is gone are refused: what is late cannot reach anybody else's block.
//!
//! A transport looks at images where they lie, and nobody waits for it meanwhile: it holds the
//! images and not the lock, and whoever writes an image that is looked at writes a copy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pb_contract::BlockId;
use pb_transfer::{Descriptor, Memory, MemoryError, MemoryKind, Region};

/// Names a slot that was never made: for blocks that are not to be written.
pub(super) const NOWHERE: BlockId = BlockId(u32::MAX);

#[derive(Debug, Default)]
struct Slots {
    made: u32,
    images: BTreeMap<u32, Arc<Vec<u8>>>,
}

impl Slots {
    /// A name that is not in use.
    fn name(&mut self) -> u32 {
        let mut name = self.made;
        while name == NOWHERE.0 || self.images.contains_key(&name) {
            name = name.wrapping_add(1);
        }
        self.made = name.wrapping_add(1);
        name
    }
}

/// Block images by slot. To a transfer the slots are the blocks of a large memory.
#[derive(Debug)]
pub struct Staging {
    image_bytes: usize,
    header: Vec<u8>,
    slots: Mutex<Slots>,
}

impl Staging {
    /// Without slots. Every image begins with `header`.
    pub fn new(image_bytes: usize, header: Vec<u8>) -> Staging {
        assert!(image_bytes > header.len(), "an image has a content");
        Staging {
            image_bytes,
            header,
            slots: Mutex::default(),
        }
    }

    /// Where the segments of `layers` layers lie.
    pub fn region(&self, layers: usize) -> Region {
        let (header, layers) = (self.header.len() as u64, layers as u64);
        let segment = (self.image_bytes as u64 - header) / layers;
        Region::block_major(0, header, layers as u32, segment)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // A panic elsewhere leaves whole images.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot with an image.
    pub fn put(&self, image: Vec<u8>) -> BlockId {
        assert_eq!(image.len(), self.image_bytes, "one length for all images");
        let mut slots = self.slots();
        let name = slots.name();
        slots.images.insert(name, Arc::new(image));
        BlockId(name)
    }

    /// Names for slots that are made later, by [`Staging::fill`]. They take no memory.
    pub fn names(&self, count: usize) -> Vec<BlockId> {
        let mut slots = self.slots();
        (0..count).map(|_| BlockId(slots.name())).collect()
    }

    /// Makes the slot of a name, with an image.
    pub fn fill(&self, name: BlockId, image: Vec<u8>) {
        assert_eq!(image.len(), self.image_bytes, "one length for all images");
        let before = self.slots().images.insert(name.0, Arc::new(image));
        assert!(before.is_none(), "a slot is made once");
    }

    /// A slot to be filled.
    pub fn blank(&self) -> BlockId {
        let mut image = self.header.clone();
        image.resize(self.image_bytes, 0);
        self.put(image)
    }

    /// The image of a slot, which is gone afterwards.
    pub fn take(&self, slot: BlockId) -> Option<Vec<u8>> {
        let image = self.slots().images.remove(&slot.0)?;
        Some(Arc::unwrap_or_clone(image))
    }

    /// Slots in use.
    pub fn len(&self) -> usize {
        self.slots().images.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes through the parts of `bytes` bytes from `at` on, slot by slot: `visit` gets the image,
    /// where in it the part begins, where among the bytes, and how long it is.
    fn parts(
        &self,
        slots: &mut Slots,
        at: u64,
        bytes: usize,
        mut visit: impl FnMut(&mut Arc<Vec<u8>>, usize, usize, usize),
    ) -> Result<(), MemoryError> {
        let image_bytes = self.image_bytes as u64;
        let (end, mut done) = (at.saturating_add(bytes as u64), 0);
        while done < bytes {
            let here = at + done as u64;
            let name = u32::try_from(here / image_bytes).ok();
            let image = name.and_then(|name| slots.images.get_mut(&name));
            // Gone, or never made.
            let image = image.ok_or(MemoryError::Range {
                at,
                end,
                bytes: self.bytes(),
            })?;
            let start = (here % image_bytes) as usize;
            let n = (self.image_bytes - start).min(bytes - done);
            visit(image, start, done, n);
            done += n;
        }
        Ok(())
    }
}

impl Memory for Staging {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn bytes(&self) -> u64 {
        u64::from(u32::MAX) * self.image_bytes as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let slots = &mut self.slots();
        self.parts(slots, at, out.len(), |image, start, done, n| {
            out[done..done + n].copy_from_slice(&image[start..start + n]);
        })
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), MemoryError> {
        let slots = &mut self.slots();
        self.parts(slots, at, from.len(), |image, start, done, n| {
            Arc::make_mut(image)[start..start + n].copy_from_slice(&from[done..done + n]);
        })
    }

    fn view(
        &self,
        ranges: &[Descriptor],
        see: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<bool, MemoryError> {
        let mut held = Vec::with_capacity(ranges.len());
        {
            let slots = &mut self.slots();
            for range in ranges {
                let hold = |image: &mut Arc<Vec<u8>>, start, _, n| {
                    held.push((Arc::clone(image), start..start + n));
                };
                self.parts(slots, range.at, range.bytes as usize, hold)?;
            }
        }
        let parts = held.iter().map(|(image, part)| &image[part.clone()]);
        see(&parts.collect::<Vec<&[u8]>>());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_reach_their_slot_and_no_other() {
        let staging = Staging::new(10, vec![7, 7]);
        let (a, b) = (staging.blank(), staging.put((0..10).collect()));
        let region = staging.region(2);
        assert_eq!((region.segment_bytes(), region.offset(b, 1)), (4, 16));
        staging.write(8, &[1, 2, 3, 4]).unwrap();
        let mut all = [0; 20];
        staging.read(0, &mut all).unwrap();
        assert_eq!(all[..10], [7, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(all[10..], [3, 4, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(staging.take(a).map(|image| image[8]), Some(1));
        assert!(staging.take(a).is_none());
        assert!(staging.write(3, &[1]).is_err(), "the slot is gone");
        assert!(staging.read(20, &mut [0]).is_err(), "never made");
        assert!(staging.write(region.offset(NOWHERE, 0), &[1]).is_err());
        let c = staging.blank();
        assert!(c != a && c != b, "names are not used again");
        assert_eq!(staging.len(), 2);
        let names = staging.names(2);
        assert_eq!(staging.len(), 2, "a name alone takes no room");
        let at = staging.region(2).offset(names[1], 0);
        assert!(staging.read(at, &mut [0]).is_err(), "not made yet");
        staging.fill(names[1], (0..10).collect());
        let d = staging.blank();
        assert!(!names.contains(&d) && staging.len() == 4);
        let mut first = [0];
        staging.read(at, &mut first).unwrap();
        assert_eq!(first, [2]);
    }

    #[test]
    fn images_are_seen_where_they_lie_and_a_write_meanwhile_changes_nothing_of_it() {
        let staging = Staging::new(4, vec![]);
        let a = staging.put(vec![1, 2, 3, 4]);
        staging.put(vec![5, 6, 7, 8]);
        let range = |at, bytes| Descriptor { at, bytes };
        let mut seen = Vec::new();
        let mut see = |parts: &[&[u8]]| {
            // Would hang if the lock were held.
            staging.write(2, &[9, 9, 9]).unwrap();
            seen.extend(parts.iter().map(|part| part.to_vec()));
        };
        // One range across two images is two parts.
        let shown = staging.view(&[range(1, 5), range(7, 1)], &mut see);
        assert!(shown.unwrap());
        assert_eq!(seen, [vec![2, 3, 4], vec![5, 6], vec![8]]);
        let mut now = [0; 8];
        staging.read(0, &mut now).unwrap();
        assert_eq!(now, [1, 2, 9, 9, 9, 6, 7, 8]);
        // An image that is taken away is still whole for whoever looks at it.
        let mut take = |parts: &[&[u8]]| {
            assert_eq!(staging.take(a), Some(vec![1, 2, 9, 9]));
            assert_eq!(parts, [[1, 2, 9, 9]]);
        };
        assert!(staging.view(&[range(0, 4)], &mut take).unwrap());
        let mut never = |_: &[&[u8]]| panic!("an image that is gone");
        assert!(staging.view(&[range(0, 4)], &mut never).is_err());
    }
}
