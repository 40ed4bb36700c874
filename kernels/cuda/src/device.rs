//! What an operation needs of a device: memory and launches.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::error::KernelError;
use crate::graphs::Graphs;
use crate::lanes::Lanes;
use crate::memory::{DeviceMemory, Purpose};
use crate::ops::PrefillBy;
use crate::profile::Profiler;

/// A range of device memory that holds `len` values of type `T`. The device owns the memory.
#[derive(Debug)]
pub struct Buffer<T> {
    address: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Buffer<T> {}

impl<T> Buffer<T> {
    /// Values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// `len` values from `first` on.
    ///
    /// # Panics
    /// When the buffer is shorter.
    pub fn slice(&self, first: usize, len: usize) -> Buffer<T> {
        assert!(
            first.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} values from {first} of {}",
            self.len
        );
        Buffer {
            address: self.address + (first * size_of::<T>()) as u64,
            len,
            kind: PhantomData,
        }
    }

    /// The same memory as values of another type.
    ///
    /// # Panics
    /// When it is no whole number of them.
    pub fn of<U>(&self) -> Buffer<U> {
        let bytes = self.len * size_of::<T>();
        assert!(bytes.is_multiple_of(size_of::<U>()), "{bytes} bytes");
        Buffer {
            address: self.address,
            len: bytes / size_of::<U>(),
            kind: PhantomData,
        }
    }

    /// The same memory as raw bytes.
    pub fn bytes(&self) -> Buffer<u8> {
        Buffer {
            address: self.address,
            len: self.len * size_of::<T>(),
            kind: PhantomData,
        }
    }
}

/// What is promised about new memory; only a checking device makes use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferState {
    /// Filled by the host; kernels only read it.
    Input,
    /// Filled by the host; kernels may change it.
    Filled,
    /// Nothing in it may be read before a kernel has written it.
    Empty,
}

/// One launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name, as in the source.
    pub kernel: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// How far allocation had come: everything allocated later can be given back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub(crate) usize);

/// A matrix product for a vendor's library: `out = a w^T`, `a` is `[m][k]`, `w` is `[n][k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// Address of the left matrix.
    pub a: u64,
    /// Address of the weights.
    pub w: u64,
    /// Address of the result, `[m][n]`.
    pub out: u64,
    /// Sizes: rows, columns, terms.
    pub mnk: [usize; 3],
    /// Type of both matrices, as kernels' names spell it: `bf16`, `f16` or `e4m3`.
    pub elem: &'static str,
    /// Type of the result, likewise, or `f32`.
    pub out_elem: &'static str,
    /// Addresses of f32 factors, one for each row of `a` and one for each row of `w`: those of
    /// `e4m3`, which has them always; other types have none.
    pub scales: Option<[u64; 2]>,
}

/// What a vendor's library says to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorGemm {
    /// It computes it.
    Computed,
    /// It does not have it; nothing was computed. Why, in words.
    Lacks(&'static str),
    /// The device is of no vendor.
    NoVendor,
}

/// Something that runs kernels, in order in each of its lanes. Memory is given back in the reverse
/// order of its allocation, by [`Device::mark`] and [`Device::release`].
pub trait Device: Lanes + Graphs + Profiler {
    /// What it is, in words: for manifests and messages.
    fn name(&self) -> String;

    /// Memory of `bytes` bytes, accessed in units of at least `granule` bytes; its address.
    ///
    /// # Errors
    /// [`KernelError`] when there is none.
    fn alloc(
        &self,
        name: &str,
        bytes: usize,
        granule: usize,
        state: BufferState,
    ) -> Result<u64, KernelError>;

    /// Copies from the host to the start of `to`.
    ///
    /// # Errors
    /// [`KernelError`] when `from` is longer than the buffer.
    fn write(&self, to: Buffer<u8>, from: &[u8]) -> Result<(), KernelError>;

    /// Copies the start of `from` to the host.
    ///
    /// # Errors
    /// [`KernelError`] when `to` is longer than the buffer.
    fn read(&self, from: Buffer<u8>, to: &mut [u8]) -> Result<(), KernelError>;

    /// Sets every byte of `at` to zero.
    ///
    /// # Errors
    /// [`KernelError`] when the device fails.
    fn zero(&self, at: Buffer<u8>) -> Result<(), KernelError>;

    /// Where allocation stands.
    fn mark(&self) -> Mark;

    /// Gives back all memory allocated since `to`; its buffers must not be used again.
    ///
    /// # Errors
    /// [`KernelError`] when the device fails.
    fn release(&self, to: Mark) -> Result<(), KernelError>;

