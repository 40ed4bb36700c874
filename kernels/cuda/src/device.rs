//! What an operation needs of a device: memory and launches.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::error::KernelError;

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

    /// The same memory as raw bytes.
    pub(crate) fn bytes(&self) -> Buffer<u8> {
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

/// Something that runs kernels, in order.
pub trait Device {
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

    /// Runs a kernel on one structure of parameters.
    ///
    /// # Errors
    /// [`KernelError`] when it is unknown, cannot be launched or fails.
    fn launch(&self, launch: Launch<'_>, params: &[u8]) -> Result<(), KernelError>;
}

/// Typed conveniences of every device.
pub trait DeviceExt: Device {
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
