//! One connection: HTTP/1.1 by hand, so that every byte goes out in the write that was planned.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use pb_contract::Nanos;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::answer::Answer;
use crate::arrival;
use crate::ask::Reply;
use crate::event::End;
use crate::http1::{self, Chunks, Refusal, RequestHead};
use crate::log::Ending;
use crate::program::Program;
use crate::routes::{Route, route};
use crate::state::{Arrival, Job, Shared};
use crate::wheel::{Outcome, Sink, Wheel};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

/// Bytes of further requests taken in while one is served.
const AHEAD_BYTES: usize = 1024 * 1024;

/// What one thread serves its connections with.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) wheel: Wheel,
    /// Turns true when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
    /// Where reads land first: one for all connections, so that an idle one costs no memory.
    scratch: RefCell<Vec<u8>>,
}

impl Worker {
    /// A worker without streams.
    pub(crate) fn new(shared: Arc<Shared>, stop: watch::Receiver<bool>) -> Worker {
        Worker {
            shared,
            wheel: Wheel::default(),
            stop,
            scratch: RefCell::new(vec![0; READ_BYTES]),
        }
    }

    /// Returns when the server stops.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // A sender that is gone means the same.
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// Why a stream is over.
enum Cause {
    Program(Outcome),
    ClientGone,
    Stopped,
}

/// Milliseconds that the rest of an HTTP/2 preface may take.
const PREFACE_TRIES: u32 = 200;

struct Connection {
    worker: Rc<Worker>,
    socket: Rc<TcpStream>,
    buffer: Vec<u8>,
    /// When the first byte in the buffer was read.
    first_byte: Nanos,
}

/// Whether a connection begins as HTTP/2 does, without taking the bytes.
pub(crate) async fn is_http2(socket: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut bytes = [0u8; PREFACE.len()];
    for _ in 0..PREFACE_TRIES {
        let n = socket.peek(&mut bytes).await?;
        if n == PREFACE.len() || n == 0 || !PREFACE.starts_with(&bytes[..n]) {
            return Ok(n == PREFACE.len() && bytes == PREFACE);
        }
        // Part of the preface: the rest is on its way, or never comes.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok(false)
}

/// Serves requests until the client or an answer ends the connection.
pub(crate) async fn serve(worker: Rc<Worker>, socket: TcpStream) -> io::Result<()> {
    arrival::ask(&socket);
    let mut connection = Connection {
        worker,
        socket: Rc::new(socket),
        buffer: Vec::new(),
        first_byte: Nanos::ZERO,
    };
    while connection.request().await? {}
    Ok(())
}

impl Connection {
    /// Serves one request; whether another may follow.
    async fn request(&mut self) -> io::Result<bool> {
        let head = loop {
            match http1::parse_head(&self.buffer) {
                Ok(Some((head, length))) => {
                    self.buffer.drain(..length);
                    break head;
                }
                Ok(None) if self.read().await? == 0 => return Ok(false),
                Ok(None) => {}
                Err((status, reason)) => {
                    let reply = Reply::error(status, "BadRequestError", None, reason);
                    self.write_answer(Answer::reply(reply, 0), false, true)
                        .await?;
                    return Ok(false);
                }
            }
        };
        if head.expects_continue {
            self.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let first_byte = self.first_byte;
        let body = match self.body(&head).await? {
            Some(Ok(body)) => body,
            Some(Err((status, reason))) => {
                let reply = Reply::error(status, "BadRequestError", None, reason);
                self.write_answer(Answer::reply(reply, 0), false, true)
                    .await?;
                return Ok(false);
            }
            None => return Ok(false),
        };
        match route(&self.worker.shared, &head.method, &head.path, &body) {
            Route::Reply(reply) => {
                let answer = Answer::reply(reply, 0);
                self.write_answer(answer, head.keep_alive, head.chunked)
                    .await?;
                Ok(head.keep_alive)
            }
            Route::Recording(answer) => {
                let program = Program::http1(answer, false, true);
                let (ending, outcome) = self.play(program, first_byte).await;
                let arrival = Arrival::new(first_byte, head.x_request_id, head.class);
                let shared = &self.worker.shared;
                shared.replayed(head.path, arrival, outcome.writes, ending);
                Ok(false)
            }
            Route::Generate(ask) => {
                let (id, class) = (head.x_request_id.clone(), head.class.clone());
                let arrival = Arrival::new(first_byte, id, class);
                let shared = Arc::clone(&self.worker.shared);
                let job = tokio::select! {
                    job = shared.admit(ask, arrival) => job,
                    // Nothing was sent, so there is nothing to log.
                    () = self.client_gone() => return Ok(false),
                };
                self.generate(job, &head).await
            }
        }
    }

    /// The body of a request; `None` when the client left.
    async fn body(&mut self, head: &RequestHead) -> io::Result<Option<Result<Vec<u8>, Refusal>>> {
        if !head.chunked_body {
            while self.buffer.len() < head.content_length {
                if self.read().await? == 0 {
                    return Ok(None);
                }
            }
            let rest = self.buffer.split_off(head.content_length);
            return Ok(Some(Ok(std::mem::replace(&mut self.buffer, rest))));
        }
        let mut chunks = Chunks::default();
        loop {
            match chunks.take(&mut self.buffer) {
                Err(refusal) => return Ok(Some(Err(refusal))),
                Ok(true) => return Ok(Some(Ok(chunks.body))),
                Ok(false) if self.read().await? == 0 => return Ok(None),
                Ok(false) => {}
            }
        }
    }

    async fn generate(&mut self, mut job: Job, head: &RequestHead) -> io::Result<bool> {
        let Some(mut answer) = job.answer.take() else {
            return Ok(false);
        };
        if let Some(head) = &mut answer.head {
            let id = format!("mock-{}", job.number());
            head.fields.push(("x-request-id".into(), id));
        }
        // Without chunks only the end of the connection ends a stream.
        let keep_alive = head.keep_alive && (head.chunked || !answer.streamed);
        let program = Program::http1(answer, keep_alive, head.chunked);
        let end = program.end;
        let (cause, outcome) = self.play(program, job.start).await;
        let ending = match (cause, end) {
            (Ending::Complete, End::Stall) => self.stall().await,
            (Ending::Complete, End::Close | End::Reset | End::BadChunk) => Ending::Cut,
            (ending, _) => ending,
        };
        if end == End::Reset && ending == Ending::Cut {
            self.socket.set_zero_linger()?;
        }
        self.worker.shared.finish(job, outcome.writes, ending);
        Ok(ending == Ending::Complete && keep_alive)
    }

    /// Sends a program; how that went.
    async fn play(&mut self, program: Program, start: Nanos) -> (Ending, Outcome) {
        let worker = Rc::clone(&self.worker);
        let sink = Sink::Socket(Rc::clone(&self.socket));
        let (ticket, mut end) = worker.wheel.start(program, start, sink);
        let cause = tokio::select! {
            biased;
            outcome = &mut end => match outcome {
                Ok(outcome) => Cause::Program(outcome),
                Err(_) => Cause::Stopped,
            },
            () = self.client_gone() => Cause::ClientGone,
            () = worker.stopped() => Cause::Stopped,
        };
        let ending = match cause {
            Cause::Program(outcome) if outcome.gone => return (Ending::ClientGone, outcome),
            Cause::Program(outcome) => return (Ending::Complete, outcome),
            Cause::ClientGone => Ending::ClientGone,
            Cause::Stopped => Ending::Stopped,
        };
        worker.wheel.cancel(ticket);
        let nothing = Outcome {
            writes: Vec::new(),
            gone: true,
        };
        (ending, end.await.unwrap_or(nothing))
    }

    /// Says nothing until the client or the server goes.
    async fn stall(&mut self) -> Ending {
        let worker = Rc::clone(&self.worker);
        tokio::select! {
            () = self.client_gone() => {}
            () = worker.stopped() => {}
        }
        Ending::Stalled
    }

    /// Reads some bytes; 0 at the end.
    async fn read(&mut self) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            match self.try_read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    fn try_read(&mut self) -> io::Result<usize> {
        let mut scratch = self.worker.scratch.borrow_mut();
        let (n, at) = arrival::read(&self.socket, &mut scratch)?;
        if self.buffer.is_empty() {
            self.first_byte = at;
        }
        self.buffer.extend_from_slice(&scratch[..n]);
        Ok(n)
    }

    /// Returns when the client has closed; bytes of a next request are kept.
    async fn client_gone(&mut self) {
        loop {
            if self.buffer.len() > AHEAD_BYTES {
                // It is there, and waits for its answer.
                std::future::pending::<()>().await;
            }
            match self.read().await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    async fn write_answer(
        &mut self,
        answer: Answer,
        keep_alive: bool,
        chunked: bool,
    ) -> io::Result<()> {
        let program = Program::http1(answer, keep_alive, chunked);
        self.write_all(&program.bytes).await
    }

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.socket.writable().await?;
            match self.socket.try_write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
