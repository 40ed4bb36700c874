//! The sending side.

use std::io::Write;
use std::sync::Arc;

use pb_contract::{Clock, Nanos, RequestId, WallClock};
use pb_transfer::{
    Allow, DataHead, Defect, Descriptor, Ended, Granularity, HostMemory, Incoming, Lend, Memory,
    MemoryId, Mode, SourceAgent, SourceEvent, SourceOptions, Span, TransferId, Transport,
};

use crate::Outcome;
use crate::arms::{Arm, Child, PATIENCE, wall};
use crate::job::{Job, MEMORY_BYTES, Payload, WARM_UP_BYTES, peer};

/// What is sent, and where `memcpy` puts it.
pub(crate) struct Source {
    memory: Arc<HostMemory>,
    bytes: Vec<u8>,
    copy: Vec<u8>,
}

impl Source {
    pub(crate) fn new() -> Source {
        // Every page is there before it is timed.
        let bytes: Vec<u8> = (0..MEMORY_BYTES).map(|i| ((i * 31) >> 7) as u8).collect();
        let memory = HostMemory::new(MEMORY_BYTES);
        memory.write(0, &bytes).expect("memory of that length");
        Source {
            memory: Arc::new(memory),
            copy: bytes.clone(),
            bytes,
        }
    }

    /// Does a job once and returns how long it took, ns.
    pub(crate) fn run(&mut self, child: &mut Child, job: Job) -> Outcome<Nanos> {
        match (child.arm(), job.verified) {
            (Arm::Memcpy, _) => Ok(self.memcpy(job.payload)),
            (Arm::Socket, _) => self.plain(child, job),
            (_, false) => self.frames(child, job),
            (_, true) => self.transfers(child, job),
        }
    }

    fn memcpy(&mut self, payload: Payload) -> Nanos {
        let start = WallClock.now();
        for frame in payload.part(payload.bytes()) {
            for range in frame.1 {
                let range = range.at as usize..(range.at + range.bytes) as usize;
                self.copy[range.clone()].copy_from_slice(&self.bytes[range]);
            }
        }
        std::hint::black_box(&self.copy);
        WallClock.now() - start
    }

    fn plain(&self, child: &mut Child, job: Job) -> Outcome<Nanos> {
        child.tell(&job)?;
        let mut stream = child.plain()?;
        stream.set_nodelay(true)?;
        let piece = match job.payload {
            Payload::Messages(bytes) => bytes,
            Payload::Kv(..) => MEMORY_BYTES,
        };
        let mut start = Nanos::ZERO;
        for bytes in [WARM_UP_BYTES, job.payload.bytes()] {
            start = WallClock.now();
            for piece in self.bytes[..bytes].chunks(piece) {
                stream.write_all(piece)?;
            }
            child.line()?;
        }
        Ok(WallClock.now() - start)
    }

    fn frames(&self, child: &mut Child, job: Job) -> Outcome<Nanos> {
        child.tell(&job)?;
        let mut transport = child.connect()?;
        let memory = transport.register(Arc::clone(&self.memory) as Arc<dyn Memory>)?;
        let mut start = Nanos::ZERO;
        for bytes in [WARM_UP_BYTES, job.payload.bytes()] {
            let frames = job.payload.part(bytes);
            start = WallClock.now();
            post_all(transport.as_mut(), memory, frames)?;
            child.line()?;
        }
        Ok(WallClock.now() - start)
    }

    fn transfers(&self, child: &mut Child, job: Job) -> Outcome<Nanos> {
        let Payload::Kv(kv, _) = job.payload else {
            return Err("messages are not verified".into());
        };
        child.tell(&job)?;
        let options = SourceOptions {
            allow: Allow::default(),
            lease: Nanos::from_secs(60),
            first_id: 1,
            handshake: PATIENCE,
            defect: Defect::None,
        };
        let place = (
            Arc::clone(&self.memory) as Arc<dyn Memory>,
            job.payload.region(),
        );
        let transport = child.connect()?;
        let mut agent = SourceAgent::connect(transport, &peer(&kv), place, wall(), &options)?;
        let mut start = Nanos::ZERO;
        for blocks in [kv.blocks / 16, kv.blocks] {
            let id = agent.lend(Lend {
                request: RequestId(1),
                tokens: 16 * u64::from(blocks),
                blocks: job.payload.table()[..blocks as usize].to_vec(),
                mode: Mode::Push,
                granularity: Granularity::Bulk,
            });
            agent.seal(id, Span::whole(blocks, kv.layers))?;
            start = WallClock.now();
            until_acknowledged(&mut agent)?;
        }
        Ok(WallClock.now() - start)
    }
}

fn until_acknowledged(agent: &mut SourceAgent) -> Outcome<()> {
    loop {
        if let Some(event) = agent.step(PATIENCE).into_iter().next() {
            return match event {
                SourceEvent::Freed {
                    ended: Ended::Acknowledged,
                    ..
                } => Ok(()),
                other => Err(format!("{other:?}").into()),
            };
        }
    }
}

/// Posts all frames and waits until the transport is done with them.
fn post_all(
    transport: &mut dyn Transport,
    memory: MemoryId,
    frames: Vec<(Span, Vec<Descriptor>)>,
) -> Outcome<()> {
    let mut in_flight = 0;
    for (span, ranges) in frames {
        while in_flight == transport.frames_in_flight() {
            wait_for_one(transport, &mut in_flight)?;
        }
        let head = DataHead {
            id: TransferId(1),
            span,
            sums: vec![0; span.cells() as usize],
        };
        transport.post(head, memory, &ranges)?;
        in_flight += 1;
    }
    while in_flight > 0 {
        wait_for_one(transport, &mut in_flight)?;
    }
    Ok(())
}

fn wait_for_one(transport: &mut dyn Transport, in_flight: &mut u32) -> Outcome<()> {
    if let Some(Incoming::Sent { .. }) = transport.poll(PATIENCE)? {
        *in_flight -= 1;
    }
    Ok(())
}
