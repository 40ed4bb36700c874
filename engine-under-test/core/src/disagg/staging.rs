//! Copies of blocks for the threads that move them.
//!
//! The pool belongs to the engine's thread, which is in a step most of the time, and a transfer
//! must neither wait for a step nor hold one up. So what is sent is copied out of the pool when it
//! is handed off, and what arrives is copied into it when all of it is here: a copy at each side
//! for the freedom of both. A slot has a name that is not used again, and bytes that come for a
//! slot that is gone are refused: what is late cannot reach anybody else's block.
//!
//! A transport looks at images where they lie, and nobody waits for it meanwhile: it holds the
//! images and not the lock, and whoever writes an image that is looked at writes a copy. An image
//! that is made layer by layer is in parts of one layer, so that a step which adds a layer never
//! copies those that are on their way; what was not added yet cannot be read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pb_contract::BlockId;
use pb_transfer::{Descriptor, Memory, MemoryError, MemoryKind, Region};

/// Names a slot that was never made: for blocks that are not to be written.
pub(super) const NOWHERE: BlockId = BlockId(u32::MAX);

#[derive(Debug, Default)]
struct Slots {
    made: u32,
    images: BTreeMap<u32, Image>,
}

/// One block.
#[derive(Debug)]
enum Image {
    /// As executors make and take it.
    Whole(Arc<Vec<u8>>),
    /// The layers that are there, without a header.
    Layers(Vec<Option<Arc<Vec<u8>>>>),
}

impl Image {
    /// The part of the image that has its byte `at`, and where in that part the byte is; none when
    /// it is not there. Behind `header_bytes` bytes layers begin, of `bytes` bytes in all.
    fn part(
        &mut self,
        at: usize,
        header_bytes: usize,
        bytes: usize,
    ) -> Option<(&mut Arc<Vec<u8>>, usize)> {
        match self {
            Image::Whole(image) => Some((image, at)),
            Image::Layers(layers) => {
                let (at, layer_bytes) = (at.checked_sub(header_bytes)?, bytes / layers.len());
                let part = layers.get_mut(at / layer_bytes)?.as_mut()?;
                Some((part, at % layer_bytes))
            }
        }
    }
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
        slots.images.insert(name, Image::Whole(Arc::new(image)));
        BlockId(name)
    }

    /// Names for slots that are made later, by [`Staging::fill`] or [`Staging::begin`]. They take
    /// no memory.
    pub fn names(&self, count: usize) -> Vec<BlockId> {
        let mut slots = self.slots();
        (0..count).map(|_| BlockId(slots.name())).collect()
    }

    /// Makes the slot of a name, with an image.
    pub fn fill(&self, name: BlockId, image: Vec<u8>) {
        assert_eq!(image.len(), self.image_bytes, "one length for all images");
        self.make(name, Image::Whole(Arc::new(image)));
    }

    /// Makes the slot of a name, without any of its `layers` layers.
    pub fn begin(&self, name: BlockId, layers: usize) {
        let content_bytes = self.image_bytes - self.header.len();
        assert!(layers > 0 && content_bytes.is_multiple_of(layers));
        self.make(name, Image::Layers(vec![None; layers]));
    }

    fn make(&self, name: BlockId, image: Image) {
        let before = self.slots().images.insert(name.0, image);
        assert!(before.is_none(), "a slot is made once");
    }

    /// Adds a layer to a slot that was begun; false when there is no such slot.
    pub fn add_layer(&self, name: BlockId, layer: usize, part: Vec<u8>) -> bool {
        let mut slots = self.slots();
        let Some(Image::Layers(layers)) = slots.images.get_mut(&name.0) else {
            return false;
        };
        let content_bytes = self.image_bytes - self.header.len();
        assert_eq!(part.len() * layers.len(), content_bytes, "layers of a size");
        layers[layer] = Some(Arc::new(part));
        true
    }

    /// A slot to be filled.
    pub fn blank(&self) -> BlockId {
        let mut image = self.header.clone();
        image.resize(self.image_bytes, 0);
        self.put(image)
    }

    /// The image of a slot, which is gone afterwards; none when there is no slot, or it was made
    /// layer by layer, to be given away.
    pub fn take(&self, slot: BlockId) -> Option<Vec<u8>> {
        match self.slots().images.remove(&slot.0)? {
            Image::Whole(image) => Some(Arc::unwrap_or_clone(image)),
            Image::Layers(_) => None,
        }
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
    /// or a layer of it, where in that the part begins, where among the bytes, and how long it is.
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
            let (header, start) = (self.header.len(), (here % image_bytes) as usize);
            let part = image.and_then(|i| i.part(start, header, self.image_bytes - header));
            // Gone, or not there yet.
            let (part, start) = part.ok_or(MemoryError::Range {
                at,
                end,
                bytes: self.bytes(),
            })?;
            let n = (part.len() - start).min(bytes - done);
            visit(part, start, done, n);
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
    fn layers_are_read_as_they_come_and_not_before() {
        let staging = Staging::new(8, vec![7, 7]);
        let name = staging.names(1)[0];
        assert!(!staging.add_layer(name, 0, vec![1, 2, 3]), "not begun");
        staging.begin(name, 2);
        assert_eq!(staging.len(), 1);
        let region = staging.region(2);
        let read = |layer, bytes| {
            let mut out = vec![0; bytes];
            staging.read(region.offset(name, layer), &mut out).ok()?;
            Some(out)
        };
        assert_eq!((read(0, 3), read(1, 3)), (None, None));
        // The upper one first: none stands for another.
        assert!(staging.add_layer(name, 1, vec![4, 5, 6]));
        assert_eq!((read(0, 3), read(1, 3)), (None, Some(vec![4, 5, 6])));
        let range = |layer, bytes| Descriptor {
            at: region.offset(name, layer),
            bytes,
        };
        let mut seen = Vec::new();
        let mut see = |parts: &[&[u8]]| {
            let before = parts[0].as_ptr();
            assert!(staging.add_layer(name, 0, vec![1, 2, 3]));
            // What is looked at was not copied for it.
            let again = staging.view(&[range(1, 3)], &mut |now: &[&[u8]]| {
                assert_eq!(now[0].as_ptr(), before);
            });
            assert!(again.unwrap());
            seen = parts.concat();
        };
        assert!(staging.view(&[range(1, 3)], &mut see).unwrap());
        assert_eq!(seen, [4, 5, 6]);
        assert_eq!(read(0, 6), Some(vec![1, 2, 3, 4, 5, 6]), "across layers");
        assert_eq!(read(0, 7), None, "beyond the image");
        assert!(staging.take(name).is_none() && staging.is_empty());
        assert!(!staging.add_layer(name, 0, vec![1, 2, 3]), "gone");
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
