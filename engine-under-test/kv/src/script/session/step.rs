//! What a step does: look up, take blocks, compute.

use pb_contract::{BlockId, PrefixCacheKind};

use super::super::laws::{self, Observed};
use super::{Answer, Broken, Outcome, Session, law};
use crate::Hit;

impl Session {
    pub(super) fn lookup(&mut self, name: &str) -> Outcome {
        let Some(request) = self.requests.get(name) else {
            return Ok(Answer::Skipped("no such request"));
        };
        let before = Observed::of(self);
        let hit = self.cache.lookup(&request.seq);
        let again = self.cache.lookup(&request.seq);
        law!(
            hit == again,
            "a second lookup of {name} finds {again:?}, the first {hit:?}"
        );
        law!(
            Observed::of(self) == before,
            "the lookup of {name} changed the cache"
        );
        self.judge_hit(name, &hit)?;
        let hit_tokens = hit.tokens(self.cache.config().block_size);
        Ok(Answer::Found { hit_tokens })
    }

    /// A hit must be right block by block, and as long as what is there allows.
    fn judge_hit(&self, name: &str, hit: &Hit) -> Result<(), Broken> {
        let config = self.cache.config();
        let request = &self.requests[name];
        let max_blocks = (request.seq.len() - 1) / config.block_size;
        // A block-hash chain names blocks when they are scheduled, the others when computed.
        let promised = config.prefix_cache == PrefixCacheKind::HashChain;
        let expected = match config.prefix_cache {
            PrefixCacheKind::None => 0,
            _ => self.contents.leading(&request.path, max_blocks, promised),
        };
        let paths = request.path.chunks(config.block_size).zip(&hit.blocks);
        for (index, (path, &block)) in paths.enumerate() {
            law!(
                self.contents.holds(block, path, promised),
                "block {} of the hit of {name} (number {index}) holds other data",
                block.0
            );
        }
        law!(
            hit.blocks.len() == expected,
            "{name} hits {} blocks of {expected} that are there (at most {max_blocks})",
            hit.blocks.len()
        );
        Ok(())
    }

    pub(super) fn allocate(&mut self, name: &str, tokens: usize, use_hit: bool) -> Outcome {
        let Some(request) = self.requests.get(name) else {
            return Ok(Answer::Skipped("no such request"));
        };
        if request.in_flight() {
            return Ok(Answer::Skipped("a step is in flight"));
        }
        let hit = match request.scheduled == 0 && use_hit {
            true => self.cache.lookup(&request.seq),
            false => Hit::default(),
        };
        self.judge_admission(name, &hit, use_hit)?;
        let block_size = self.cache.config().block_size;
        let hit_tokens = hit.tokens(block_size);
        let start = request.computed + hit_tokens;
        let new_tokens = tokens.min(request.seq.len() - start);
        if new_tokens == 0 {
            return Ok(Answer::Skipped("there is nothing to compute"));
        }
        let (id, computed) = (request.id, request.computed);
        let before = Observed::of(self);
        let needed = self.cache.blocks_needed(id, computed, &hit, new_tokens);
        let allocated = self
            .cache
            .allocate(id, &request.seq, computed, &hit, new_tokens);
        law!(
            allocated == (needed <= before.free_blocks()),
            "allocated = {allocated} for {name}: {needed} blocks needed, {} free",
            before.free_blocks()
        );
        if !allocated {
            law!(
                Observed::of(self) == before,
                "the refusal of {name} changed the cache"
            );
            self.counted.refusals += 1;
            return Ok(Answer::Refused);
        }
        // OK because the request was found above and nothing removes it.
        let request = self.requests.get_mut(name).expect("a known request");
        (request.start, request.scheduled) = (start, start + new_tokens);
        let copies = self.move_data(name, &before, &hit, needed)?;
        self.flight.push(name.to_owned());
        Ok(Answer::Allocated {
            hit_tokens,
            new_tokens,
            blocks: self.cache.block_table(id).to_vec(),
            copies,
        })
    }

