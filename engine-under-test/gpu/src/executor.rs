//! The executor: a model and a pool on a device, behind the engine's seam.

use std::cell::RefCell;
use std::sync::Arc;

use pb_contract::{BlockId, Clock, Fault, Numerics};
use pb_core::{Chunk, DeviceMemory, Executor, KernelTotal};
use pb_kernels_cuda::{Device, DeviceExt, Elem, GemmOut, KernelError, Mark, Purpose, StoreElem};
use pb_model::Weights;
use pb_model::config::LlamaConfig;
use pb_model::forward::{ForwardTiming, ImageShape, KvScales, LogitSink, numeric_fault};

use crate::adapters::DeviceAdapters;
use crate::batch::Batch;
use crate::build::GpuOptions;
use crate::error::GpuError;
use crate::forward::Model;
use crate::graphs::DecodeGraphs;
use crate::memory;
use crate::mover::Staging;
use crate::pool::Pool;
use crate::times::KernelTimes;
use crate::weights::DeviceWeights;

/// An executor with activations of type `T` and a cache of `S`.
///
/// A step is work of the compute lane and ends when its logits or tokens have arrived. Times of its
/// parts are known of the steps that are timed kernel by kernel; of the others [`ForwardTiming`]
/// has only the sink's. Block images come and go in the other lane.
pub struct GpuExecutor<D, T, S> {
    device: D,
    config: LlamaConfig,
    numerics: Numerics,
    kv_scales: Option<Arc<KvScales>>,
    weights: DeviceWeights<T>,
    adapters: DeviceAdapters<T>,
    pool: Option<Pool<S>>,
    /// Recorded steps over the pool.
    graphs: Option<DecodeGraphs<T>>,
    graph_rows: usize,
    /// Kept from pool to pool.
    staging: Option<Staging>,
    /// Everything after weights and adapters.
    after_weights: Mark,
    image: ImageShape,
    times: KernelTimes,
    /// The first failure of an operation that has no way to report one; every later step reports
    /// it. A device that failed once does not recover.
    failure: RefCell<Option<String>>,
}

impl<D: Device + Send, T: Elem + Send, S: StoreElem<T> + Send> GpuExecutor<D, T, S>
where
    f32: GemmOut<T>,
{
    /// Places `weights` and an empty pool on `device`; `options` fit the types.
    ///
    /// # Errors
    /// [`GpuError::Device`] when the device fails or has no room.
    pub fn new(device: D, weights: &Weights, options: &GpuOptions) -> Result<Self, GpuError> {
        let config = weights.config.clone();
        let placed =
            device.for_purpose(Purpose::Weights, || DeviceWeights::new(&device, weights))?;
        let adapters = device.for_purpose(Purpose::Adapters, || {
            DeviceAdapters::new(&device, &config, &options.adapters)
        })?;
        let mut executor = GpuExecutor {
            after_weights: device.mark(),
            image: ImageShape::new(&config, options.kv_dtype, options.block_size),
            device,
            config,
            numerics: options.numerics,
            kv_scales: options.kv_scales.clone(),
            weights: placed,
            adapters,
            pool: None,
            graphs: None,
            graph_rows: options.steps.graph_rows,
            staging: None,
            times: KernelTimes::every(options.steps.time_every),
            failure: RefCell::default(),
        };
        executor.new_pool(options.block_size, options.num_blocks)?;
        Ok(executor)
    }

    fn new_pool(&mut self, block_size: usize, num_blocks: usize) -> Result<(), KernelError> {
        self.graphs = None;
        if let Some(pool) = self.pool.take() {
            pool.settle_all(&self.device)?;
        }
        self.device.release(self.after_weights)?;
        self.image.block_size = block_size;
        let scales = self.kv_scales.as_deref();
        let (device, config) = (&self.device, &self.config);
        let staging = &mut self.staging;
        let pool = Pool::new(device, config, self.image, num_blocks, scales, staging)?;
        self.pool = Some(pool);
        let context = config.max_position.div_ceil(block_size).min(num_blocks);
        let room = (self.graph_rows, context);
        let of_graphs = || DecodeGraphs::new(device, config, &self.adapters, self.numerics, room);
        self.graphs = device.for_purpose(Purpose::Activations, of_graphs)?;
        Ok(())
    }

    /// The pool; its loss is a failure that was reported.
    fn pool(&self) -> Result<&Pool<S>, String> {
        let lost = || "the KV pool was lost".to_owned();
        self.pool.as_ref().ok_or_else(lost)
    }

    /// Runs `work` with memory of its own on the device, for `purpose` where it says nothing else.
    fn scoped<R>(
        &self,
        purpose: Purpose,
        work: impl FnOnce(&D) -> Result<R, String>,
    ) -> Result<R, String> {
        let mark = self.device.mark();
        let done = self.device.for_purpose(purpose, || work(&self.device));
        let released = self.device.release(mark).map_err(|e| e.to_string());
        let value = done?;
        released.map(|()| value)
    }

    /// Keeps the first failure.
    fn note(&self, outcome: Result<(), String>) {
        if let Err(problem) = outcome {
            self.failure.borrow_mut().get_or_insert(problem);
        }
    }
}

