//! Matching and inserting runs of tokens.

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::{BlockId, Eviction, TokenId};

use super::key::{page_order, shared_len};
use super::node::{Arena, NIL, Node, RadixNodeId, Rank};
use crate::digest::BlockHash;

/// What is stored of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RadixMatch {
    /// Matched tokens: whole pages.
    pub tokens: usize,
    /// Value of each matched page.
    pub values: Vec<BlockId>,
    /// The node in which the match ends; after a pure lookup that node may reach further.
    pub node: RadixNodeId,
}

/// A run of tokens to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// What separates keys that must not share (adapter, salt, identity); none is a namespace of
    /// its own.
    pub namespace: Option<&'a [u8]>,
    /// The tokens; what is beyond the last whole page is not stored.
    pub tokens: &'a [TokenId],
    /// One for each whole page; empty stands for block 0 throughout.
    pub values: &'a [BlockId],
    /// Digest of each whole page; empty when the pages need no name.
    pub hashes: &'a [BlockHash],
    /// Raises the priority of every node on the way to at least this.
    pub priority: i64,
    /// Part of a request that goes on: does not count as a use (for [`Eviction::Lfu`]), else a
    /// prompt in many chunks would seem popular.
    pub chunked: bool,
}

impl<'a> Run<'a> {
    /// A run without values and digests, for scripts that look at keys alone.
    pub fn bare(namespace: Option<&'a [u8]>, tokens: &'a [TokenId]) -> Self {
        Run {
            namespace,
            tokens,
            values: &[],
            hashes: &[],
            priority: 0,
            chunked: false,
        }
    }
}

/// What an insertion found and where it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// Tokens that were stored before.
    pub already_present: usize,
    /// Values of the pages that were stored before: the tree keeps these, so the caller's values
    /// for the same pages are duplicates.
    pub present: Vec<BlockId>,
    /// The node that ends where the run ends.
    pub node: RadixNodeId,
}

/// Tokens of one node on the way of a key.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: u32,
    shared: usize,
}

/// A radix tree over runs of tokens in whole pages, one tree for each namespace.
///
/// Its clock advances at each reading: once for a match or an insertion, twice when a node is
/// made (last access and creation, in this order). A node made by a split is therefore younger
/// than the match that split it, which is the order of SGLang; mini-sglang keeps the old time.
/// No two leaves ever have the same last access, so the order of eviction has no ties.
#[derive(Clone, Debug)]
pub struct RadixTree {
    pub(super) page_size: usize,
    pub(super) eviction: Eviction,
    pub(super) nodes: Arena,
    pub(super) plain_root: Option<u32>,
    pub(super) named_roots: BTreeMap<Vec<u8>, u32>,
    /// Unlocked nodes without children, the next to be evicted first.
    pub(super) candidates: BTreeSet<(Rank, u32)>,
    /// Tokens in unlocked nodes.
    pub(super) evictable: usize,
    /// Tokens in locked nodes.
    pub(super) protected: usize,
    pub(super) clock: u64,
}

impl RadixTree {
    /// An empty tree. Panics when `page_size` is zero.
    pub fn new(page_size: usize, eviction: Eviction) -> Self {
        assert!(page_size > 0, "a page holds at least one token");
        RadixTree {
            page_size,
            eviction,
            nodes: Arena::default(),
            plain_root: None,
            named_roots: BTreeMap::new(),
            candidates: BTreeSet::new(),
            evictable: 0,
            protected: 0,
            clock: 0,
        }
    }

    /// Tokens in a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Tokens that eviction could free.
    pub fn evictable(&self) -> usize {
        self.evictable
    }

    /// Tokens on locked paths.
    pub fn protected(&self) -> usize {
        self.protected
    }

    /// Forgets everything. Panics when a node is locked: its holder would be left with a number
    /// that means nothing.
    pub fn clear(&mut self) {
        assert!(self.protected == 0, "a path of the tree is locked");
        *self = RadixTree {
            clock: self.clock,
            ..RadixTree::new(self.page_size, self.eviction)
        };
    }

    /// The longest stored prefix of a key. Changes nothing: no time, no split.
    pub fn lookup(&self, namespace: Option<&[u8]>, tokens: &[TokenId]) -> RadixMatch {
        match self.root(namespace) {
            Some(root) => self.matched(&self.walk(root, tokens)),
            None => self.matched(&[]),
        }
    }

