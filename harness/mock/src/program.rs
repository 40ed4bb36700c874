//! An answer as the writes of one connection.
//!
//! All of it is rendered before the first byte is due, but for streams so long that they would
//! fill the memory: these are rendered piece by piece, when the piece before has left.

use pb_contract::Nanos;

use crate::answer::{Answer, Part, Split};
use crate::event::{End, Head};
use crate::log::WriteKind;
use crate::rest::Rest;

/// Bytes to write and when.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// All bytes, one after the other.
    pub(crate) bytes: Vec<u8>,
    /// The writes.
    pub(crate) steps: Vec<Part>,
    /// What happens after the last.
    pub(crate) end: End,
    /// The client is to see pieces: no two steps go out in one write.
    pub(crate) in_pieces: bool,
    /// What follows these steps, and whether it goes out in chunks.
    more: Option<(Box<Rest>, bool)>,
}

impl Program {
    /// Puts the next steps in place of those that have left; false when there are none.
    pub(crate) fn refill(&mut self) -> bool {
        let Some((rest, chunked)) = &mut self.more else {
            return false;
        };
        let chunked = *chunked;
        let (data, parts) = rest.next();
        let (mut bytes, mut steps) = (Vec::new(), Vec::with_capacity(parts.len() + 1));
        frame(&data, &parts, chunked, &mut bytes, &mut steps);
        if rest.is_over() {
            let at_ns = parts.last().map_or(0, |part| part.at_ns);
            if chunked {
                last_chunk(at_ns, &mut bytes, &mut steps);
            }
            self.more = None;
        }
        (self.bytes, self.steps) = (bytes, steps);
        true
    }

    /// The last of the steps that leave in one write with this one: those due at the same instant.
    /// Bytes of a recording stay as they were read.
    pub(crate) fn last_of_group(&self, first: usize) -> usize {
        let steps = &self.steps;
        let joins = |next: &Part| {
            next.at_ns == steps[first].at_ns && next.kind != WriteKind::Raw && !self.in_pieces
        };
        match steps[first].kind {
            WriteKind::Raw => first,
            _ => {
                first
                    + steps[first + 1..]
                        .iter()
                        .take_while(|next| joins(next))
                        .count()
            }
        }
    }

    /// As HTTP/1.1, or as HTTP/1.0 without chunks for a client that is older.
    pub(crate) fn http1(mut answer: Answer, keep_alive: bool, chunked: bool) -> Program {
        let rest = answer.rest.take();
        let Some(head) = &answer.head else {
            return Program {
                bytes: answer.data,
                steps: with_end(answer.parts, answer.end, answer.end_at_ns),
                end: answer.end,
                in_pieces: false,
                more: None,
            };
        };
        let chunked = answer.streamed && chunked;
        let length = (!answer.streamed).then_some(answer.data.len());
        let mut bytes = head_bytes(head, length, chunked, keep_alive);
        let head_len = bytes.len();
        let mut steps = Vec::with_capacity(answer.parts.len() + 2);
        if let Some(at_ns) = answer.head_at_ns {
            push(&bytes, &mut steps, control(at_ns, WriteKind::Head));
        }
        frame(&answer.data, &answer.parts, chunked, &mut bytes, &mut steps);
        if answer.end == End::BadChunk {
            bytes.extend_from_slice(b"zz\r\n");
            push(
                &bytes,
                &mut steps,
                control(answer.end_at_ns, WriteKind::Raw),
            );
        } else if answer.end == End::Finish && chunked && rest.is_none() {
            last_chunk(answer.end_at_ns, &mut bytes, &mut steps);
        }
        let steps = with_end(steps, answer.end, answer.end_at_ns);
        Program {
            in_pieces: answer.split.is_some(),
            steps: split(steps, answer.split, head_len),
            bytes,
            more: rest.map(|rest| (rest, chunked)),
            end: match answer.end {
                End::BadChunk => End::Close,
                End::Finish if head.broken => End::Close,
                end => end,
            },
        }
    }

