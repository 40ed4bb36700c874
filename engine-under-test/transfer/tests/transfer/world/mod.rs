//! Two engines, a router and an unreliable connection, in virtual time.
//!
//! Memory is real: every cell has eight bytes, blocks that are freed are overwritten at once, the
//! transport reads a block some time after it was told to, and what a request starts with is
//! compared with what was computed for it.

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{BlockId, Nanos, RequestId, Stream};
use pb_transfer::{
    DataHead, Defect, Ended, Granularity, Lend, Message, Mode, Offer, Order, Posted, Sink,
    SinkConfig, Source, SourceAction, SourceConfig, Span, TransferId, checksum,
};

mod faults;
mod pool;
mod sink_side;

use pool::Pool;

pub(crate) const CELL_BYTES: usize = 8;

/// Faults come before this time only.
const CALM_AFTER: u64 = 12_000;

/// What happened, summed over schedules, so that a test can tell that it happened at all.
pub(crate) type Marks = BTreeMap<String, u64>;

/// What computing `attempt` gives in a cell.
fn computed(attempt: u64, block: u32, layer: u32) -> [u8; CELL_BYTES] {
    let mix = attempt << 24 | u64::from(block) << 8 | u64::from(layer);
    mix.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// Waits for a prefill engine.
    Waiting,
    /// Is being prefilled or transferred.
    Attempt(u64),
    Decoding(u64),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Sink,
}

#[derive(Debug)]
enum Event {
    ToSource(u64, Message),
    ToSink(u64, Message),
    Cells(u64, DataHead, Vec<u8>),
    Read(u64, DataHead),
    Compute(u64),
    Placed(u64, TransferId),
    Decoded(u64),
    Begin(usize),
    Tick(Side),
    Learn(Side, u64),
    Reconnect,
    Fault,
}

/// A prefill under way.
struct Job {
    id: TransferId,
    blocks: Vec<BlockId>,
    /// Cells computed, in the order of computing.
    done: usize,
    plan: Vec<Span>,
}

/// What a schedule is drawn to be.
struct Setup {
    layers: u32,
    mode: Mode,
    granularity: Granularity,
    latency: u64,
    lease: u64,
    corrupt_in: u64,
    channels: usize,
    faults: u32,
}

pub(crate) struct World {
    setup: Setup,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    stream: Stream,
    source: Source,
    sink: Sink,
    source_pool: Pool,
    sink_pool: Pool,
    jobs: BTreeMap<u64, Job>,
    /// Offers that wait for room at the sink.
    waiting: VecDeque<Offer>,
    epoch: u64,
    /// Until when the connection delivers.
    alive_until: u64,
    up: [bool; 2],
    last_delivery: Vec<u64>,
    requests: Vec<Request>,
    attempts: Vec<usize>,
    /// Sources and sinks so far.
    sources: u64,
    sinks: u64,
    defect: Defect,
    marks: Marks,
}

/// Runs one schedule.
///
/// # Errors
/// The law that was broken.
pub(crate) fn run(seed: u64, defect: Defect, marks: &mut Marks) -> Result<(), String> {
    let mut world = World::new(seed, defect);
    let result = world.run();
    for (name, count) in world.marks {
        *marks.entry(name).or_default() += count;
    }
    result
}

fn source_config(setup: &Setup, stream: &mut Stream, defect: Defect) -> SourceConfig {
    SourceConfig {
        layers: setup.layers,
        order: [Order::BlockMajor, Order::LayerMajor][stream.below(2) as usize],
        lease: Nanos(setup.lease),
        frame_cells: 1 + stream.below(6),
        frames_in_flight: 1 + stream.below(4) as u32,
        defect,
    }
}

fn sink_config(setup: &Setup, stream: &mut Stream, defect: Defect) -> SinkConfig {
    SinkConfig {
        layers: setup.layers,
        source_block_size: 4,
        blocks: 8,
        transfers: 2 + stream.below(4) as usize,
        window_cells: 1 + stream.below(8),
        stall: Nanos(4_000 + stream.below(4_000)),
        retries: 2,
        defect,
    }
}

