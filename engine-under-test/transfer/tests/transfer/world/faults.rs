//! What goes wrong in the world.

use std::collections::BTreeSet;

use pb_contract::{Nanos, RequestId};
use pb_transfer::{Cause, Sink, Source};

use super::pool::Pool;
use super::{Event, Request, Side, World, sink_config, source_config};

impl World {
    pub(super) fn link_down(&mut self, side: Side) {
        if !std::mem::replace(&mut self.up[side as usize], false) {
            return;
        }
        match side {
            Side::Source => self.source.link_down(Nanos(self.now)),
            Side::Sink => self.sink.link_down(),
        }
    }

    pub(super) fn reconnect(&mut self) {
        self.link_down(Side::Source);
        self.link_down(Side::Sink);
        self.epoch += 1;
        self.alive_until = u64::MAX;
        self.up = [true; 2];
        self.last_delivery.fill(self.now);
    }

    /// The connection is cut; what is under way may still arrive for a while. Each side notices at
    /// its own time, or only when the next connection comes.
    fn cut(&mut self) {
        let latency = self.latency();
        self.alive_until = self.now + self.stream.below(latency);
        let epoch = self.epoch;
        for side in [Side::Source, Side::Sink] {
            let delay = self.stream.below(9_000);
            self.after(delay, Event::Learn(side, epoch));
        }
        let delay = 1_000 + self.stream.below(9_000);
        self.after(delay, Event::Reconnect);
    }

    pub(super) fn fault(&mut self) -> Result<(), String> {
        match self.stream.below(4) {
            0 => self.cut(),
            1 => self.kill_source(),
            2 => self.kill_sink(),
            _ => self.cancel()?,
        }
        Ok(())
    }

    fn kill_source(&mut self) {
        self.mark("source killed");
        self.sources += 1;
        let config = source_config(&self.setup, &mut self.stream, self.defect);
        self.source = Source::new(config, self.sources << 32);
        self.source_pool = Pool::new(12, self.setup.layers);
        self.up[Side::Source as usize] = false;
        let running: BTreeSet<u64> = std::mem::take(&mut self.jobs).into_keys().collect();
        running
            .into_iter()
            .for_each(|attempt| self.give_up(attempt));
        self.cut();
    }

    fn kill_sink(&mut self) {
        self.mark("sink killed");
        self.sinks += 1;
        self.sink = Sink::new(sink_config(&self.setup, &mut self.stream, self.defect));
        self.sink_pool = Pool::new(10, self.setup.layers);
        self.waiting.clear();
        self.up[Side::Sink as usize] = false;
        for request in 0..self.requests.len() {
            if matches!(self.requests[request], Request::Decoding(_)) {
                self.requests[request] = Request::Waiting;
                self.after(1, Event::Begin(request));
            }
        }
        self.cut();
    }

    /// A client goes away; one side is told, or the other.
    fn cancel(&mut self) -> Result<(), String> {
        let request = self.stream.below(self.requests.len() as u64) as usize;
        let Request::Attempt(attempt) = self.requests[request] else {
            return Ok(());
        };
        self.requests[request] = Request::Done;
        self.mark("cancelled");
        let id = self.jobs.get(&attempt).map(|job| job.id);
        match id {
            Some(id) if self.stream.below(2) == 0 => {
                self.source.abort(Nanos(self.now), id, Cause::Cancelled);
            }
            _ => {
                if !self.sink.cancel(RequestId(attempt)) {
                    // It has not heard of the request; the offer may still come.
                    self.mark("cancel before offer");
                    let id = id.ok_or("an attempt that neither side knows")?;
                    self.source.abort(Nanos(self.now), id, Cause::Cancelled);
                }
            }
        }
        Ok(())
    }
}