    /// The longest stored prefix of a key, ending in a node of its own: a node that the match
    /// leaves midway is split, and all nodes on the way become the most recently used. This is
    /// what SGLang's `match_prefix` does.
    pub fn touch_and_split(&mut self, namespace: Option<&[u8]>, tokens: &[TokenId]) -> RadixMatch {
        let Some(root) = self.root(namespace) else {
            return self.matched(&[]);
        };
        let steps = self.walk(root, tokens);
        let mut found = self.matched(&steps);
        let now = self.tick();
        for step in steps {
            self.touch(step.node, now);
            found.node = RadixNodeId(self.split_after(step));
        }
        found
    }

    fn matched(&self, steps: &[Step]) -> RadixMatch {
        let tokens = steps.iter().map(|step| step.shared).sum();
        let mut values = Vec::with_capacity(tokens / self.page_size);
        for step in steps {
            let pages = step.shared / self.page_size;
            values.extend_from_slice(&self.nodes[step.node].values[..pages]);
        }
        RadixMatch {
            tokens,
            values,
            node: RadixNodeId(steps.last().map_or(NIL, |step| step.node)),
        }
    }

    /// Stores a run. What is there already is kept, with its values.
    ///
    /// Panics when `values` or `hashes` are given but are not one a page.
    pub fn insert(&mut self, run: &Run) -> Inserted {
        self.insert_below(RadixNodeId::ROOT, run)
    }

    /// As [`RadixTree::insert`] for a run that follows the run of `above`, whose whole path
    /// becomes the most recently used too. With [`RadixNodeId::ROOT`] it follows nothing. The
    /// namespace is that of `above`.
    pub fn insert_below(&mut self, above: RadixNodeId, run: &Run) -> Inserted {
        let pages = run.tokens.len() / self.page_size;
        let fits = |len: usize| len == 0 || len == pages;
        assert!(
            fits(run.values.len()) && fits(run.hashes.len()),
            "a run of {pages} pages with {} values and {} digests",
            run.values.len(),
            run.hashes.len()
        );
        let mut result = Inserted {
            already_present: 0,
            present: Vec::new(),
            node: above,
        };
        if pages == 0 {
            return result;
        }
        let tokens = &run.tokens[..pages * self.page_size];
        let now = self.tick();
        let start = match above {
            RadixNodeId::ROOT => self.root_or_new(run.namespace),
            RadixNodeId(node) => {
                self.touch_upwards(node, now);
                node
            }
        };
        for step in self.walk(start, tokens) {
            self.touch(step.node, now);
            let node = self.split_after(step);
            self.count_use(node, run);
            result.present.extend_from_slice(&self.nodes[node].values);
            result.already_present += step.shared;
            result.node = RadixNodeId(node);
        }
        if result.already_present == 0 && self.may_grow(above, run) {
            self.grow_leaf(above.0, run);
        } else if result.already_present < tokens.len() {
            let parent = match result.node {
                RadixNodeId::ROOT => start,
                RadixNodeId(node) => node,
            };
            result.node = RadixNodeId(self.add_leaf(parent, run, result.already_present));
        }
        result
    }

    /// The node on the path to `node` that ends after `keep` of its `depth` tokens; splits where
    /// none does. Nothing becomes more recently used, so that a bookkeeping cut leaves the order
    /// of eviction alone.
    pub(super) fn cut(&mut self, node: RadixNodeId, depth: usize, keep: usize) -> RadixNodeId {
        let (mut at, mut end) = (node.0, depth);
        while keep < end {
            let len = self.nodes[at].key.len();
            let begin = end - len;
            if begin < keep {
                let shared = keep - begin;
                return RadixNodeId(self.split_after(Step { node: at, shared }));
            }
            (at, end) = (self.nodes[at].parent, begin);
        }
        match keep {
            0 => RadixNodeId::ROOT,
            _ => RadixNodeId(at),
        }
    }

    pub(super) fn root(&self, namespace: Option<&[u8]>) -> Option<u32> {
        match namespace {
            None => self.plain_root,
            Some(name) => self.named_roots.get(name).copied(),
        }
    }