impl World {
    fn new(seed: u64, defect: Defect) -> World {
        let mut stream = Stream::new(seed, "transfer schedule");
        let mut pick = |n| stream.below(n);
        let setup = Setup {
            layers: 1 + pick(3) as u32,
            mode: [Mode::Pull, Mode::Push][pick(2) as usize],
            granularity: [Granularity::Bulk, Granularity::Chunk, Granularity::Layer]
                [pick(3) as usize],
            // The slow ones outlast a lease.
            latency: [20, 200, 3_000][pick(3) as usize],
            lease: 1_000 + pick(4_000),
            corrupt_in: [u64::MAX, 40, 6][pick(3) as usize],
            channels: 1 + pick(3) as usize,
            faults: pick(6) as u32,
        };
        let source = Source::new(source_config(&setup, &mut stream, defect), 1 << 32);
        let sink = Sink::new(sink_config(&setup, &mut stream, defect));
        let requests = 1 + stream.below(6) as usize;
        let mut world = World {
            source_pool: Pool::new(12, setup.layers),
            sink_pool: Pool::new(10, setup.layers),
            last_delivery: vec![0; setup.channels + 2],
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            stream,
            source,
            sink,
            jobs: BTreeMap::new(),
            waiting: VecDeque::new(),
            epoch: 0,
            alive_until: u64::MAX,
            up: [true; 2],
            requests: vec![Request::Waiting; requests],
            attempts: Vec::new(),
            sources: 1,
            sinks: 1,
            defect,
            marks: Marks::new(),
            setup,
        };
        for request in 0..requests {
            let at = world.stream.below(3_000);
            world.after(at, Event::Begin(request));
        }
        for _ in 0..world.setup.faults {
            let at = world.stream.below(CALM_AFTER);
            world.after(at, Event::Fault);
        }
        world
    }

