//! A worker as the router sees it: its pool, its limits, and what it was given to do.
//!
//! The load is the router's own account, kept from what it sends and what comes back. It is right
//! at once, where a figure that a worker reports is as old as the report.

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_kv::BlockHash;

/// A worker, in the order in which the router was told of them; ties go to the lower number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// Computes prompts for others to continue.
    Prefill,
    /// Continues what others have computed; it can compute a prompt too.
    Decode,
    /// Both.
    Mixed,
}

impl Pool {
    /// As in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Pool::Prefill => "prefill",
            Pool::Decode => "decode",
            Pool::Mixed => "mixed",
        }
    }
}

/// What is known of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// The pool that it belongs to.
    pub home: Pool,
    /// Whether it may help in another pool: its engine has to do both.
    pub flexible: bool,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks that its requests can have, when it is known.
    pub blocks_total: Option<usize>,
    /// Which of a prompt's lists of block names are its own, see [`Ask::names`].
    pub naming: usize,
    /// Prompts of at least so many tokens are given away while it computes them; none: no prompt.
    pub stream_min_tokens: Option<usize>,
}

impl WorkerSpec {
    /// A worker of a pool with blocks of `block_size` tokens, as many as it takes.
    pub const fn new(home: Pool, block_size: usize) -> Self {
        WorkerSpec {
            home,
            flexible: false,
            block_size,
            blocks_total: None,
            naming: 0,
            stream_min_tokens: None,
        }
    }
}

/// A request as far as routing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tokens of the prompt, or an estimate.
    pub prompt_tokens: usize,
    /// Names of the prompt's full blocks: one list for each way in which workers name them, empty
    /// where they are not known.
    pub names: Vec<Arc<[BlockHash]>>,
    /// Whether prefill and decode may be two workers'.
    pub splittable: bool,
}

impl Ask {
    /// The names that `spec`'s worker uses.
    pub(crate) fn names_of(&self, spec: &WorkerSpec) -> &[BlockHash] {
        self.names.get(spec.naming).map_or(&[], |names| names)
    }

    /// Blocks of the prompt at `spec`'s worker, the last one perhaps not full.
    pub(crate) fn blocks_at(&self, spec: &WorkerSpec) -> usize {
        self.prompt_tokens.div_ceil(spec.block_size)
    }
}

/// Blocks in use by requests; one that several share counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlocksInUse {
    named: BTreeMap<BlockHash, u32>,
    unnamed: usize,
}

impl BlocksInUse {
    pub(crate) fn count(&self) -> usize {
        self.named.len() + self.unnamed
    }

    /// As it would be with `ask` too.
    pub(crate) fn count_with(&self, ask: &Ask, spec: &WorkerSpec) -> usize {
        let names = ask.names_of(spec);
        let fresh = names.iter().filter(|name| !self.named.contains_key(name));
        let unnamed = ask.blocks_at(spec).saturating_sub(names.len());
        self.count() + fresh.count() + unnamed
    }

    pub(crate) fn add(&mut self, ask: &Ask, spec: &WorkerSpec) {
        let names = ask.names_of(spec);
        for name in names {
            *self.named.entry(*name).or_default() += 1;
        }
        self.unnamed += ask.blocks_at(spec).saturating_sub(names.len());
    }

    pub(crate) fn remove(&mut self, ask: &Ask, spec: &WorkerSpec) {
        let names = ask.names_of(spec);
        for name in names {
            if let Some(count) = self.named.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.named.remove(name);
                }
            }
        }
        self.unnamed -= ask.blocks_at(spec).saturating_sub(names.len());
    }
}

/// What a worker has been given and not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests whose prompt it computes.
    pub(crate) prefills: usize,
    /// Tokens that these still have to compute, cached ones left out.
    pub(crate) prefill_tokens: usize,
    /// Computed prompts that it keeps for another worker.
    pub(crate) kept: usize,
    /// Requests that decode here, or fetch their KV to do so.
    pub(crate) decodes: usize,
    /// Blocks of all of these.
    pub(crate) blocks: BlocksInUse,
}

impl Load {
    pub(crate) fn requests(&self) -> usize {
        self.prefills + self.kept + self.decodes
    }

    /// Splitwise's measure: prompt tokens, and one for each decode.
    pub(crate) fn pending_tokens(&self) -> usize {
        self.prefill_tokens + self.decodes
    }
}

/// A worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) spec: WorkerSpec,
    /// Where it works at present.
    pub(crate) pool: Pool,
    pub(crate) up: bool,
    pub(crate) load: Load,
}

impl Worker {
    pub(crate) fn new(spec: WorkerSpec) -> Self {
        Worker {
            pool: spec.home,
            spec,
            up: true,
            load: Load::default(),
        }
    }

    pub(crate) fn prefills(&self) -> bool {
        self.up && self.pool != Pool::Decode
    }

    pub(crate) fn decodes(&self) -> bool {
        self.up && self.pool != Pool::Prefill
    }

    /// Whether it helps in another pool and has nothing of that left.
    pub(crate) fn may_go_home(&self) -> bool {
        self.pool != self.spec.home
            && match self.spec.home {
                Pool::Prefill => self.load.decodes == 0,
                Pool::Decode => self.load.prefills + self.load.kept == 0,
                Pool::Mixed => true,
            }
    }
}

/// A worker's account, for metrics and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker.
    pub id: WorkerId,
    /// The pool that it belongs to.
    pub home: Pool,
    /// Where it works at present.
    pub pool: Pool,
    /// Whether it is believed to answer.
    pub up: bool,
    /// Requests whose prompt it computes.
    pub prefills: usize,
    /// Prompt tokens that it still has to compute.
    pub prefill_tokens: usize,
    /// Computed prompts that it keeps for another worker.
    pub kept: usize,
    /// Requests that decode here.
    pub decodes: usize,
    /// Blocks of its requests.
    pub blocks: usize,
    /// Blocks that it is known to have cached.
    pub known_blocks: usize,
}
