//! What becomes of requests that must give their blocks back.

use pb_contract::{Fault, RequestId};
use pb_sched::Requeue;

use super::Engine;
use crate::kv_adapter::Released;
use crate::swap::Swapped;

impl Engine {
    /// Copies a released table to the swap pool, if that has room for all of it.
    pub(super) fn swap_out(&mut self, released: &Released) {
        if !self.swap.has_room(released.blocks.len()) {
            self.counters.swap_full += 1;
            return;
        }
        let images: Vec<Vec<u8>> = released
            .blocks
            .iter()
            .map(|&b| self.block_image(b))
            .collect();
        self.counters.swapped_out_blocks += images.len() as u64;
        let tokens = released.computed;
        self.swap.put(released.id, Swapped { tokens, images });
    }

    /// Puts preempted requests back into the queue; their blocks are released already.
    pub(super) fn preempt(&mut self, preempted: &[RequestId]) {
        for &id in preempted {
            self.running.retain(|&r| r != id);
            let swapped = self.swap.get(id).is_some();
            if let Some(live) = self.requests.get_mut(&id) {
                live.computed = 0;
                live.preempted = true;
                live.swapped = swapped;
            }
            self.counters.preemptions += 1;
            if self.config.fault == Fault::LostOnPreemption {
                continue;
            }
            match self.policy.requeue() {
                Requeue::Front => self.waiting.push_front(id),
                Requeue::Back => self.waiting.push_back(id),
            }
        }
    }
}
