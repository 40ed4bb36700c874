//! Locks: what a running request reads is never evicted.

use super::node::RadixNodeId;
use super::tree::RadixTree;

impl RadixTree {
    /// Protects the path from the root to `node`. Each lock needs its own
    /// [`RadixTree::unlock`].
    pub fn lock(&mut self, node: RadixNodeId) {
        let mut at = node;
        while let Some(locked) = self.step_up(&mut at) {
            let node = &mut self.nodes[locked];
            node.locks += 1;
            if node.locks == 1 {
                let tokens = node.key.len();
                self.evictable -= tokens;
                self.protected += tokens;
                self.refresh(locked);
            }
        }
    }

    /// Takes one lock of the path to `node` back. Panics when there is none.
    pub fn unlock(&mut self, node: RadixNodeId) {
        let mut at = node;
        while let Some(locked) = self.step_up(&mut at) {
            let node = &mut self.nodes[locked];
            assert!(node.locks > 0, "unlocked more often than locked");
            node.locks -= 1;
            if node.locks == 0 {
                let tokens = node.key.len();
                self.evictable += tokens;
                self.protected -= tokens;
                self.refresh(locked);
            }
        }
    }

    /// Counts one more use of the path to `node`, for [`pb_contract::Eviction::Lfu`].
    pub(super) fn count_path(&mut self, node: RadixNodeId) {
        let mut at = node;
        while let Some(used) = self.step_up(&mut at) {
            let node = &mut self.nodes[used];
            node.hits = node.hits.saturating_add(1);
            self.refresh(used);
        }
    }

    /// The node at `at`, and one step towards the root; none at a root.
    pub(super) fn step_up(&self, at: &mut RadixNodeId) -> Option<u32> {
        let RadixNodeId(node) = *at;
        if *at == RadixNodeId::ROOT || self.nodes[node].is_root() {
            return None;
        }
        *at = RadixNodeId(self.nodes[node].parent);
        Some(node)
    }
}