    fn mark(&mut self, name: impl Into<String>) {
        *self.marks.entry(name.into()).or_default() += 1;
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), event);
    }

    fn run(&mut self) -> Result<(), String> {
        let mut events = 0;
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.handle(event)?;
            self.settle()?;
            events += 1;
            if events > 20_000 {
                return Err(format!("no end: {:?}", self.requests));
            }
        }
        if let Some(lost) = self.requests.iter().position(|r| *r != Request::Done) {
            return Err(format!("request {lost} is lost: {:?}", self.requests[lost]));
        }
        let used = [self.source_pool.used(), self.sink_pool.used()];
        let open = [self.source.leases(), self.sink.transfers()];
        if used != [0, 0] || open != [0, 0] {
            return Err(format!("left over: {used:?} blocks, {open:?} transfers"));
        }
        let late = self.source.late();
        *self.marks.entry("late ack".into()).or_default() += late.acks;
        let unused = self.sink.unused();
        *self.marks.entry("late cells".into()).or_default() += unused.late;
        *self.marks.entry("corrupt cells".into()).or_default() += unused.corrupt;
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let now = Nanos(self.now);
        match event {
            Event::ToSource(epoch, message) => {
                if self.delivers(Side::Source, epoch) {
                    let taken = self.source.on_message(now, &message);
                    taken.map_err(|e| format!("source: {e}"))?;
                }
            }
            Event::ToSink(epoch, message) => {
                if self.delivers(Side::Sink, epoch) {
                    let taken = self.sink.on_message(now, &message);
                    taken.map_err(|e| format!("sink: {e}"))?;
                }
            }
            Event::Cells(epoch, head, payload) => self.cells(epoch, &head, &payload),
            Event::Read(epoch, head) => self.read(epoch, head)?,
            Event::Compute(attempt) => self.compute(attempt),
            Event::Placed(sink, id) => {
                if sink == self.sinks {
                    self.sink.placed(id, Ok(()));
                }
            }
            Event::Decoded(attempt) => self.decoded(attempt)?,
            Event::Begin(request) => self.begin(request),
            Event::Tick(Side::Source) => self.source.tick(now),
            Event::Tick(Side::Sink) => self.sink.tick(now),
            Event::Learn(side, epoch) => {
                if epoch == self.epoch {
                    self.link_down(side);
                }
            }
            Event::Reconnect => self.reconnect(),
            Event::Fault => self.fault()?,
        }
        Ok(())
    }

    fn delivers(&self, side: Side, epoch: u64) -> bool {
        epoch == self.epoch && self.up[side as usize] && self.now <= self.alive_until
    }

    /// Longest delay of the connection and of the transport. After the last fault it is short, so
    /// that every schedule can end.
    fn latency(&self) -> u64 {
        let calm = self.now > CALM_AFTER;
        self.setup.latency.min(if calm { 200 } else { u64::MAX })
    }

    /// Sends on a channel that keeps its order: 0 to the source, 1 to the sink, then cells.
    fn deliver(&mut self, channel: usize, event: Event) {
        let latency = self.latency();
        let latency = 1 + self.stream.below(latency);
        let at = (self.now + latency).max(self.last_delivery[channel] + 1);
        self.last_delivery[channel] = at;
        self.after(at - self.now, event);
    }

    /// Does what the two machines ask for, until they ask for nothing.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            if let Some(action) = self.source.next_action() {
                self.source_action(action)?;
            } else if let Some(action) = self.sink.next_action() {
                self.sink_action(action)?;
            } else {
                break;
            }
        }
        if self.defect == Defect::None {
            self.source.check()?;
        }
        self.make_room();
        let deadlines = [self.source.next_deadline(), self.sink.next_deadline()];
        for (side, deadline) in [Side::Source, Side::Sink].into_iter().zip(deadlines) {
            let Some(at) = deadline else { continue };
            let at = at.0.max(self.now + 1);
            let due = |event: &Event| matches!(event, Event::Tick(s) if *s == side);
            let planned = self.queue.range(..=(at, u64::MAX)).any(|(_, e)| due(e));
            if !planned {
                self.after(at - self.now, Event::Tick(side));
            }
        }
        Ok(())
    }

    fn source_action(&mut self, action: SourceAction) -> Result<(), String> {
        match action {
            SourceAction::Send(message) => {
                if self.up[Side::Source as usize] {
                    let event = Event::ToSink(self.epoch, message);
                    self.deliver(1, event);
                }
            }
            SourceAction::Post { id, span } => {
                let sums = self.source.sums(id, span).ok_or("a post of nothing")?;
                self.check_computed(id, span)?;
                let bytes = span.cells() * CELL_BYTES as u64;
                let posted = Posted {
                    bytes,
                    ..Posted::default()
                };
                self.source.posted(id, span, posted);
                let latency = self.latency();
                let delay = 1 + self.stream.below(latency);
                self.after(delay, Event::Read(self.epoch, DataHead { id, span, sums }));
            }
            SourceAction::Free {
                request,
                blocks,
                ended,
                ..
            } => {
                self.mark(format!("{ended:?}"));
                self.jobs.remove(&request.0);
                self.source_pool.free(request.0, &blocks)?;
                if ended != Ended::Acknowledged {
                    self.give_up(request.0);
                }
                for row in self.source.take_rows() {
                    if row.ended == Ended::Acknowledged && row.cells < u64::from(row.blocks) {
                        return Err(format!("a row of too few cells: {row:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is to be sent must have been computed.
    fn check_computed(&mut self, id: TransferId, span: Span) -> Result<(), String> {
        let found = self.jobs.iter().find(|(_, job)| job.id == id);
        let (&attempt, job) = found.ok_or("a post without a prefill")?;
        for (b, l) in span.iter() {
            let cell = *self.source_pool.cell(job.blocks[b as usize], l);
            if cell != computed(attempt, b, l) {
                return Err(format!("block {b}, layer {l} is sent and not computed"));
            }
        }
        Ok(())
    }

    /// The transport reads the blocks now.
    fn read(&mut self, epoch: u64, head: DataHead) -> Result<(), String> {
        if epoch != self.epoch || !self.up[Side::Source as usize] {
            return Ok(()); // Its transport was closed.
        }
        let Some(table) = self.source.table(head.id).map(<[_]>::to_vec) else {
            return Err(format!(
                "the blocks of {} are freed and still read",
                head.id
            ));
        };
        let mut payload = Vec::new();
        for (b, l) in head.span.iter() {
            payload.extend(self.source_pool.cell(table[b as usize], l).iter());
        }
        if self.setup.corrupt_in != u64::MAX && self.stream.below(self.setup.corrupt_in) == 0 {
            let at = self.stream.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << self.stream.below(8);
        }
        let channel = 2 + self.stream.below(self.setup.channels as u64) as usize;
        let id = head.id;
        self.deliver(channel, Event::Cells(epoch, head, payload));
        self.source.sent(Nanos(self.now), id, 1);
        Ok(())
    }

    /// The router tries a request.
    fn begin(&mut self, request: usize) {
        if self.requests[request] != Request::Waiting {
            return;
        }
        let attempt = self.attempts.len() as u64;
        let blocks = 1 + self.stream.below(4) as u32;
        let room = self.up[Side::Source as usize]
            .then(|| self.source_pool.allocate(attempt, blocks))
            .flatten();
        let Some(table) = room else {
            let delay = 500 + self.stream.below(500);
            self.after(delay, Event::Begin(request));
            return;
        };
        self.attempts.push(request);
        self.requests[request] = Request::Attempt(attempt);
        let lend = Lend {
            request: RequestId(attempt),
            tokens: u64::from(blocks) * 4 - self.stream.below(4),
            blocks: table.clone(),
            mode: self.setup.mode,
            granularity: self.setup.granularity,
        };
        let id = self.source.lend(Nanos(self.now), lend);
        // Chunks of up to two blocks, layer by layer.
        let mut plan = Vec::new();
        for block in (0..blocks).step_by(2) {
            let n = 2.min(blocks - block);
            plan.extend((0..self.setup.layers).map(|layer| Span {
                block,
                blocks: n,
                layer,
                layers: 1,
            }));
        }
        let job = Job {
            id,
            blocks: table,
            done: 0,
            plan,
        };
        self.jobs.insert(attempt, job);
        self.after(1, Event::Compute(attempt));
    }

    /// One step of a prefill.
    fn compute(&mut self, attempt: u64) {
        let Some(job) = self.jobs.get_mut(&attempt) else {
            return;
        };
        let Some(&span) = job.plan.get(job.done) else {
            self.source.prefill_ended(Nanos(self.now), job.id);
            return;
        };
        job.done += 1;
        let mut sums = Vec::new();
        for (b, l) in span.iter() {
            let cell = computed(attempt, b, l);
            *self.source_pool.cell(job.blocks[b as usize], l) = cell;
            sums.push(checksum(job.id, b, l, &cell));
        }
        self.source.seal(job.id, span, &sums);
        let delay = 1 + self.stream.below(200);
        self.after(delay, Event::Compute(attempt));
    }

    /// An attempt came to nothing on one side; the router tells the sink and tries again.
    fn give_up(&mut self, attempt: u64) {
        let request = self.attempts[attempt as usize];
        if self.requests[request] == Request::Attempt(attempt) {
            self.requests[request] = Request::Waiting;
            self.sink.cancel(RequestId(attempt));
            let delay = 100 + self.stream.below(1_000);
            self.after(delay, Event::Begin(request));
        }
    }
}
