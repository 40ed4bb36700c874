//! Work at the same time: a second lane, events for order, and memory that it copies from.

use crate::device::Buffer;
use crate::error::KernelError;

/// A queue of work. What is in one lane happens in order; what is in two happens at the same time
/// unless an event orders it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Where everything goes that nobody puts elsewhere. Memory comes from this lane: other lanes
    /// may use it after an event that was recorded here behind its allocation.
    #[default]
    Compute,
    /// For copies beside it.
    Copy,
}

impl Lane {
    /// Both.
    pub const ALL: [Lane; 2] = [Lane::Compute, Lane::Copy];
}

/// A place in a lane that others can wait for. It can be recorded again; a wait means the last
/// place before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub(crate) usize);

/// Host memory that the device copies from and to by itself. Between the start of such a copy and
/// the event behind it the host must leave it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    pub(crate) index: usize,
    pub(crate) len: usize,
}

impl Pinned {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Lanes of a device. Events and pinned memory last as long as it does.
pub trait Lanes {
    /// Puts what follows into `lane`; gives the lane that it went to before.
    fn lane(&self, lane: Lane) -> Lane;

    /// A new event, which was never recorded: nothing waits for it.
    ///
    /// # Errors
    /// [`KernelError`] when the device fails; so do the others.
    fn event(&self) -> Result<Event, KernelError>;

    /// Makes `event` the end of what is in the current lane.
    ///
    /// # Errors
    /// As [`Lanes::event`].
    fn record(&self, event: Event) -> Result<(), KernelError>;

    /// Lets what follows in the current lane begin after `event`.
    ///
    /// # Errors
    /// As [`Lanes::event`].
    fn wait(&self, event: Event) -> Result<(), KernelError>;

    /// Returns after `event`.
    ///
    /// # Errors
    /// As [`Lanes::event`]; and those of the work before it.
    fn finish(&self, event: Event) -> Result<(), KernelError>;

    /// Host memory of `bytes` bytes.
    ///
    /// # Errors
    /// As [`Lanes::event`].
    fn pinned(&self, bytes: usize) -> Result<Pinned, KernelError>;

    /// Writes `from` to `to` from byte `at` on, at once.
    ///
    /// # Errors
    /// [`KernelError::Argument`] when it does not fit.
    fn fill(&self, to: Pinned, at: usize, from: &[u8]) -> Result<(), KernelError>;

    /// Reads `from` from byte `at` on, at once.
    ///
    /// # Errors
    /// [`KernelError::Argument`] when there is less.
    fn fetch(&self, from: Pinned, at: usize, to: &mut [u8]) -> Result<(), KernelError>;

    /// Copies the start of `from` to `to`, in the current lane: it has happened after an event
    /// behind it.
    ///
    /// # Errors
    /// [`KernelError::Argument`] when `from` is shorter than `to`.
    fn write_pinned(&self, to: Buffer<u8>, from: Pinned) -> Result<(), KernelError>;

    /// Copies `from` to the start of `to`, likewise.
    ///
    /// # Errors
    /// [`KernelError::Argument`] when `to` is shorter than `from`.
    fn read_pinned(&self, from: Buffer<u8>, to: Pinned) -> Result<(), KernelError>;
}