    /// Sets what memory is for that is allocated from now on; gives what it was for before.
    fn purpose(&self, purpose: Purpose) -> Purpose;

    /// Where its memory stands. Asks the driver, where there is one.
    fn memory(&self) -> DeviceMemory;

    /// Runs `work` and gives the time between its first and its last operation on the device, in
    /// nanoseconds; `None` from a device without time.
    ///
    /// # Errors
    /// Those of `work`, or [`KernelError`] when the device fails.
    fn time_ns(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Option<u64>, KernelError>;

    /// Computes `product` with the vendor's library, if that has it. Its order of sums follows the
    /// shape.
    ///
    /// # Errors
    /// [`KernelError::Vendor`] when the library fails, or refuses what it must have.
    fn vendor_gemm(&self, product: &Product) -> Result<VendorGemm, KernelError>;

    /// Whether it has the kernels of sm_90a.
    fn has_wgmma(&self) -> bool {
        false
    }

    /// The kernel that computes prefill over a store of 16 bits where none is asked for.
    fn prefill_by(&self) -> PrefillBy {
        PrefillBy::Mma
    }

    /// Bytes of `buffer` that nothing was written to yet, where the device knows; else 0.
    fn unwritten_bytes(&self, _buffer: Buffer<u8>) -> usize {
        0
    }

    /// Runs a kernel on one structure of parameters.
    ///
    /// # Errors
    /// [`KernelError`] when it is unknown, cannot be launched or fails.
    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError>;
}

/// Typed conveniences of every device.
pub trait DeviceExt: Device {
    /// Does `work`, what it allocates being for `purpose`.
    fn for_purpose<R>(&self, purpose: Purpose, work: impl FnOnce() -> R) -> R {
        let before = self.purpose(purpose);
        let done = work();
        self.purpose(before);
        done
    }

    /// A buffer with a copy of `data`, in a given state.
    ///
    /// # Errors
    /// As [`Device::alloc`] and [`Device::write`].
    fn place<T: Pod>(
        &self,
        name: &str,
        data: &[T],
        state: BufferState,
    ) -> Result<Buffer<T>, KernelError> {
        let buffer = Buffer {
            address: self.alloc(name, size_of_val(data), size_of::<T>(), state)?,
            len: data.len(),
            kind: PhantomData,
        };
        self.write(buffer.bytes(), bytemuck::cast_slice(data))?;
        Ok(buffer)
    }

    /// Data that kernels only read.
    ///
    /// # Errors
    /// As [`DeviceExt::place`].
    fn input<T: Pod>(&self, name: &str, data: &[T]) -> Result<Buffer<T>, KernelError> {
        self.place(name, data, BufferState::Input)
    }

    /// Data that kernels may change.
    ///
    /// # Errors
    /// As [`DeviceExt::place`].
    fn upload<T: Pod>(&self, name: &str, data: &[T]) -> Result<Buffer<T>, KernelError> {
        self.place(name, data, BufferState::Filled)
    }

    /// Room for `len` values.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    fn empty<T: Pod>(&self, name: &str, len: usize) -> Result<Buffer<T>, KernelError> {
        let (bytes, granule) = (len * size_of::<T>(), size_of::<T>());
        Ok(Buffer {
            address: self.alloc(name, bytes, granule, BufferState::Empty)?,
            len,
            kind: PhantomData,
        })
    }

    /// Room for `len` values, all zero.
    ///
    /// # Errors
    /// As [`Device::alloc`] and [`Device::zero`].
    fn zeroed<T: Pod>(&self, name: &str, len: usize) -> Result<Buffer<T>, KernelError> {
        let (bytes, granule) = (len * size_of::<T>(), size_of::<T>());
        let buffer = Buffer {
            address: self.alloc(name, bytes, granule, BufferState::Filled)?,
            len,
            kind: PhantomData,
        };
        self.zero(buffer.bytes())?;
        Ok(buffer)
    }

    /// Bytes of `buffer` that nothing was written to yet, where the device knows; else 0.
    fn unwritten<T>(&self, buffer: &Buffer<T>) -> usize {
        self.unwritten_bytes(buffer.bytes())
    }

    /// A copy of the content.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn download<T: Pod>(&self, buffer: &Buffer<T>) -> Result<Vec<T>, KernelError> {
        let mut data = vec![T::zeroed(); buffer.len()];
        self.read(buffer.bytes(), bytemuck::cast_slice_mut(&mut data))?;
        Ok(data)
    }
}

impl<D: Device + ?Sized> DeviceExt for D {}