    fn root_or_new(&mut self, namespace: Option<&[u8]>) -> u32 {
        if let Some(root) = self.root(namespace) {
            return root;
        }
        let root = self.nodes.add(Node {
            parent: NIL,
            namespace: namespace.map(<[u8]>::to_vec),
            ..Node::default()
        });
        match namespace {
            None => self.plain_root = Some(root),
            Some(name) => {
                self.named_roots.insert(name.to_vec(), root);
            }
        }
        root
    }

    /// The nodes below `start` that a key enters, in order; all but the last are matched whole.
    fn walk(&self, start: u32, tokens: &[TokenId]) -> Vec<Step> {
        let mut steps = Vec::new();
        let (mut at, mut rest) = (start, tokens);
        while let Some(node) = self.child(at, rest) {
            let key = &self.nodes[node].key;
            let shared = shared_len(key, rest, self.page_size);
            steps.push(Step { node, shared });
            if shared < key.len() {
                break;
            }
            (at, rest) = (node, &rest[shared..]);
        }
        steps
    }

    /// The child of `parent` whose first page is that of `rest`.
    fn child(&self, parent: u32, rest: &[TokenId]) -> Option<u32> {
        let page = rest.get(..self.page_size)?;
        let order = page_order(page);
        let same = self.nodes[parent].children.range((order, 0)..=(order, NIL));
        let mut nodes = same.map(|&(_, node)| node);
        nodes.find(|&node| self.nodes[node].key.starts_with(page))
    }

    /// Ends the step's match in a node of its own, which it returns. The lower half keeps its
    /// number, so that whoever has locked it unlocks both halves.
    fn split_after(&mut self, step: Step) -> u32 {
        let (lower, shared) = (step.node, step.shared);
        if shared == self.nodes[lower].key.len() {
            return lower;
        }
        let (last_access, created) = (self.tick(), self.tick());
        let pages = shared / self.page_size;
        let node = &mut self.nodes[lower];
        let rest = node.key.split_off(shared);
        let key = std::mem::replace(&mut node.key, rest);
        let rest = node.values.split_off(pages);
        let values = std::mem::replace(&mut node.values, rest);
        let rest = node.hashes.split_off(pages.min(node.hashes.len()));
        let hashes = std::mem::replace(&mut node.hashes, rest);
        let (parent, locks, hits, priority) = (node.parent, node.locks, node.hits, node.priority);
        let outer = page_order(&key[..self.page_size]);
        let inner = page_order(&self.nodes[lower].key[..self.page_size]);
        let upper = self.nodes.add(Node {
            parent,
            children: BTreeSet::from([(inner, lower)]),
            namespace: None,
            key,
            values,
            hashes,
            locks,
            last_access,
            created,
            hits,
            priority,
            rank: None,
        });
        self.nodes[lower].parent = upper;
        let siblings = &mut self.nodes[parent].children;
        siblings.remove(&(outer, lower));
        siblings.insert((outer, upper));
        upper
    }

    /// Whether a run may be appended to the leaf above it instead of making a leaf of its own:
    /// when it is one page of a request that alone holds that leaf. So arrive the tokens of a
    /// long answer; else each would be a node, and every lock a walk along all of them. SGLang
    /// stores an answer when it is finished, which makes one node as well.
    fn may_grow(&self, above: RadixNodeId, run: &Run) -> bool {
        if above == RadixNodeId::ROOT || !run.chunked || run.tokens.len() / self.page_size != 1 {
            return false;
        }
        let node = &self.nodes[above.0];
        let named_alike = node.hashes.is_empty() == run.hashes.is_empty();
        node.locks == 1 && node.children.is_empty() && named_alike
    }

    /// Appends one page to a locked leaf.
    fn grow_leaf(&mut self, leaf: u32, run: &Run) {
        let node = &mut self.nodes[leaf];
        node.key.extend_from_slice(&run.tokens[..self.page_size]);
        let value = run.values.first().copied();
        node.values.push(value.unwrap_or(BlockId(0)));
        node.hashes.extend_from_slice(run.hashes);
        self.protected += self.page_size;
    }

