//! The decode engine of the world.

use pb_contract::{BlockId, Nanos};
use pb_transfer::{DataHead, SinkAction};

use super::{CELL_BYTES, Event, Request, Side, World, computed};

impl World {
    pub(super) fn cells(&mut self, epoch: u64, head: &DataHead, payload: &[u8]) {
        if !self.delivers(Side::Sink, epoch) {
            return;
        }
        let Some(table) = self.sink.admit(head.id, head.span).map(<[_]>::to_vec) else {
            let none = vec![false; head.sums.len()];
            self.sink
                .arrived(Nanos(self.now), head.id, head.span, &none);
            return;
        };
        let good = self.sink.judge(head, CELL_BYTES, payload);
        let cells = head.span.iter().zip(payload.chunks_exact(CELL_BYTES));
        for (((b, l), cell), good) in cells.zip(&good) {
            if *good {
                self.sink_pool
                    .cell(table[b as usize], l)
                    .copy_from_slice(cell);
            }
        }
        self.sink
            .arrived(Nanos(self.now), head.id, head.span, &good);
    }

    pub(super) fn sink_action(&mut self, action: SinkAction) -> Result<(), String> {
        match action {
            SinkAction::Send(message) => {
                if self.up[Side::Sink as usize] {
                    let event = Event::ToSource(self.epoch, message);
                    self.deliver(0, event);
                }
            }
            SinkAction::Reserve(offer) => self.waiting.push_back(offer),
            SinkAction::Place { id } => {
                let delay = self.stream.below(50);
                self.after(delay, Event::Placed(self.sinks, id));
            }
            SinkAction::Start {
                request, blocks, ..
            } => self.start(request.0, &blocks)?,
            SinkAction::Fail {
                request,
                cause,
                blocks,
                id,
            } => {
                self.mark(format!("fail {}", cause.name()));
                self.waiting.retain(|offer| offer.id != id);
                self.sink_pool.free(request.0, &blocks)?;
                self.give_up(request.0);
            }
        }
        Ok(())
    }

    fn start(&mut self, attempt: u64, blocks: &[BlockId]) -> Result<(), String> {
        for (i, block) in blocks.iter().enumerate() {
            for layer in 0..self.setup.layers {
                let expected = computed(attempt, i as u32, layer);
                if *self.sink_pool.cell(*block, layer) != expected {
                    return Err(format!("attempt {attempt} starts with wrong bytes"));
                }
            }
        }
        let request = self.attempts[attempt as usize];
        if self.requests[request] != Request::Attempt(attempt) {
            // The router has given it up: nobody waits for its text.
            self.mark("stale start");
            return self.sink_pool.free(attempt, blocks);
        }
        self.requests[request] = Request::Decoding(attempt);
        let time = 1 + self.stream.below(2_000);
        self.after(time, Event::Decoded(attempt));
        Ok(())
    }

    pub(super) fn decoded(&mut self, attempt: u64) -> Result<(), String> {
        let request = self.attempts[attempt as usize];
        if self.requests[request] == Request::Decoding(attempt) {
            self.requests[request] = Request::Done;
            let owned = self.sink_pool.owner.iter().enumerate();
            let blocks: Vec<BlockId> = owned
                .filter(|(_, owner)| **owner == Some(attempt))
                .map(|(b, _)| BlockId(b as u32))
                .collect();
            self.sink_pool.free(attempt, &blocks)?;
        }
        Ok(())
    }

    /// Offers get room in their order.
    pub(super) fn make_room(&mut self) {
        while let Some(offer) = self.waiting.front().copied() {
            let owner = offer.request.0;
            let Some(blocks) = self.sink_pool.allocate(owner, offer.blocks) else {
                break;
            };
            self.waiting.pop_front();
            if !self
                .sink
                .reserved(Nanos(self.now), offer.id, blocks.clone())
            {
                self.sink_pool.free(owner, &blocks).expect("just allocated");
            }
        }
        // What the reservations ask for.
        let sends: Vec<SinkAction> = std::iter::from_fn(|| self.sink.next_action()).collect();
        for action in sends {
            self.sink_action(action).expect("only messages");
        }
    }
}
