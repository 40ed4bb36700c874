//! Block images between host and device, in a lane beside the computation.
//!
//! An image goes through page-locked memory and a staging buffer of the device; there are two of
//! each, so that the host fills one while the other is on its way. Order is by events:
//!
//! - a copy begins after what was computed before it was asked for;
//! - the host touches page-locked memory again after the copy that used it last;
//! - a step, or a copy on the device, that names a block begins after its image has arrived; others
//!   do not wait.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use pb_kernels_cuda::ops::{self, Stores};
use pb_kernels_cuda::{Buffer, Device, DeviceExt, Event, KernelError, Lane, Pinned};

/// In front of an image: the number of its block, as the kernels read it, and room so that what
/// follows is aligned.
const HEADER_BYTES: usize = 16;

/// Copies under way at once.
const SLOTS: usize = 2;

/// Page-locked memory and events, which last as long as the device.
pub(crate) struct Staging {
    pinned: [Pinned; SLOTS],
    done: [Event; SLOTS],
    computed: Event,
}

impl Staging {
    fn new(device: &impl Device, bytes: usize) -> Result<Self, KernelError> {
        let pinned = || device.pinned(bytes);
        Ok(Staging {
            pinned: [pinned()?, pinned()?],
            done: [device.event()?, device.event()?],
            computed: device.event()?,
        })
    }

    fn holds(&self, bytes: usize) -> bool {
        self.pinned.iter().all(|p| p.len() >= bytes)
    }
}

/// One way for an image.
struct Slot {
    pinned: Pinned,
    /// Header and image on the device.
    staging: Buffer<u8>,
    /// Behind the last copy that used it.
    done: Event,
}

impl Slot {
    fn list(&self) -> Buffer<u32> {
        self.staging.slice(0, size_of::<u32>()).of()
    }

    fn image(&self) -> Buffer<u8> {
        let bytes = self.staging.len() - HEADER_BYTES;
        self.staging.slice(HEADER_BYTES, bytes)
    }
}

/// Blocks whose images have not been waited for, and the event behind the last of them.
#[derive(Default)]
struct Arriving {
    blocks: BTreeSet<u32>,
    last: Option<Event>,
}

/// Moves images of one pool.
pub(crate) struct Mover {
    slots: [Slot; SLOTS],
    next: Cell<usize>,
    /// The end of what the compute lane held when a copy was asked for.
    computed: Event,
    arriving: RefCell<Arriving>,
}

impl Mover {
    /// A mover of images of `bytes` bytes; `kept` is what an earlier one had, and is used again
    /// where it is large enough.
    pub(crate) fn new(
        device: &impl Device,
        kept: &mut Option<Staging>,
        bytes: usize,
    ) -> Result<Self, KernelError> {
        let bytes = HEADER_BYTES + bytes;
        let staging = match kept.take().filter(|s| s.holds(bytes)) {
            Some(staging) => staging,
            None => Staging::new(device, bytes)?,
        };
        let staging = kept.insert(staging);
        let slot = |i: usize| -> Result<Slot, KernelError> {
            Ok(Slot {
                pinned: staging.pinned[i],
                // The host's copies fill it, which a checking device does not see.
                staging: device.zeroed("block image", bytes)?,
                done: staging.done[i],
            })
        };
        Ok(Mover {
            slots: [slot(0)?, slot(1)?],
            next: Cell::new(0),
            computed: staging.computed,
            arriving: RefCell::default(),
        })
    }

    /// The next slot, after its last copy, with the number of a block in it.
    fn slot(&self, device: &impl Device, block: u32) -> Result<&Slot, KernelError> {
        let slot = &self.slots[self.next.get()];
        self.next.set((self.next.get() + 1) % SLOTS);
        device.finish(slot.done)?;
        device.fill(slot.pinned, 0, &block.to_ne_bytes())?;
        Ok(slot)
    }

    /// Puts `work` into the copy lane, behind what was computed so far and before the slot's event.
    fn beside(
        &self,
        device: &impl Device,
        slot: &Slot,
        work: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        device.record(self.computed)?;
        let before = device.lane(Lane::Copy);
        let done = device
            .wait(self.computed)
            .and_then(|()| work())
            .and_then(|()| device.record(slot.done));
        device.lane(before);
        done
    }

    /// Sets `block` to an image, given in parts; the copy goes on when this returns.
    pub(crate) fn write(
        &self,
        device: &impl Device,
        stores: &Stores,
        block: u32,
        parts: &[&[u8]],
    ) -> Result<(), KernelError> {
        let slot = self.slot(device, block)?;
        let mut at = HEADER_BYTES;
        for part in parts {
            device.fill(slot.pinned, at, part)?;
            at += part.len();
        }
        self.beside(device, slot, || {
            device.write_pinned(slot.staging, slot.pinned)?;
            let blocks = (&[block][..], &slot.list());
            ops::block_scatter_placed(device, stores, blocks, &slot.image())
        })?;
        let mut arriving = self.arriving.borrow_mut();
        arriving.blocks.insert(block);
        arriving.last = Some(slot.done);
        Ok(())
    }

    /// The image of `block`, without the host's header.
    pub(crate) fn read(
        &self,
        device: &impl Device,
        stores: &Stores,
        block: u32,
    ) -> Result<Vec<u8>, KernelError> {
        let slot = self.slot(device, block)?;
        self.beside(device, slot, || {
            let header = slot.staging.slice(0, HEADER_BYTES);
            device.write_pinned(header, slot.pinned)?;
            let blocks = (&[block][..], &slot.list());
            ops::block_gather_placed(device, stores, blocks, &slot.image())?;
            device.read_pinned(slot.image(), slot.pinned)
        })?;
        device.finish(slot.done)?;
        let mut bytes = vec![0; slot.image().len()];
        device.fetch(slot.pinned, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Lets the compute lane wait if one of `blocks` is on its way.
    pub(crate) fn settle(
        &self,
        device: &impl Device,
        mut blocks: impl Iterator<Item = u32>,
    ) -> Result<(), KernelError> {
        let mut arriving = self.arriving.borrow_mut();
        let Some(last) = arriving.last else {
            return Ok(());
        };
        if blocks.any(|block| arriving.blocks.contains(&block)) {
            // Copies arrive in order, so this one waits for all.
            device.wait(last)?;
            *arriving = Arriving::default();
        }
        Ok(())
    }

    /// Lets the compute lane wait for all copies.
    pub(crate) fn settle_all(&self, device: &impl Device) -> Result<(), KernelError> {
        *self.arriving.borrow_mut() = Arriving::default();
        self.slots
            .iter()
            .try_for_each(|slot| device.wait(slot.done))
    }
}
