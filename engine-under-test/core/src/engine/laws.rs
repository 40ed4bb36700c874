//! What must hold between two steps, whatever happened.

use super::Engine;

impl Engine {
    /// Checks every conservation law of queues, KV manager, swap pool, tiers and counters.
    ///
    /// # Errors
    /// The first law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.kv.check()?;
        self.tiers.check()?;
        let is_swapped = |id| self.requests.get(&id).is_some_and(|live| live.swapped);
        self.swap.check(is_swapped)?;
        self.check_queues()?;
        self.check_tables()?;
        let c = &self.counters;
        if c.hit_tokens > c.queried_tokens {
            return Err(format!(
                "counters: {} tokens found of {} looked up",
                c.hit_tokens, c.queried_tokens
            ));
        }
        Ok(())
    }

    /// Every live request is in exactly one place: running, waiting, or behind its leader.
    fn check_queues(&self) -> Result<(), String> {
        for (&id, live) in &self.requests {
            let running = self.running.iter().filter(|&&r| r == id).count();
            let waiting = self.waiting.iter().filter(|&&r| r == id).count();
            let following = live.leader.map_or(0, |leader| {
                let leader = self.requests.get(&leader);
                leader.map_or(0, |l| l.followers.iter().filter(|&&f| f == id).count())
            });
            if running + waiting + following != 1 {
                return Err(format!(
                    "queues: request {id} is {running} times running, {waiting} times waiting \
                     and {following} times a follower"
                ));
            }
        }
        let queued = self.running.len() + self.waiting.len();
        let followers = self.requests.values().map(|live| live.followers.len());
        if queued + followers.sum::<usize>() != self.requests.len() {
            return Err("queues: an entry has no live request".to_owned());
        }
        let (places, allowed) = (self.running_places(), self.config.max_num_seqs);
        if places > allowed {
            return Err(format!("queues: {places} sequences run, {allowed} may"));
        }
        Ok(())
    }

    /// Running requests hold the blocks of what they have computed, others hold none.
    fn check_tables(&self) -> Result<(), String> {
        for (&id, live) in &self.requests {
            let blocks = self.kv.block_table(id).len();
            let needed = live.computed.div_ceil(self.config.block_size);
            if blocks != needed {
                return Err(format!(
                    "tables: request {id} has computed {} tokens and holds {blocks} blocks",
                    live.computed
                ));
            }
        }
        self.check_incoming()?;
        let tables = self.running.len() + self.hold_count() + self.receiving().count();
        match self.kv.live_requests() {
            live if live == tables => Ok(()),
            live => Err(format!("tables: {live} held, {tables} known")),
        }
    }
}
