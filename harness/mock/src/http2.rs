//! HTTP/2 by prior knowledge. The framing is a library's: written means handed to it.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pb_contract::{Clock, Nanos, WallClock};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::ask::Reply;
use crate::connection::Worker;
use crate::event::{End, Head};
use crate::http1::BODY_BYTES;
use crate::log::Ending;
use crate::program::Program;
use crate::routes::{Route, route};
use crate::state::{Arrival, Job};
use crate::timer::Timer;
use crate::wheel::{Outcome, Sink};

/// Runs what belongs to a connection on the thread of the connection.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// Data as it comes; may end with a failure, which resets the stream.
struct StreamBody {
    data: mpsc::UnboundedReceiver<Bytes>,
    broken: Rc<Cell<bool>>,
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.data.poll_recv(context).map(|data| match data {
            Some(data) => Some(Ok(Frame::data(data))),
            None if self.broken.take() => Some(Err(io::ErrorKind::ConnectionReset.into())),
            None => None,
        })
    }
}

/// Serves the requests of a connection.
pub(crate) async fn serve(worker: Rc<Worker>, socket: TcpStream) -> io::Result<()> {
    let stopping = Rc::clone(&worker);
    let service = service_fn(move |request| respond(Rc::clone(&worker), request));
    let connection = hyper::server::conn::http2::Builder::new(LocalExecutor)
        .max_concurrent_streams(u32::MAX)
        .serve_connection(TokioIo::new(socket), service);
    tokio::select! {
        result = connection => result.map_err(io::Error::other),
        () = stopping.stopped() => Ok(()),
    }
}

async fn respond(
    worker: Rc<Worker>,
    request: Request<Incoming>,
) -> Result<Response<StreamBody>, Infallible> {
    let first_byte = WallClock.now();
    let (head, body) = request.into_parts();
    let text = |name: &str| {
        let value = head.headers.get(name)?.to_str().ok()?;
        Some(value.to_string())
    };
    let arrival = Arrival::new(first_byte, text("x-request-id"), text("x-mock-class"));
    let body = match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            let message = "the body did not arrive or is longer than 64 MiB";
            return Ok(whole(Reply::error(413, "BadRequestError", None, message)));
        }
    };
    match route(&worker.shared, head.method.as_str(), head.uri.path(), &body) {
        Route::Reply(reply) => Ok(whole(reply)),
        Route::Recording(_) => {
            let message = "recordings hold the bytes of HTTP/1.1; ask for them with that";
            Ok(whole(Reply::error(501, "NotImplemented", None, message)))
        }
        Route::Generate(ask) => {
            let shared = Arc::clone(&worker.shared);
            let job = shared.admit(ask, arrival).await;
            Ok(generate(worker, job).await)
        }
    }
}

async fn generate(worker: Rc<Worker>, mut job: Job) -> Response<StreamBody> {
    let (sender, data) = mpsc::unbounded_channel();
    let broken = Rc::new(Cell::new(false));
    let (start, number) = (job.start, job.number());
    let answer = job.answer.take();
    let head = answer.as_ref().and_then(|answer| answer.head.clone());
    let head_at = answer.as_ref().and_then(|answer| {
        let first = answer.parts.first().map(|part| part.at_ns);
        answer.head_at_ns.or(first)
    });
    if let Some(answer) = answer {
        let program = Program::frames(answer);
        let broken = Rc::clone(&broken);
        let worker = Rc::clone(&worker);
        tokio::task::spawn_local(play(worker, job, program, sender, broken));
    }
    let Some(mut head) = head.filter(|head| !head.broken) else {
        // Nothing is ever said; the client ends it.
        return std::future::pending().await;
    };
    // Without a timer the head is early, which no test of time would overlook.
    if let Ok(timer) = Timer::new(worker.shared.options.spin_ns) {
        let _ = timer.until(start + Nanos(head_at.unwrap_or(0))).await;
    }
    let id = format!("mock-{number}");
    head.fields.push(("x-request-id".into(), id));
    response(&head, StreamBody { data, broken })
}

/// Sends a program as data frames and takes note of how that went.
async fn play(
    worker: Rc<Worker>,
    job: Job,
    program: Program,
    sender: mpsc::UnboundedSender<Bytes>,
    broken: Rc<Cell<bool>>,
) {
    let end = program.end;
    // Set before the channel closes, read only after.
    broken.set(matches!(end, End::Close | End::Reset));
    let sink = Sink::Frames(sender.clone());
    let (ticket, mut over) = worker.wheel.start(program, job.start, sink);
    let outcome = tokio::select! {
        biased;
        outcome = &mut over => outcome.ok(),
        () = sender.closed() => None,
        () = worker.stopped() => None,
    };
    let (ending, outcome) = match outcome {
        Some(outcome) if !outcome.gone => {
            let ending = match end {
                End::Stall => {
                    tokio::select! {
                        () = sender.closed() => {}
                        () = worker.stopped() => {}
                    }
                    Ending::Stalled
                }
                End::Finish => Ending::Complete,
                End::Close | End::Reset | End::BadChunk => Ending::Cut,
            };
            (ending, Some(outcome))
        }
        Some(outcome) => (Ending::ClientGone, Some(outcome)),
        None => {
            let ending = match *worker.stop.borrow() {
                true => Ending::Stopped,
                false => Ending::ClientGone,
            };
            worker.wheel.cancel(ticket);
            (ending, over.await.ok())
        }
    };
    let writes = outcome.map(|Outcome { writes, .. }| writes);
    worker
        .shared
        .finish(job, writes.unwrap_or_default(), ending);
}

fn whole(reply: Reply) -> Response<StreamBody> {
    let (sender, data) = mpsc::unbounded_channel();
    // The receiver is alive.
    let _ = sender.send(Bytes::from(reply.body));
    let broken = Rc::new(Cell::new(false));
    response(&reply.head, StreamBody { data, broken })
}

fn response(head: &Head, body: StreamBody) -> Response<StreamBody> {
    let mut builder = Response::builder()
        .status(head.status)
        .header("content-type", &head.content_type);
    for (name, value) in &head.fields {
        // HTTP/2 forbids these.
        if !["connection", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str()) {
            builder = builder.header(name, value);
        }
    }
    // OK because statuses are in range and fields are printable, both checked with the options.
    builder.body(body).expect("a valid head")
}
