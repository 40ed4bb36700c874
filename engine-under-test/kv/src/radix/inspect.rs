//! The tree as a table of nodes, and the laws that it keeps.

use pb_contract::BlockId;

use super::key::page_order;
use super::node::RadixNodeId;
use super::tree::RadixTree;

/// One node, as the replay scripts show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RadixNodeState {
    /// Namespace; one that is not text is shown in hexadecimal digits.
    pub extra_key: Option<String>,
    /// Tokens before this node's.
    pub depth: usize,
    /// First token.
    pub first: u32,
    /// Tokens.
    pub len: usize,
    /// Locks of the node and of all below it.
    pub locks: u32,
}

/// Every node of a tree, ordered by namespace, depth, first token, length and locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RadixState {
    /// Tokens that eviction could free.
    pub evictable: usize,
    /// Tokens on locked paths.
    pub protected: usize,
    /// The nodes, roots left out.
    pub nodes: Vec<RadixNodeState>,
}

/// A node met on a walk over the whole tree.
pub(super) struct Visit<'a> {
    pub(super) id: u32,
    pub(super) depth: usize,
    pub(super) namespace: Option<&'a [u8]>,
}

impl RadixTree {
    /// Every node, ordered as in [`RadixState`].
    pub fn state(&self) -> RadixState {
        let mut nodes: Vec<_> = self.visits().iter().map(|v| self.node_state(v)).collect();
        nodes.sort();
        RadixState {
            evictable: self.evictable,
            protected: self.protected,
            nodes,
        }
    }

    fn node_state(&self, visit: &Visit) -> RadixNodeState {
        let node = &self.nodes[visit.id];
        RadixNodeState {
            extra_key: visit.namespace.map(text),
            depth: visit.depth,
            first: node.key[0],
            len: node.key.len(),
            locks: node.locks,
        }
    }

    /// All nodes but the roots; a node comes after its parent.
    pub(super) fn visits(&self) -> Vec<Visit<'_>> {
        let roots = self.plain_root.iter().chain(self.named_roots.values());
        let mut found: Vec<Visit> = Vec::with_capacity(self.nodes.len());
        for &root in roots {
            let namespace = self.nodes[root].namespace.as_deref();
            let mut pending = vec![(root, 0)];
            while let Some((parent, depth)) = pending.pop() {
                for &(_, id) in &self.nodes[parent].children {
                    found.push(Visit {
                        id,
                        depth,
                        namespace,
                    });
                    pending.push((id, depth + self.nodes[id].key.len()));
                }
            }
        }
        found
    }

    /// Values from the root to the end of `node`.
    pub(super) fn path_values(&self, node: RadixNodeId) -> Vec<BlockId> {
        let mut runs = Vec::new();
        let mut at = node;
        while let Some(id) = self.step_up(&mut at) {
            runs.push(&self.nodes[id].values);
        }
        runs.into_iter().rev().flatten().copied().collect()
    }

    /// Values of all pages.
    pub(super) fn all_values(&self) -> Vec<BlockId> {
        let visits = self.visits();
        let values = visits.iter().flat_map(|v| &self.nodes[v.id].values);
        values.copied().collect()
    }

    /// Verifies the tree's own laws: nodes are whole pages, edges lead to and fro, a node has at
    /// least the locks of its children, no time is ahead of the clock, the sums of tokens and the
    /// candidates for eviction are what a count gives, and no two candidates tie.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold and the node.
    pub fn check(&self) -> Result<(), String> {
        let visits = self.visits();
        let roots = self.named_roots.len() + usize::from(self.plain_root.is_some());
        if visits.len() + roots != self.nodes.len() {
            let (reached, kept) = (visits.len() + roots, self.nodes.len());
            return Err(format!("{reached} of {kept} nodes can be reached"));
        }
        let (mut evictable, mut protected, mut candidates) = (0, 0, 0);
        for visit in &visits {
            self.check_node(visit.id)?;
            let node = &self.nodes[visit.id];
            match node.locks {
                0 => evictable += node.key.len(),
                _ => protected += node.key.len(),
            }
            candidates += usize::from(node.rank.is_some());
        }
        if (evictable, protected) != (self.evictable, self.protected) {
            let sums = (self.evictable, self.protected);
            return Err(format!(
                "{evictable} tokens are evictable and {protected} protected; the sums say {sums:?}"
            ));
        }
        if candidates != self.candidates.len() {
            let listed = self.candidates.len();
            return Err(format!("{listed} candidates, not {candidates}"));
        }
        let mut pairs = self.candidates.iter().zip(self.candidates.iter().skip(1));
        match pairs.find(|(a, b)| a.0 == b.0) {
            Some((a, b)) => Err(format!("nodes {} and {} tie for eviction", a.1, b.1)),
            None => Ok(()),
        }
    }

    fn check_node(&self, id: u32) -> Result<(), String> {
        let node = &self.nodes[id];
        let len = node.key.len();
        let pages = len / self.page_size;
        if len == 0 || !len.is_multiple_of(self.page_size) || node.values.len() != pages {
            let values = node.values.len();
            return Err(format!("node {id}: {len} tokens and {values} values"));
        }
        if !node.hashes.is_empty() && node.hashes.len() != pages {
            let names = node.hashes.len();
            return Err(format!("node {id}: {pages} pages and {names} digests"));
        }
        let parent = &self.nodes[node.parent];
        let edge = (page_order(&node.key[..self.page_size]), id);
        if !parent.children.contains(&edge) {
            return Err(format!("node {id} is not below its parent"));
        }
        if node.last_access > self.clock || node.created > self.clock {
            return Err(format!("node {id} was used in the future"));
        }
        let below = node.children.iter().map(|&(_, child)| &self.nodes[child]);
        if below.map(|child| child.locks).sum::<u32>() > node.locks {
            return Err(format!("node {id} has fewer locks than its children"));
        }
        let is_candidate = node.children.is_empty() && node.locks == 0;
        let rank = is_candidate.then(|| self.rank(node));
        let listed = rank.is_none_or(|rank| self.candidates.contains(&(rank, id)));
        if node.rank != rank || !listed {
            return Err(format!("node {id} is out of place among the candidates"));
        }
        Ok(())
    }
}

