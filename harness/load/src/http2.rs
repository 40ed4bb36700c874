//! HTTP/2 by a library, in the task that reads the connection.
//!
//! The library would hand the parts of a connection to the runtime as tasks; here they stay
//! together and are polled by whoever waits for the response, so that no scheduler comes between
//! a read and its stamp.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pb_contract::Nanos;

use crate::connect::Socket;
use crate::http::{Broken, Read, SendFailure};
use crate::response::ResponseHead;
use crate::stamps::Stamps;

/// Work without a result.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bytes that a server may send ahead: more than any event, so that flow control never holds a
/// token back.
const WINDOW_BYTES: u32 = 64 << 20;

/// One connection.
pub(crate) struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    /// The connection's own work; `None` once it is closed.
    io: Option<Work>,
    stamps: Arc<Stamps>,
    /// Request that is still to be sent.
    request: Option<Request<Bytes>>,
    body: Option<Incoming>,
    /// The response was read to its end.
    ended: bool,
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2")
            .field("is_open", &self.io.is_some())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Http2 {
    /// Greets the server.
    pub(crate) async fn handshake(socket: Socket) -> hyper::Result<Http2> {
        let stamps = socket.stamps();
        let tasks = Tasks::default();
        let (sender, connection) = http2::Builder::new(tasks.clone())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(socket))
            .await?;
        // An error of the connection reaches the request through their channel.
        let connection: Work = Box::pin(async move { drop(connection.await) });
        Ok(Http2 {
            sender,
            io: Some(Box::pin(tasks.run_with(connection))),
            stamps,
            request: None,
            body: None,
            ended: true,
        })
    }

    /// Whether a request can be sent: lets the connection notice that its peer has hung up.
    pub(crate) async fn ready(&mut self) -> bool {
        // Polled once at least, which reads what has come while nobody looked.
        poll_fn(|cx| {
            advance(&mut self.io, cx);
            Poll::Ready(())
        })
        .await;
        let ready = drive(&mut self.io, self.sender.ready()).await;
        ready.is_ok() && self.io.is_some()
    }

    /// Whether another request may follow.
    pub(crate) fn is_reusable(&self) -> bool {
        self.ended && self.io.is_some()
    }

    /// Takes a request, to be sent by the wait for its head.
    pub(crate) fn start(&mut self, request: Request<Bytes>) {
        (self.request, self.body, self.ended) = (Some(request), None, false);
    }

    /// Sends the request and waits for the response head.
    pub(crate) async fn head(&mut self) -> Result<ResponseHead, SendFailure> {
        let Some(request) = self.request.take() else {
            return Err(SendFailure::Unsent("no request was started".to_owned()));
        };
        self.stamps.begin();
        let request = request.map(Full::new);
        let sent = drive(&mut self.io, self.sender.try_send_request(request)).await;
        let response = sent.map_err(|error| match error.message() {
            Some(_) => SendFailure::Unsent(error.error().to_string()),
            None => SendFailure::Broken(error.into_error().into()),
        })?;
        let (head, body) = Response::into_parts(response);
        self.body = Some(body);
        let fields = head.headers.iter();
        let fields: Vec<_> = fields
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        Ok(ResponseHead::made(head.status.as_u16(), &fields))
    }

    /// Reads on and lends data to `sink` with the instant of its arrival.
    pub(crate) async fn read(&mut self, sink: &mut (impl FnMut(Nanos, &[u8]) + Send)) -> Read {
        let Some(body) = &mut self.body else {
            return Read::End;
        };
        loop {
            match drive(&mut self.io, body.frame()).await {
                None => {
                    self.ended = true;
                    return Read::End;
                }
                // Trailers carry nothing that is measured.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        sink(self.stamps.last_read(), &data);
                        return Read::Data;
                    }
                }
                Some(Err(error)) => return Read::Broken(Broken::from(error)),
            }
        }
    }
}

/// The parts of a connection.
#[derive(Clone, Default)]
struct Tasks {
    added: Arc<Mutex<Vec<Work>>>,
}

impl Tasks {
    fn list(&self) -> MutexGuard<'_, Vec<Work>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All parts, run to their ends. The list is emptied at once and whenever it grows, because
    /// a part in it would keep itself alive.
    fn run_with(self, first: Work) -> impl Future<Output = ()> + Send {
        let mut running = std::mem::take(&mut *self.list());
        running.push(first);
        poll_fn(move |cx| {
            loop {
                running.retain_mut(|work| work.as_mut().poll(cx).is_pending());
                let mut added = self.list();
                if added.is_empty() {
                    break;
                }
                running.append(&mut added);
            }
            if running.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, future: F) {
        self.list().push(Box::pin(future));
    }
}

/// Lets a connection read and write what it can.
fn advance(io: &mut Option<Work>, cx: &mut Context<'_>) {
    if let Some(work) = io
        && work.as_mut().poll(cx).is_ready()
    {
        *io = None;
    }
}

/// Polls a connection and what waits for it in one task.
async fn drive<F: Future>(io: &mut Option<Work>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        // First what an earlier read has left, whose stamp another read would overwrite.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        advance(io, cx);
        future.as_mut().poll(cx)
    })
    .await
}