    fn judge_admission(&self, name: &str, hit: &Hit, use_hit: bool) -> Result<(), Broken> {
        match use_hit && self.requests[name].scheduled == 0 {
            true => self.judge_hit(name, hit),
            false => Ok(()),
        }
    }

    /// Follows an allocation in the contents of blocks: what was evicted still had the data of
    /// its name, copies are made, new blocks hold nothing, and the step in flight will write.
    fn move_data(
        &mut self,
        name: &str,
        before: &Observed,
        hit: &Hit,
        needed: usize,
    ) -> Result<Vec<(BlockId, BlockId)>, Broken> {
        let moves = self.cache.take_moves();
        for evicted in &moves.evicted {
            let ends_with = self.contents.full(evicted.block);
            law!(
                ends_with.and_then(|prefix| self.prefixes.digest(prefix)) == Some(evicted.hash),
                "block {} was evicted under a name that is not that of its data",
                evicted.block.0
            );
        }
        let request = &self.requests[name];
        let table = self.cache.block_table(request.id);
        let held = before.table(request.id);
        let copies = laws::copies(self, request, held, table, before)?;
        law!(
            moves.copies == copies,
            "{name} writes from {} on: copies {:?} made, {copies:?} necessary",
            request.start,
            moves.copies
        );
        let fresh_blocks = laws::taken(self, before, (held, table), hit, needed)?;
        self.counted.allocated_blocks += fresh_blocks as u64;
        self.counted.hit_blocks += hit.blocks.len() as u64;
        self.counted.evicted_blocks += moves.evicted.len() as u64;
        self.counted.copied_blocks += copies.len() as u64;
        let fresh = table[held.len().max(hit.blocks.len())..].to_vec();
        let evicted = moves.evicted.iter().map(|evicted| evicted.block);
        let lost: Vec<BlockId> = evicted.chain(fresh).collect();
        let within = request.start % self.cache.config().block_size;
        copies
            .iter()
            .for_each(|&(from, to)| self.contents.copy(from, to, within));
        let kept = |block: &&BlockId| copies.iter().all(|(_, to)| to != *block);
        lost.iter()
            .filter(kept)
            .for_each(|&block| self.contents.lose(block));
        let range = request.start..request.scheduled;
        self.contents.promise(table, &request.path, range);
        Ok(copies)
    }

    pub(super) fn commit_one(&mut self, name: &str) -> Outcome {
        let Some(at) = self.flight.iter().position(|other| other == name) else {
            return Ok(Answer::Skipped("no step of this request is in flight"));
        };
        let request = &self.requests[name];
        let table = self.cache.block_table(request.id);
        let wrong = |promised| {
            self.contents
                .first_wrong(table, &request.path, request.start, promised)
        };
        if wrong(false).is_some() && wrong(true).is_none() {
            return Ok(Answer::Skipped("it relies on a step of another request"));
        }
        self.flight.remove(at);
        self.compute(name)?;
        Ok(Answer::Committed(vec![name.to_owned()]))
    }

    pub(super) fn commit_all(&mut self) -> Outcome {
        let flight = std::mem::take(&mut self.flight);
        for name in &flight {
            self.compute(name)?;
        }
        Ok(Answer::Committed(flight))
    }

    /// The step of one request reads all that precedes it, and writes.
    fn compute(&mut self, name: &str) -> Result<(), Broken> {
        // OK because only known requests are in flight.
        let request = self.requests.get_mut(name).expect("a known request");
        let table = self.cache.block_table(request.id).to_vec();
        let wrong = self
            .contents
            .first_wrong(&table, &request.path, request.start, false);
        if let Some(at) = wrong {
            let at = format!("position {at} of {name} is read from a slot with other data");
            return Err(Broken(at));
        }
        self.contents
            .write(&table, &request.path, request.start..request.scheduled);
        request.computed = request.scheduled;
        request.start = request.scheduled;
        self.cache
            .commit(request.id, &request.seq, request.computed);
        let after = self.cache.block_table(request.id);
        let dropped = table.iter().filter(|block| !after.contains(block));
        let unused = dropped.filter(|&&block| self.cache.ref_count(block) == 0);
        unused.for_each(|&block| self.contents.lose(block));
        Ok(())
    }
}
