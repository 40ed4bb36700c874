//! The answer to `state`.

use std::collections::BTreeMap;

use pb_contract::{BlockId, PrefixCacheKind, RequestId};
use pb_core::Engine;
use serde_json::{Map, Value, json};

/// Everything that a script can see of the engine.
pub(crate) fn state(engine: &Engine, names: &BTreeMap<RequestId, String>) -> Value {
    let kv = engine.kv();
    let buckets = engine.buckets();
    let queue: Vec<u32> = kv.free_queue().iter().map(|block| block.0).collect();
    let mut answer = json!({
        "buckets": {
            "active": buckets.active,
            "reclaimable": buckets.reclaimable,
            "free": buckets.free,
        },
        "free_queue": queue,
        "requests": requests(engine, names),
        "ref_counts": ref_counts(engine),
        "hits": hits(engine),
    });
    if kv.config().prefix_cache == PrefixCacheKind::Radix {
        let block_size = kv.config().block_size;
        // A locked page is one that a request reads and that is in the tree.
        answer["radix"] = json!({
            "evictable": buckets.reclaimable * block_size,
            "protected": kv.protected_blocks() * block_size,
        });
    }
    answer
}

fn requests(engine: &Engine, names: &BTreeMap<RequestId, String>) -> Value {
    let mut map = Map::new();
    for (&id, name) in names {
        let Some(progress) = engine.progress(id) else {
            continue;
        };
        let blocks: Vec<u32> = engine.block_table(id).iter().map(|b| b.0).collect();
        let value = json!({
            "state": progress.state.as_str(),
            "computed": progress.computed,
            "blocks": blocks,
        });
        map.insert(name.clone(), value);
    }
    Value::Object(map)
}

/// Referenced blocks with their counts.
fn ref_counts(engine: &Engine) -> Value {
    let kv = engine.kv();
    let all = (0..kv.config().num_blocks as u32).map(BlockId);
    let counts = all.map(|block| (block.0.to_string(), kv.ref_count(block)));
    let referenced = counts.filter(|&(_, count)| count > 0);
    Value::Object(referenced.map(|(b, count)| (b, json!(count))).collect())
}

fn hits(engine: &Engine) -> Value {
    let counters = engine.counters();
    json!({
        "queried_tokens": counters.queried_tokens,
        "hit_tokens": counters.hit_tokens,
        "preempted_hit_tokens": counters.preempted_hit_tokens,
    })
}