impl<D: Device + Send, T: Elem + Send, S: StoreElem<T> + Send> Executor for GpuExecutor<D, T, S>
where
    f32: GemmOut<T>,
{
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        if let Some(problem) = self.failure.borrow().clone() {
            return Err(problem);
        }
        let timed = self.times.begin_step();
        let pool = self.pool()?;
        let batch = Batch::new(chunks, pool.image.block_size, self.adapters.count)?;
        let blocks = chunks.iter().flat_map(|c| c.block_table).map(|b| b.0);
        let settled = pool.settle(&self.device, blocks);
        settled.map_err(|e| e.to_string())?;
        let graphs = self.graphs.as_ref().filter(|_| !timed);
        let (mut timing, profile) = self.scoped(Purpose::Activations, |device| {
            let model = Model {
                device,
                config: &self.config,
                numerics: self.numerics,
                weights: &self.weights,
                adapters: &self.adapters,
                pool,
                graphs,
            };
            let mut timing = ForwardTiming::default();
            let mut run = || -> Result<(), KernelError> {
                timing = model.forward(chunks, &batch, clock, sink)?;
                Ok(())
            };
            let profile = match timed {
                true => device.profile(&mut run),
                false => run().map(|()| None),
            };
            let profile = profile.map_err(|e| e.to_string())?;
            Ok((timing, profile))
        })?;
        if let Some(profile) = profile {
            self.times.note(&profile, batch.has_prefill(), &mut timing);
        }
        Ok(timing)
    }

    fn kernel_totals(&self) -> Vec<KernelTotal> {
        self.times.totals()
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(memory::told(&self.device.memory()))
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        let made = self.new_pool(block_size, num_blocks);
        self.note(made.map_err(|e| format!("num_blocks = {num_blocks}: {e}")));
    }

    fn set_fault(&mut self, fault: Fault) -> Result<(), String> {
        match numeric_fault(fault) {
            Fault::None => Ok(()),
            fault => Err(format!(
                "fault {fault:?}: this backend carries no planted fault of the forward pass; its \
                 kernels have their own (docs/KERNELS.md)"
            )),
        }
    }

    fn kv_bytes(&self) -> usize {
        self.pool.as_ref().map_or(0, Pool::bytes)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let copied = self.pool().and_then(|pool| {
            self.scoped(Purpose::Plans, |device| {
                pool.copy(device, from.0, to.0).map_err(|e| e.to_string())
            })
        });
        self.note(copied);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        let end = out.len() + self.image.bytes();
        let read = self.pool().and_then(|pool| {
            self.scoped(Purpose::Staging, |device| {
                pool.read::<T>(device, block.0, out)
                    .map_err(|e| e.to_string())
            })
        });
        self.note(read);
        // After a failure nothing computes from it, but images have one length.
        out.resize(end, 0);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        let pool = self.pool()?;
        self.scoped(Purpose::Staging, |device| {
            pool.write::<T>(device, block.0, image)
                .map_err(|e| e.to_string())
        })
    }
}