fn text(namespace: &[u8]) -> String {
    match std::str::from_utf8(namespace) {
        Ok(text) => text.to_owned(),
        Err(_) => namespace.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::Eviction;

    use super::super::tree::Run;
    use super::*;

    fn broken(fault: impl Fn(&mut RadixTree, u32)) -> String {
        let mut tree = RadixTree::new(2, Eviction::Lru);
        let leaf = tree.insert(&Run::bare(Some(b"n"), &[1, 1, 2, 2])).node.0;
        tree.insert(&Run::bare(Some(b"n"), &[1, 1, 3, 3]));
        tree.check().unwrap();
        fault(&mut tree, leaf);
        tree.check().unwrap_err()
    }

    #[test]
    fn check_finds_each_kind_of_damage() {
        let odd = broken(|tree, leaf| tree.nodes[leaf].key.truncate(1));
        assert!(odd.contains("1 tokens and 1 values"), "{odd}");
        let unnamed = broken(|tree, leaf| tree.nodes[leaf].hashes = vec![Default::default(); 3]);
        assert!(unnamed.contains("3 digests"), "{unnamed}");
        let sum = broken(|tree, _| tree.evictable += 2);
        assert!(sum.contains("the sums say"), "{sum}");
        let lock = broken(|tree, leaf| tree.nodes[leaf].locks = 1);
        assert!(lock.contains("fewer locks than its children"), "{lock}");
        let future = broken(|tree, leaf| tree.nodes[leaf].last_access = 1000);
        assert!(future.contains("in the future"), "{future}");
        let rank = broken(|tree, leaf| tree.nodes[leaf].rank = None);
        assert!(rank.contains("out of place"), "{rank}");
        let stray = broken(|tree, leaf| {
            tree.candidates.insert(((0, 99), leaf));
        });
        assert!(stray.contains("candidates"), "{stray}");
        let parent = broken(|tree, leaf| tree.nodes[leaf].parent = leaf);
        assert!(parent.contains("not below its parent"), "{parent}");
        let lost = broken(|tree, leaf| {
            let parent = tree.nodes[leaf].parent;
            tree.nodes[parent].children.clear();
        });
        assert!(lost.contains("can be reached"), "{lost}");
    }

    #[test]
    fn a_namespace_that_is_no_text_is_shown_in_digits() {
        let mut tree = RadixTree::new(1, Eviction::Lru);
        tree.insert(&Run::bare(Some(&[0xff, 0x01]), &[4]));
        assert_eq!(tree.state().nodes[0].extra_key.as_deref(), Some("ff01"));
    }
}
