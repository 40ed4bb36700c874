//! The `cache` layer: the radix tree alone.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Eviction};
use pb_kv::{RadixNodeId, RadixTree, Run};
use serde_json::{Value, json};

use crate::error::ReplayError;
use crate::fields::Fields;
use crate::tokens;

const OPS: &str = "config, cache.match, cache.insert, cache.unlock, cache.evict, state";

/// A radix tree and the locks that the script has named.
pub(crate) struct TreeLayer {
    tree: RadixTree,
    page_size: usize,
    locks: BTreeMap<String, RadixNodeId>,
}

impl TreeLayer {
    /// From a `config` line.
    pub(crate) fn new(mut fields: Fields) -> Result<Self, ReplayError> {
        let kind = fields.optional_text("cache")?.unwrap_or("radix".into());
        if kind != "radix" {
            return Err(ReplayError::field(
                "cache",
                kind,
                "this layer has radix only",
            ));
        }
        match fields.optional_text("preset")?.as_deref() {
            None | Some("sglang") => {}
            Some(other) => {
                return Err(ReplayError::field(
                    "preset",
                    other,
                    "this layer has sglang only",
                ));
            }
        }
        let page_size = fields.optional_number("page_size")?.unwrap_or(1) as usize;
        if !(1..=1 << 20).contains(&page_size) {
            return Err(ReplayError::field(
                "page_size",
                page_size,
                "must be at least 1 and at most 1048576",
            ));
        }
        let eviction = eviction(fields.optional_text("eviction")?)?;
        fields.done()?;
        Ok(TreeLayer {
            tree: RadixTree::new(page_size, eviction),
            page_size,
            locks: BTreeMap::new(),
        })
    }

    /// Answers a line.
    pub(crate) fn answer(&mut self, op: &str, fields: Fields) -> Result<Value, ReplayError> {
        let answer = match op {
            "cache.match" => self.find(fields),
            "cache.insert" => self.insert(fields),
            "cache.unlock" => self.unlock(fields),
            "cache.evict" => self.evict(fields),
            "state" => self.state(fields),
            _ => {
                return Err(ReplayError::UnknownOp {
                    op: op.to_owned(),
                    known: OPS,
                });
            }
        }?;
        self.tree.check().map_err(ReplayError::BrokenLaw)?;
        Ok(answer)
    }

    fn find(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let tokens = tokens::parse("tokens", &fields.required("tokens")?)?;
        let extra_key = fields.optional_text("extra_key")?;
        let lock = fields.optional_text("lock")?;
        fields.done()?;
        if let Some(name) = lock.as_ref().filter(|name| self.locks.contains_key(*name)) {
            return Err(ReplayError::DuplicateLock(name.clone()));
        }
        let namespace = extra_key.as_deref().map(str::as_bytes);
        let found = self.tree.touch_and_split(namespace, &tokens);
        if let Some(name) = lock {
            self.tree.lock(found.node);
            self.locks.insert(name, found.node);
        }
        Ok(json!({"hit_tokens": found.tokens}))
    }

    fn insert(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let tokens = tokens::parse("tokens", &fields.required("tokens")?)?;
        let extra_key = fields.optional_text("extra_key")?;
        let priority = fields.optional_integer("priority")?.unwrap_or(0);
        fields.done()?;
        let values = vec![BlockId(0); tokens.len() / self.page_size];
        let inserted = self.tree.insert(&Run {
            namespace: extra_key.as_deref().map(str::as_bytes),
            tokens: &tokens,
            values: &values,
            hashes: &[],
            priority,
            chunked: false,
        });
        Ok(json!({"already_present": inserted.already_present}))
    }

    fn unlock(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let name = fields.text("lock")?;
        fields.done()?;
        let node = self.locks.remove(&name);
        self.tree
            .unlock(node.ok_or(ReplayError::UnknownLock(name))?);
        Ok(json!({}))
    }

    fn evict(&mut self, mut fields: Fields) -> Result<Value, ReplayError> {
        let wanted = fields.number("tokens")? as usize;
        fields.done()?;
        Ok(json!({"evicted_tokens": self.tree.evict(wanted).tokens}))
    }

    fn state(&self, fields: Fields) -> Result<Value, ReplayError> {
        fields.done()?;
        let state = self.tree.state();
        let nodes: Vec<Value> = state
            .nodes
            .iter()
            .map(|node| {
                json!({"extra_key": node.extra_key, "depth": node.depth, "len": node.len,
                       "locks": node.locks, "first": node.first})
            })
            .collect();
        Ok(
            json!({"radix": {"evictable": state.evictable, "protected": state.protected,
                            "nodes": nodes}}),
        )
    }
}

fn eviction(name: Option<String>) -> Result<Eviction, ReplayError> {
    match name.as_deref() {
        None | Some("lru") => Ok(Eviction::Lru),
        Some("lfu") => Ok(Eviction::Lfu),
        Some("fifo") => Ok(Eviction::Fifo),
        Some("priority") => Ok(Eviction::Priority),
        Some(other) => Err(ReplayError::field(
            "eviction",
            other,
            "must be lru, lfu, fifo or priority",
        )),
    }
}
