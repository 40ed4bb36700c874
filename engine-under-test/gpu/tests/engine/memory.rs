//! What the device's memory is for: everything is attributed, and adds up to what is live.

use std::sync::atomic::Ordering::Relaxed;

use pb_contract::BlockId;
use pb_core::{DeviceMemory, Executor};
use pb_gpu::StepOptions;
use pb_gpu::check::{Cut, Prompt, logits};
use pb_model::weights::Matrix;

use super::*;
use crate::common::{PLAIN, Watch, adapters, config as model, watched};

/// Prompts of two adapters and of none, in chunks and single tokens.
fn serve(executor: &mut dyn Executor, options: &GpuOptions) {
    let with = |seed, n, adapter| Prompt {
        tokens: prompt(seed, n),
        adapter,
    };
    let prompts = [with(1, 20, Some(0)), with(2, 9, None), with(3, 12, Some(1))];
    let cut = Cut {
        chunk: 16,
        singles: 3,
    };
    logits(executor, options, &prompts, cut).unwrap();
}

fn with(numerics: Numerics, graph_rows: usize) -> GpuOptions {
    GpuOptions {
        adapters: adapters(),
        steps: StepOptions {
            graph_rows,
            ..PLAIN
        },
        ..options(numerics, KvDtype::Bf16)
    }
}

fn memory(executor: &dyn Executor) -> DeviceMemory {
    executor.device_memory().unwrap()
}

fn bytes(memory: &DeviceMemory, purpose: &str) -> u64 {
    let found = memory.purposes.iter().find(|p| p.purpose == purpose);
    found.unwrap().bytes
}

fn peak(memory: &DeviceMemory, purpose: &str) -> u64 {
    let found = memory.purposes.iter().find(|p| p.purpose == purpose);
    found.unwrap().peak_bytes
}

/// Whether all that is live, by the machine's own count, is for a purpose.
fn adds_up(memory: &DeviceMemory) -> bool {
    let named = memory.purposes.iter();
    let named = named.filter(|p| p.purpose != "unattributed");
    let sum: u64 = named.map(|p| p.bytes).sum();
    memory.pool.map(|pool| pool.used_bytes) == Some(sum)
}

/// Bytes of weights in bf16 and of rotation tables in f32, by the model's own sizes.
fn weight_bytes(w: &Weights) -> u64 {
    let size = |m: &Matrix| m.data.len();
    let layer = |l: &pb_model::weights::LayerWeights| {
        let matrices = [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].map(size);
        let biases = [&l.q_bias, &l.k_bias, &l.v_bias].into_iter().flatten();
        let norms = l.attn_norm.len() + l.mlp_norm.len();
        matrices.iter().sum::<usize>() + norms + biases.map(Vec::len).sum::<usize>()
    };
    let layers: usize = w.layers.iter().map(layer).sum();
    let ends = size(&w.embed) + w.final_norm.len() + w.lm_head.as_ref().map_or(0, size);
    // One position more than there are: for a planted fault of the CPU's forward pass.
    let angles = (model().max_position + 1) * model().d_head / 2;
    (2 * (layers + ends) + 2 * 4 * angles) as u64
}

#[test]
fn every_byte_that_is_live_is_for_something() {
    let weights = weights();
    for (numerics, graph_rows) in [(Numerics::Exact, 0), (Numerics::Fast, 4)] {
        let options = with(numerics, graph_rows);
        let Some((mut executor, watch)) = watched(&weights, &options, |_| {}) else {
            return;
        };
        let fresh = memory(executor.as_ref());
        assert!(adds_up(&fresh), "{fresh:?}");
        assert_eq!(bytes(&fresh, "weights"), weight_bytes(&weights));
        // Keys and values of 24 blocks of 16 slots, in bf16.
        let c = model();
        let kv = 24 * 16 * c.layers * 2 * c.kv_heads * c.d_head * 2;
        assert_eq!(bytes(&fresh, "kv_pool"), kv as u64);
        assert_eq!(executor.kv_bytes(), kv);
        // Two slots for an image and its header of 16 bytes, here and in the host's memory.
        let staging = 2 * (kv / 24 + 16) as u64;
        assert_eq!(bytes(&fresh, "staging"), staging);
        assert_eq!(fresh.pinned_bytes, staging);
        assert!(bytes(&fresh, "adapters") > 0 && bytes(&fresh, "workspace") == 0);
        assert_eq!(bytes(&fresh, "activations") > 0, graph_rows > 0);
        serve(executor.as_mut(), &options);
        executor.copy_block(BlockId(23), BlockId(1));
        let mut image = Vec::new();
        executor.read_block(BlockId(1), &mut image);
        executor.write_block(BlockId(2), &image).unwrap();
        let served = memory(executor.as_ref());
        assert!(adds_up(&served), "{served:?}");
        // A step gives back what it took, and leaves how much that was.
        assert_eq!(served.bytes(), fresh.bytes());
        let grown = |purpose| peak(&served, purpose) - peak(&fresh, purpose);
        assert!(grown("activations") > 0 && grown("plans") > 0);
        assert_eq!(grown("weights") + grown("kv_pool") + grown("adapters"), 0);
        assert!(served.peak_bytes > served.bytes());
        executor.resize_kv(16, 30);
        serve(executor.as_mut(), &options);
        let resized = memory(executor.as_ref());
        assert!(adds_up(&resized), "{resized:?}");
        assert_eq!(bytes(&resized, "kv_pool"), (kv / 24 * 30) as u64);
        assert!(Watch::take(&watch.launches) > 0);
        assert_eq!(Watch::take(&watch.astray), 0, "{numerics:?}");
    }
}

/// Planted: what is allocated for a step, and then for a pool, is attributed to nothing.
#[test]
fn memory_that_nobody_attributes_shows() {
    let weights = weights();
    let options = with(Numerics::Exact, 0);
    let Some((mut executor, watch)) = watched(&weights, &options, |_| {}) else {
        return;
    };
    watch.no_purposes.store(true, Relaxed);
    serve(executor.as_mut(), &options);
    assert!(Watch::take(&watch.astray) > 0);
    executor.resize_kv(16, 30);
    let found = memory(executor.as_ref());
    assert!(!adds_up(&found), "{found:?}");
    assert_eq!(bytes(&found, "kv_pool"), 0);
    assert_eq!(found.pool.unwrap().used_bytes, found.bytes());
}