    fn add_leaf(&mut self, parent: u32, run: &Run, present: usize) -> u32 {
        let (last_access, created) = (self.tick(), self.tick());
        let end = run.tokens.len() / self.page_size * self.page_size;
        let key = run.tokens[present..end].to_vec();
        let (from, pages) = (present / self.page_size, key.len() / self.page_size);
        let values = match run.values {
            [] => vec![BlockId(0); pages],
            values => values[from..].to_vec(),
        };
        self.evictable += key.len();
        let order = page_order(&key[..self.page_size]);
        let leaf = self.nodes.add(Node {
            parent,
            key,
            values,
            hashes: run.hashes.get(from..).unwrap_or_default().to_vec(),
            last_access,
            created,
            hits: u32::from(!run.chunked),
            priority: run.priority,
            ..Node::default()
        });
        self.nodes[parent].children.insert((order, leaf));
        self.refresh(parent);
        self.refresh(leaf);
        leaf
    }

    fn touch(&mut self, node: u32, now: u64) {
        self.nodes[node].last_access = now;
        self.refresh(node);
    }

    fn touch_upwards(&mut self, node: u32, now: u64) {
        let mut at = node;
        while !self.nodes[at].is_root() {
            self.touch(at, now);
            at = self.nodes[at].parent;
        }
    }

    fn count_use(&mut self, node: u32, run: &Run) {
        let used = &mut self.nodes[node];
        used.priority = used.priority.max(run.priority);
        used.hits = used.hits.saturating_add(u32::from(!run.chunked));
        self.refresh(node);
    }

    /// The next reading of the clock.
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As deep as the longest prompt of a public trace has tokens.
    #[test]
    fn a_chain_of_191_000_nodes_needs_no_stack() {
        let len = 191_000;
        let key: Vec<TokenId> = (0..len).collect();
        let mut tree = RadixTree::new(1, Eviction::Lru);
        let whole = tree.insert(&Run::bare(None, &key)).node;
        let mut end = whole;
        for keep in (1..len as usize).rev() {
            end = tree.cut(end, keep + 1, keep);
        }
        assert_eq!(tree.state().nodes.len(), len as usize);
        tree.check().unwrap();
        tree.lock(whole);
        assert_eq!(tree.lookup(None, &key).tokens, len as usize);
        assert_eq!(tree.touch_and_split(None, &key).node, whole);
        assert_eq!(tree.evict(usize::MAX).tokens, 0);
        tree.unlock(whole);
        assert_eq!(tree.eviction_order().len(), len as usize);
        assert_eq!(tree.clone().evict(usize::MAX).tokens, len as usize);
    }

    #[test]
    fn a_cut_takes_the_node_that_ends_there_or_makes_it() {
        let mut tree = RadixTree::new(2, Eviction::Lru);
        let key = [1, 1, 2, 2, 3, 3, 4, 4];
        let whole = tree.insert(&Run::bare(None, &key)).node;
        let half = tree.touch_and_split(None, &key[..4]).node;
        assert_eq!(tree.cut(whole, 8, 8), whole);
        assert_eq!(tree.cut(whole, 8, 4), half);
        assert_eq!(tree.cut(whole, 8, 0), RadixNodeId::ROOT);
        let quarter = tree.cut(whole, 8, 2);
        assert_eq!(tree.path_values(quarter).len(), 1);
        assert_eq!(tree.cut(half, 4, 2), quarter);
        tree.check().unwrap();
    }

    /// Two pages that stand at the same place are told apart by their tokens.
    #[test]
    fn pages_of_one_order_value_stay_apart() {
        // A foreign node is put where the page (1, 2) stands.
        let mut tree = RadixTree::new(2, Eviction::Lru);
        let first = tree.insert(&Run::bare(None, &[1, 2])).node;
        let root = tree.nodes[first.0].parent;
        let foreign = tree.nodes.add(Node {
            parent: root,
            key: vec![7, 8],
            values: vec![BlockId(9)],
            last_access: 1,
            ..Node::default()
        });
        let order = page_order(&[1, 2]);
        tree.nodes[root].children.insert((order, foreign));
        assert_eq!(tree.lookup(None, &[1, 2]).node, first);
        tree.nodes[root].children.remove(&(order, first.0));
        assert_eq!(tree.lookup(None, &[1, 2]).tokens, 0);
    }
}
