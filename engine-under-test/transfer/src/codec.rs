//! Bodies of messages. Every length is checked against the bytes that are there before anything is
//! allocated for it.

use pb_contract::{KvDtype, Numerics, RequestId};
use pb_kv::{CacheIdentity, EngineFormat, KvFormat, Positional};

use crate::cells::Span;
use crate::frame::MAX_FRAME_CELLS;
use crate::handshake::Peer;
use crate::message::{Cause, DataHead, Granularity, Message, Mode, Offer, TransferId};

type Read<T> = Result<T, &'static str>;

const SHORT: &str = "ends too early";
/// Longest string, bytes.
const MAX_TEXT_BYTES: usize = 4096;

const DTYPES: [KvDtype; 7] = [
    KvDtype::F64,
    KvDtype::F32,
    KvDtype::Bf16,
    KvDtype::F16,
    KvDtype::Fp8E4m3,
    KvDtype::Fp8E5m2,
    KvDtype::Int8,
];
const NUMERICS: [Numerics; 3] = [Numerics::F64, Numerics::Exact, Numerics::Fast];
const MODES: [Mode; 2] = [Mode::Pull, Mode::Push];
const GRANULARITIES: [Granularity; 3] = [Granularity::Bulk, Granularity::Chunk, Granularity::Layer];

/// Reads a body from its start.
pub(crate) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    fn take(&mut self, n: usize) -> Read<&'a [u8]> {
        let (now, later) = self.0.split_at_checked(n).ok_or(SHORT)?;
        self.0 = later;
        Ok(now)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (now, later) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = later;
        Ok(*now)
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn size(&mut self) -> Read<usize> {
        usize::try_from(self.u64()?).map_err(|_| "a size beyond this machine's")
    }

    /// A count of items of at least `item_bytes` each, all of which must still be there.
    fn count(&mut self, item_bytes: usize) -> Read<usize> {
        let n = self.u32()? as usize;
        if n.checked_mul(item_bytes)
            .is_none_or(|bytes| bytes > self.0.len())
        {
            return Err(SHORT);
        }
        Ok(n)
    }

    fn text(&mut self) -> Read<String> {
        let n = self.count(1)?;
        if n > MAX_TEXT_BYTES {
            return Err("a text longer than 4096 bytes");
        }
        let text = std::str::from_utf8(self.take(n)?);
        Ok(text.map_err(|_| "a text that is not UTF-8")?.to_owned())
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Read<T> {
        let [code] = self.array()?;
        all.get(usize::from(code)).copied().ok_or("an unknown code")
    }

    fn id(&mut self) -> Read<TransferId> {
        self.u64().map(TransferId)
    }

    fn span(&mut self) -> Read<Span> {
        Ok(Span {
            block: self.u32()?,
            blocks: self.u32()?,
            layer: self.u32()?,
            layers: self.u32()?,
        })
    }

    fn head(&mut self) -> Read<DataHead> {
        let (id, span) = (self.id()?, self.span()?);
        let n = self.count(size_of::<u64>())?;
        if span.cells() != n as u64 || n == 0 || n as u64 > MAX_FRAME_CELLS {
            return Err("not one checksum for each cell, or too many cells");
        }
        let sums = (0..n).map(|_| self.u64()).collect::<Read<_>>()?;
        Ok(DataHead { id, span, sums })
    }

    fn positional(&mut self) -> Read<Positional> {
        let rope_theta = f64::from_bits(self.u64()?);
        let n = self.count(12)?;
        let mut rope_scaling = Vec::with_capacity(n);
        for _ in 0..n {
            rope_scaling.push((self.text()?, f64::from_bits(self.u64()?)));
        }
        Ok(Positional {
            rope_theta,
            rope_scaling,
            offset: self.u64()? as i64,
            max_position: self.size()?,
            sliding_window: match self.one_of(&[false, true])? {
                true => Some(self.size()?),
                false => None,
            },
        })
    }

    fn peer(&mut self) -> Read<Peer> {
        let weights = self.array()?;
        let positional = self.positional()?;
        let dtype = self.one_of(&DTYPES)?;
        let n = self.count(size_of::<f32>())?;
        let scales = (0..n).map(|_| self.u32().map(f32::from_bits));
        let scales = scales.collect::<Read<_>>()?;
        let kv = KvFormat {
            dtype,
            scales,
            layout: self.text()?,
        };
        let engine = EngineFormat {
            numerics: self.one_of(&NUMERICS)?,
            block_size: self.size()?,
            revision: self.text()?,
        };
        Ok(Peer {
            identity: CacheIdentity {
                weights,
                positional,
                kv,
                engine,
            },
            layers: self.size()?,
            kv_heads: self.size()?,
            d_head: self.size()?,
            tp_degree: self.size()?,
            tp_rank: self.size()?,
        })
    }

    fn offer(&mut self) -> Read<Offer> {
        Ok(Offer {
            id: self.id()?,
            request: RequestId(self.u64()?),
            tokens: self.u64()?,
            blocks: self.u32()?,
            mode: self.one_of(&MODES)?,
            granularity: self.one_of(&GRANULARITIES)?,
            lease_ns: self.u64()?,
        })
    }
}