    /// As the data of an HTTP/2 stream, whose framing is not ours.
    pub(crate) fn frames(answer: Answer) -> Program {
        let end = match answer.end {
            End::BadChunk => End::Reset,
            end => end,
        };
        Program {
            in_pieces: answer.split.is_some(),
            steps: split(
                with_end(answer.parts, answer.end, answer.end_at_ns),
                answer.split,
                0,
            ),
            bytes: answer.data,
            end,
            more: answer.rest.map(|rest| (rest, false)),
        }
    }
}

/// Adds a step that ends with the bytes so far.
fn push(bytes: &[u8], steps: &mut Vec<Part>, part: Part) {
    steps.push(Part {
        end: bytes.len(),
        ..part
    });
}

/// Adds the parts of a body.
fn frame(data: &[u8], parts: &[Part], chunked: bool, bytes: &mut Vec<u8>, steps: &mut Vec<Part>) {
    let mut from = 0;
    for part in parts {
        let body = &data[from..part.end];
        from = part.end;
        if chunked {
            bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(body);
        if chunked {
            bytes.extend_from_slice(b"\r\n");
        }
        push(bytes, steps, *part);
    }
}

/// Adds the chunk that ends a body.
fn last_chunk(at_ns: u64, bytes: &mut Vec<u8>, steps: &mut Vec<Part>) {
    bytes.extend_from_slice(b"0\r\n\r\n");
    push(bytes, steps, control(at_ns, WriteKind::End));
}

fn control(at_ns: u64, kind: WriteKind) -> Part {
    Part {
        at_ns,
        end: 0,
        tokens: 0,
        kind,
    }
}

/// Adds a step without bytes where the end comes after the last write.
fn with_end(mut steps: Vec<Part>, end: End, at_ns: u64) -> Vec<Part> {
    let (last_ns, last_end) = steps.last().map_or((0, 0), |last| (last.at_ns, last.end));
    if steps.is_empty() || end != End::Finish && at_ns > last_ns {
        steps.push(Part {
            end: last_end,
            ..control(at_ns, WriteKind::End)
        });
    }
    steps
}

fn head_bytes(head: &Head, length: Option<usize>, chunked: bool, keep_alive: bool) -> Vec<u8> {
    if head.broken {
        return b"HTTQ/9 two hundred\r\n\r\n".to_vec();
    }
    let mut text = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\n",
        head.status,
        reason(head.status),
        head.content_type
    );
    for (name, value) in &head.fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length {
        text.push_str(&format!("content-length: {length}\r\n"));
    }
    if chunked {
        text.push_str("transfer-encoding: chunked\r\n");
    }
    if !keep_alive {
        text.push_str("connection: close\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Mock",
    }
}

/// Cuts the bytes into more writes. A piece is due a gap after the one before it, or when its
/// part is due, whichever is later; tokens and kind stay with the last piece of a part.
fn split(steps: Vec<Part>, how: Option<Split>, head_len: usize) -> Vec<Part> {
    let Some(how) = how else {
        return steps;
    };
    let (cuts, gap): (Box<dyn Fn(usize) -> usize>, Nanos) = match how {
        Split::Every(bytes, gap) => (Box::new(move |from| from + bytes), gap),
        Split::At(bytes, gap) => {
            let cut = head_len + bytes;
            let next = move |from| if from < cut { cut } else { usize::MAX };
            (Box::new(next), gap)
        }
    };
    let mut pieces = Vec::new();
    let (mut from, mut earliest_ns) = (0, 0);
    for step in steps {
        loop {
            let end = cuts(from).min(step.end);
            let at_ns = step.at_ns.max(earliest_ns);
            let last = end == step.end;
            pieces.push(Part {
                at_ns,
                end,
                tokens: if last { step.tokens } else { 0 },
                kind: if last { step.kind } else { WriteKind::Piece },
            });
            earliest_ns = match how {
                Split::Every(..) => at_ns + gap.0,
                Split::At(bytes, _) if end == head_len + bytes => at_ns + gap.0,
                Split::At(..) => at_ns,
            };
            from = end;
            if last {
                break;
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Reply;

    fn streamed(end: End) -> Answer {
        let mut answer = Answer::reply(Reply::text(200, "t", "abcde".into()), 5);
        answer.streamed = true;
        answer.head_at_ns = Some(1);
        answer.parts.insert(
            0,
            Part {
                end: 2,
                ..answer.parts[0]
            },
        );
        answer.end = end;
        answer.end_at_ns = 9;
        answer
    }

    fn writes(program: &Program) -> Vec<(u64, String)> {
        let mut from = 0;
        let text = |step: &Part| {
            let bytes = &program.bytes[from..step.end];
            from = step.end;
            (step.at_ns, String::from_utf8(bytes.to_vec()).unwrap())
        };
        program.steps.iter().map(text).collect()
    }

    #[test]
    fn a_stream_is_chunked_and_ends_with_the_empty_chunk() {
        let program = Program::http1(streamed(End::Finish), true, true);
        let writes = writes(&program);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: t\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(writes[0], (1, head.into()));
        assert_eq!(writes[1], (5, "2\r\nab\r\n".into()));
        assert_eq!(writes[2], (5, "3\r\ncde\r\n".into()));
        assert_eq!(writes[3], (9, "0\r\n\r\n".into()));
        assert_eq!(writes.len(), 4);
    }

    #[test]
    fn an_end_that_is_none_comes_at_its_time() {
        for end in [End::Close, End::Reset, End::Stall] {
            let program = Program::http1(streamed(end), true, true);
            assert_eq!(writes(&program)[3], (9, String::new()));
            assert_eq!(program.end, end);
        }
        let program = Program::http1(streamed(End::BadChunk), true, true);
        assert_eq!(writes(&program)[3], (9, "zz\r\n".into()));
        assert_eq!(program.end, End::Close);
        let frames = Program::frames(streamed(End::Finish));
        assert_eq!(writes(&frames), [(5, "ab".into()), (5, "cde".into())]);
    }

    #[test]
    fn what_is_due_together_is_one_write_unless_pieces_are_asked_for() {
        let program = Program::http1(streamed(End::Finish), true, true);
        // The head at 1, two parts at 5, the end at 9.
        let groups: Vec<usize> = (0..4).map(|step| program.last_of_group(step)).collect();
        assert_eq!(groups, [0, 2, 2, 3]);
        let mut answer = streamed(End::Finish);
        answer.split = Some(Split::At(1_000, Nanos::ZERO));
        let program = Program::http1(answer, true, true);
        assert_eq!(program.last_of_group(1), 1);
        let mut answer = streamed(End::Finish);
        answer
            .parts
            .iter_mut()
            .for_each(|part| part.kind = WriteKind::Raw);
        assert_eq!(Program::http1(answer, true, true).last_of_group(1), 1);
    }

    #[test]
    fn pieces_hold_the_same_bytes_and_keep_their_distance() {
        let whole = Program::http1(streamed(End::Finish), true, true);
        for bytes in 1..12 {
            let mut answer = streamed(End::Finish);
            answer.split = Some(Split::Every(bytes, Nanos(3)));
            let program = Program::http1(answer, true, true);
            assert_eq!(program.bytes, whole.bytes);
            let mut from = 0;
            for step in &program.steps {
                assert!(step.end - from <= bytes && step.end > from);
                from = step.end;
            }
            assert_eq!(from, whole.bytes.len());
            let apart = program
                .steps
                .windows(2)
                .all(|w| w[1].at_ns >= w[0].at_ns + 3);
            assert!(apart, "{:?}", program.steps);
        }
    }

    #[test]
    fn a_cut_is_at_its_byte_of_the_body() {
        let mut answer = streamed(End::Finish);
        answer.split = Some(Split::At(4, Nanos(100)));
        let program = Program::http1(answer, true, true);
        let texts: Vec<(u64, String)> = writes(&program);
        assert_eq!(texts[1], (5, "2\r\na".into()));
        assert_eq!(texts[2], (105, "b\r\n".into()));
        assert_eq!(texts[3], (105, "3\r\ncde\r\n".into()));
    }
}
