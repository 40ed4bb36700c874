//! The receiving side.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use pb_contract::Nanos;
use pb_transfer::{
    Allow, Defect, HostMemory, Incoming, LocalTransport, Memory, MooncakeListener, NixlListener,
    ShmListener, SinkAgent, SinkEvent, SinkOptions, TcpTransportListener, Transport, scatter,
};

use crate::Outcome;
use crate::arms::{Arm, PATIENCE, SHM, mooncake, nixl, wall};
use crate::job::{Job, MEMORY_BYTES, Payload, WARM_UP_BYTES, peer};

/// Where the source connects to.
pub(crate) enum Listener {
    Local(Receiver<LocalTransport>),
    Shm(ShmListener),
    Tcp(TcpTransportListener),
    Nixl(NixlListener),
    Mooncake(MooncakeListener),
    Socket(TcpListener),
}

impl Listener {
    fn accept(&mut self) -> Outcome<Box<dyn Transport>> {
        Ok(match self {
            Listener::Local(arriving) => Box::new(arriving.recv()?),
            Listener::Shm(listener) => Box::new(listener.accept(PATIENCE)?.ok_or("nobody")?),
            Listener::Tcp(listener) => Box::new(listener.accept(PATIENCE)?.ok_or("nobody")?),
            Listener::Nixl(listener) => Box::new(listener.accept(PATIENCE)?.ok_or("nobody")?),
            Listener::Mooncake(listener) => Box::new(listener.accept(PATIENCE)?.ok_or("nobody")?),
            Listener::Socket(_) => return Err("a socket is no transport".into()),
        })
    }
}

/// The other process. Says where it listens, and does jobs.
pub(crate) fn child(arm: Arm) -> Outcome<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener = match arm {
        Arm::Shm => {
            let path = PathBuf::from(std::env::args().nth(3).ok_or("no path")?);
            Listener::Shm(ShmListener::bind(&path, SHM, wall())?)
        }
        Arm::Tcp(_) => Listener::Tcp(TcpTransportListener::bind(any, PATIENCE, wall())?),
        Arm::Mooncake => Listener::Mooncake(MooncakeListener::bind(any, mooncake()?, wall())?),
        Arm::Nixl => Listener::Nixl(NixlListener::bind(any, nixl(), wall())?),
        _ => Listener::Socket(TcpListener::bind(any)?),
    };
    match &listener {
        Listener::Tcp(listener) => println!("{}", listener.address()?),
        Listener::Nixl(listener) => println!("{}", listener.address()?),
        Listener::Mooncake(listener) => println!("{}", listener.address()?),
        Listener::Socket(listener) => println!("{}", listener.local_addr()?),
        _ => println!("-"),
    }
    let input = BufReader::new(std::io::stdin());
    serve(&mut listener, input, std::io::stdout())
}

/// Does jobs until there are no more.
pub(crate) fn serve(
    listener: &mut Listener,
    input: impl BufRead,
    mut output: impl Write,
) -> Outcome<()> {
    let memory = Arc::new(HostMemory::new(MEMORY_BYTES));
    let mut bytes = Vec::new();
    for line in input.lines() {
        let job = Job::parse(&line?)?;
        let mut say = |what: &str| -> Outcome<()> {
            writeln!(output, "{what}")?;
            Ok(output.flush()?)
        };
        match (&mut *listener, job.verified) {
            (Listener::Socket(listener), _) => {
                bytes.resize(MEMORY_BYTES, 0);
                plain(listener, job.payload, &mut bytes, &mut say)?;
            }
            (listener, false) => frames(listener.accept()?, job.payload, &memory, &mut say)?,
            (listener, true) => transfers(listener.accept()?, job.payload, &memory)?,
        }
    }
    Ok(())
}

type Say<'a> = &'a mut dyn FnMut(&str) -> Outcome<()>;

/// Reads a plain socket to where the payload belongs.
fn plain(listener: &TcpListener, payload: Payload, to: &mut [u8], say: Say<'_>) -> Outcome<()> {
    let (mut stream, _) = listener.accept()?;
    for (bytes, what) in [(WARM_UP_BYTES, "warm"), (payload.bytes(), "done")] {
        stream.read_exact(&mut to[..bytes])?;
        say(what)?;
    }
    Ok(())
}

/// Takes frames and puts their cells where they belong.
fn frames(
    mut transport: Box<dyn Transport>,
    payload: Payload,
    memory: &Arc<HostMemory>,
    say: Say<'_>,
) -> Outcome<()> {
    let (region, table) = (payload.region(), payload.table());
    let segment = 0..region.segment_bytes() as usize;
    let whole = std::slice::from_ref(&segment);
    let warm_up = payload.part_bytes(WARM_UP_BYTES);
    for (bytes, what) in [(warm_up, "warm"), (payload.bytes(), "done")] {
        let mut left = bytes;
        while left > 0 {
            if let Some(Incoming::Data(head, cells)) = transport.poll(PATIENCE)? {
                let to = region.descriptors(&table, head.span, whole);
                scatter(memory.as_ref(), &to, &cells)?;
                left = left.saturating_sub(cells.len());
            }
        }
        say(what)?;
    }
    // The source closes when it has been told of everything that it sent.
    while transport.poll(PATIENCE).is_ok() {}
    Ok(())
}

/// Two whole transfers, the first of them to warm up.
fn transfers(
    transport: Box<dyn Transport>,
    payload: Payload,
    memory: &Arc<HostMemory>,
) -> Outcome<()> {
    let Payload::Kv(kv, _) = payload else {
        return Err("messages are not verified".into());
    };
    let options = SinkOptions {
        allow: Allow::default(),
        blocks: kv.blocks,
        transfers: 1,
        window_cells: 4096,
        stall: Nanos::from_secs(60),
        retries: 0,
        handshake: PATIENCE,
        defect: Defect::None,
    };
    let place = (Arc::clone(memory) as Arc<dyn Memory>, payload.region());
    let mut agent = SinkAgent::connect(transport, &peer(&kv), place, wall(), &options)?;
    let table = payload.table();
    loop {
        for event in agent.step(Duration::from_secs(1)) {
            match event {
                SinkEvent::Reserve(offer) => {
                    agent.reserved(offer.id, table[..offer.blocks as usize].to_vec());
                }
                SinkEvent::Failed { cause, .. } => return Err(cause.name().into()),
                // The source has closed the connection.
                SinkEvent::Down(_) => return Ok(()),
                _ => {}
            }
        }
    }
}