/// The message of a kind.
pub(crate) fn decode(kind: u8, body: &[u8]) -> Read<Message> {
    let mut c = Cursor::new(body);
    let message = match kind {
        1 => Message::Join {
            session: c.u64()?,
            index: c.u32()?,
            of: c.u32()?,
        },
        2 => Message::Hello(Box::new(c.peer()?)),
        3 => Message::Refuse { reason: c.text()? },
        4 => Message::Offer(c.offer()?),
        5 => Message::Want {
            id: c.id()?,
            span: c.span()?,
        },
        6 => Message::Data(c.head()?),
        7 => Message::DataInSlot {
            slot: c.u32()?,
            bytes: c.u32()?,
            head: c.head()?,
        },
        8 => Message::Credit { slot: c.u32()? },
        9 => Message::Renew { id: c.id()? },
        10 => Message::Ack {
            id: c.id()?,
            cells: c.u64()?,
        },
        11 => Message::Abort {
            id: c.id()?,
            cause: c.one_of(&Cause::ALL)?,
        },
        12 => Message::Claim {
            ticket: c.u64()?,
            digest: c.array()?,
            early: c.one_of(&[false, true])?,
        },
        13 => Message::Decline {
            ticket: c.u64()?,
            cause: c.one_of(&Cause::ALL)?,
        },
        _ => return Err("an unknown kind"),
    };
    if !c.0.is_empty() {
        return Err("longer than its content");
    }
    Ok(message)
}

/// Appends bodies.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u32(&mut self, x: u32) {
        self.0.extend(x.to_le_bytes());
    }

    fn u64(&mut self, x: u64) {
        self.0.extend(x.to_le_bytes());
    }

    /// Cut at the bound: a text is for people.
    fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
    }

    fn claim(&mut self, ticket: u64, digest: &[u8; 32], early: bool) {
        self.u64(ticket);
        self.0.extend(digest);
        self.0.push(u8::from(early));
    }

    fn code<T: PartialEq>(&mut self, all: &[T], x: &T) {
        let code = all.iter().position(|a| a == x);
        // OK because each list has all variants, which the tests walk over.
        self.0.push(code.expect("a variant of the list") as u8);
    }

    fn span(&mut self, span: Span) {
        for n in [span.block, span.blocks, span.layer, span.layers] {
            self.u32(n);
        }
    }

    fn head(&mut self, head: &DataHead) {
        self.u64(head.id.0);
        self.span(head.span);
        self.u32(head.sums.len() as u32);
        head.sums.iter().for_each(|sum| self.u64(*sum));
    }

    fn peer(&mut self, peer: &Peer) {
        let CacheIdentity {
            weights,
            positional,
            kv,
            engine,
        } = &peer.identity;
        self.0.extend(weights);
        self.u64(positional.rope_theta.to_bits());
        self.u32(positional.rope_scaling.len() as u32);
        for (name, value) in &positional.rope_scaling {
            self.text(name);
            self.u64(value.to_bits());
        }
        self.u64(positional.offset as u64);
        self.u64(positional.max_position as u64);
        self.0.push(u8::from(positional.sliding_window.is_some()));
        if let Some(window) = positional.sliding_window {
            self.u64(window as u64);
        }
        self.code(&DTYPES, &kv.dtype);
        self.u32(kv.scales.len() as u32);
        kv.scales.iter().for_each(|s| self.u32(s.to_bits()));
        self.text(&kv.layout);
        self.code(&NUMERICS, &engine.numerics);
        self.u64(engine.block_size as u64);
        self.text(&engine.revision);
        for n in [
            peer.layers,
            peer.kv_heads,
            peer.d_head,
            peer.tp_degree,
            peer.tp_rank,
        ] {
            self.u64(n as u64);
        }
    }

    fn offer(&mut self, offer: &Offer) {
        self.u64(offer.id.0);
        self.u64(offer.request.0);
        self.u64(offer.tokens);
        self.u32(offer.blocks);
        self.code(&MODES, &offer.mode);
        self.code(&GRANULARITIES, &offer.granularity);
        self.u64(offer.lease_ns);
    }
}

/// Appends the body of a message and returns its kind.
pub(crate) fn encode(message: &Message, out: &mut Vec<u8>) -> u8 {
    let mut w = Writer(out);
    match message {
        Message::Join { session, index, of } => {
            w.u64(*session);
            w.u32(*index);
            w.u32(*of);
            1
        }
        Message::Hello(peer) => {
            w.peer(peer);
            2
        }
        Message::Refuse { reason } => {
            w.text(reason);
            3
        }
        Message::Offer(offer) => {
            w.offer(offer);
            4
        }
        Message::Want { id, span } => {
            w.u64(id.0);
            w.span(*span);
            5
        }
        Message::Data(head) => {
            w.head(head);
            6
        }
        Message::DataInSlot { slot, bytes, head } => {
            w.u32(*slot);
            w.u32(*bytes);
            w.head(head);
            7
        }
        Message::Credit { slot } => {
            w.u32(*slot);
            8
        }
        Message::Renew { id } => {
            w.u64(id.0);
            9
        }
        Message::Ack { id, cells } => {
            w.u64(id.0);
            w.u64(*cells);
            10
        }
        Message::Abort { id, cause } => {
            w.u64(id.0);
            w.code(&Cause::ALL, cause);
            11
        }
        Message::Claim {
            ticket,
            digest,
            early,
        } => {
            w.claim(*ticket, digest, *early);
            12
        }
        Message::Decline { ticket, cause } => {
            w.u64(*ticket);
            w.code(&Cause::ALL, cause);
            13
        }
    }
}
