//! The prefix cache of SGLang: pages of tokens in a radix tree.
//!
//! [`RadixTree`] knows keys, values and locks and nothing of requests; [`RadixCache`] lays block
//! tables of requests over it. The rules are those of SGLang 0.5.23's `RadixCache`, whose answers
//! to random scripts are in `golden/replay/sglang-radix`. Three things are different by intent:
//! a lookup that changes nothing exists beside the one that splits and touches; time is a count of
//! the tree's own readings and not a clock, so that a replay gives the same order; and nothing
//! recurses, so a chain as deep as the longest context is no danger to the stack.

mod cache;
mod candidates;
mod inspect;
mod key;
mod laws;
mod locks;
mod node;
mod release;
mod requests;
mod slots;
mod tree;

pub use cache::RadixCache;
pub use candidates::EvictedPages;
pub use inspect::{RadixNodeState, RadixState};
pub use node::RadixNodeId;
pub use tree::{Inserted, RadixMatch, RadixTree, Run};
