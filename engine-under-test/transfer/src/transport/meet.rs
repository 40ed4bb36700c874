//! How two ends meet whose slots are read from afar: a TCP connection, and on it what each side has
//! to tell before the other can reach its slots.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use pb_contract::Nanos;

use super::TransportError;
use super::listener::readable;
use super::slots::Shape;

/// Longest metadata that a peer is believed to have.
const MAX_METADATA_BYTES: u64 = 1 << 20;
const MAGIC_BYTES: usize = 4;
/// Magic, slots, address of the first, length of the metadata.
const HELLO_BYTES: usize = MAGIC_BYTES + Shape::BYTES + 8 + 4;

/// What one side tells the other.
pub(super) struct Place {
    pub(super) shape: Shape,
    /// Address of the first slot, in whatever process has it.
    pub(super) base: u64,
    /// What the library in use needs to reach it.
    pub(super) metadata: Vec<u8>,
}

/// Tells the peer of this side's slots and learns of its. Both sides must begin with the same
/// `magic`, and have slots of the same length. `patience` is how long the peer may be silent.
pub(super) fn exchange(
    stream: &mut TcpStream,
    magic: [u8; MAGIC_BYTES],
    mine: &Place,
    patience: Duration,
) -> Result<Place, TransportError> {
    let set_up = |e| TransportError::io("exchanging metadata", e);
    stream.set_nodelay(true).map_err(set_up)?;
    stream.set_read_timeout(Some(patience)).map_err(set_up)?;
    stream.set_write_timeout(Some(patience)).map_err(set_up)?;
    let mut hello = Vec::with_capacity(HELLO_BYTES + mine.metadata.len());
    hello.extend(magic);
    hello.extend(mine.shape.encode());
    hello.extend(mine.base.to_le_bytes());
    hello.extend((mine.metadata.len() as u32).to_le_bytes());
    hello.extend(&mine.metadata);
    let told = stream.write_all(&hello);
    told.map_err(|e| TransportError::io("telling metadata", e))?;
    let theirs = learn(stream, magic, mine.shape)?;
    stream.set_read_timeout(None).map_err(set_up)?;
    Ok(theirs)
}

/// Waits until whoever has connected begins as a peer does, and leaves what it says to be read. A
/// stranger costs a thread, and none of the memory that a peer gets.
pub(super) fn greeted(
    stream: &TcpStream,
    magic: [u8; MAGIC_BYTES],
    patience: Duration,
) -> Result<(), TransportError> {
    let failed = |e| TransportError::io("waiting for a peer's first word", e);
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    let mut said = [0; MAGIC_BYTES];
    let heard = stream.peek(&mut said).map_err(failed)?;
    match heard > 0 && magic.starts_with(&said[..heard]) {
        true => Ok(()),
        false => Err(no_peer(&said[..heard], magic)),
    }
}

fn no_peer(said: &[u8], magic: [u8; MAGIC_BYTES]) -> TransportError {
    let expected = String::from_utf8_lossy(&magic);
    TransportError::Setup {
        problem: format!("it begins with {said:02x?}, not {expected}"),
    }
}

fn learn(
    stream: &mut TcpStream,
    magic: [u8; MAGIC_BYTES],
    mine: Shape,
) -> Result<Place, TransportError> {
    let failed = |e| TransportError::io("learning the peer's metadata", e);
    let setup = |problem: String| TransportError::Setup { problem };
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).map_err(failed)?;
    let (said, rest) = hello.split_at(MAGIC_BYTES);
    if said != magic {
        return Err(no_peer(said, magic));
    }
    let (said, rest) = rest.split_at(Shape::BYTES);
    let (base, length) = rest.split_at(8);
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (base, length) = (number(base), number(length));
    let mut shape = [0; Shape::BYTES];
    shape.copy_from_slice(said);
    // The library checks reads against what the peer has registered; that is not asked for here.
    let shape = Shape::decode(shape, u64::MAX)?;
    if shape.slot_bytes != mine.slot_bytes {
        let (theirs, mine) = (shape.slot_bytes, mine.slot_bytes);
        return Err(setup(format!(
            "its slots have {theirs} bytes, these {mine}"
        )));
    }
    if length > MAX_METADATA_BYTES || base.checked_add(shape.bytes()).is_none() {
        return Err(setup(format!(
            "{length} bytes of metadata for slots at {base:#x}"
        )));
    }
    let mut metadata = vec![0; length as usize];
    stream.read_exact(&mut metadata).map_err(failed)?;
    Ok(Place {
        shape,
        base,
        metadata,
    })
}

/// Connects to a listener.
pub(super) fn connect(to: SocketAddr, patience: Duration) -> Result<TcpStream, TransportError> {
    let stream = TcpStream::connect_timeout(&to, patience);
    stream.map_err(|e| TransportError::io(format!("connecting to {to}"), e))
}

/// Where peers connect to.
pub(super) struct Door(TcpListener);

impl Door {
    pub(super) fn bind(at: SocketAddr) -> Result<Door, TransportError> {
        let failed = |e| TransportError::io(format!("listening on {at}"), e);
        let listener = TcpListener::bind(at).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Door(listener))
    }

    pub(super) fn address(&self) -> Result<SocketAddr, TransportError> {
        let address = self.0.local_addr();
        address.map_err(|e| TransportError::io("asking for the address", e))
    }

    /// Whoever connects next; none when there is nobody within `timeout`.
    pub(super) fn accept(&self, timeout: Duration) -> Result<Option<TcpStream>, TransportError> {
        let failed = |e| TransportError::io("accepting a connection", e);
        if !readable(&self.0, Nanos(timeout.as_nanos() as u64)).map_err(failed)? {
            return Ok(None);
        }
        let (stream, _) = self.0.accept().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        Ok(Some(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 4] = *b"PBXY";

    /// What is made of somebody who says `said` and then stays or goes.
    fn made_of(said: &[u8], stays: bool) -> Result<(), TransportError> {
        let door = Door::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let mut client = TcpStream::connect(door.address().unwrap()).unwrap();
        let stream = door.accept(Duration::from_secs(60)).unwrap().unwrap();
        client.write_all(said).unwrap();
        let client = stays.then_some(client);
        let patience = match said.is_empty() {
            true => Duration::from_millis(20),
            false => Duration::from_secs(60),
        };
        let made = greeted(&stream, MAGIC, patience);
        if made.is_ok() {
            let mut again = vec![0; said.len()];
            (&stream).read_exact(&mut again).unwrap();
            assert_eq!(again, said, "what was said is still there to be read");
        }
        drop(client);
        made
    }

    #[test]
    fn who_does_not_begin_as_a_peer_is_none() {
        for said in [&b"P"[..], b"PBXY", b"PBXY and more"] {
            made_of(said, true).unwrap();
        }
        for (said, stays) in [
            (&b""[..], true),
            (b"", false),
            (b"GET /", true),
            (b"PBXZ", true),
        ] {
            assert!(made_of(said, stays).is_err(), "{said:?}");
        }
    }
}
