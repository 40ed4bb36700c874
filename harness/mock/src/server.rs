//! Starting and stopping.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;

use crate::connection::{self, Worker};
use crate::error::MockError;
use crate::http2;
use crate::log::Log;
use crate::log_file::LogFile;
use crate::options::{MockOptions, Persona};
use crate::state::Shared;
use crate::timer::Timer;
use crate::tls;

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 16_384;

/// Most threads.
const MAX_THREADS: usize = 256;

/// Starts servers.
#[derive(Debug)]
pub struct Mock;

/// A running server; it stops when this is dropped.
#[derive(Debug)]
pub struct Handle {
    /// Where it listens.
    pub addr: SocketAddr,
    encrypted: bool,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Mock {
    /// Starts a server on threads of its own and returns when it listens.
    ///
    /// # Errors
    /// Options out of range, an address that cannot be listened on.
    pub fn start(options: MockOptions) -> Result<Handle, MockError> {
        check(&options)?;
        let outside = SocketAddr::new(options.host, options.port);
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let address = if tls.is_some() {
            tls::inner_address()
        } else {
            outside
        };
        let log_file = options
            .log_file
            .as_deref()
            .map(LogFile::create)
            .transpose()?;
        let threads = options.threads;
        let shared = Arc::new(Shared::new(options, log_file));
        let (stop, stopped) = watch::channel(false);
        let (ready, is_ready) = std_mpsc::channel();
        let mut handle = Handle {
            addr: address,
            encrypted: false,
            shared: Arc::clone(&shared),
            stop,
            threads: Vec::with_capacity(threads),
        };
        let mut inboxes = Vec::with_capacity(threads);
        for n in 0..threads {
            let (sender, inbox) = mpsc::unbounded_channel();
            inboxes.push(sender);
            let thread = Thread {
                shared: Arc::clone(&shared),
                stop: stopped.clone(),
                inbox,
                // The last has all inboxes, its own among them.
                accept: (n + 1 == threads).then(|| (address, inboxes.clone(), ready.clone())),
            };
            let thread = std::thread::Builder::new()
                .name(format!("mock-{n}"))
                .spawn(move || thread.run())
                .map_err(|source| MockError::System {
                    what: "cannot start a thread",
                    source,
                })?;
            handle.threads.push(thread);
        }
        drop(ready);
        let listening = is_ready
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended")));
        handle.addr = listening.map_err(|source| MockError::Listen { address, source })?;
        if let Some(acceptor) = tls {
            handle.encrypt(outside, acceptor, stopped)?;
        }
        Ok(handle)
    }
}

impl Handle {
    /// Listens outside and passes what it decrypts to the server.
    fn encrypt(
        &mut self,
        outside: SocketAddr,
        acceptor: TlsAcceptor,
        stop: watch::Receiver<bool>,
    ) -> Result<(), MockError> {
        let system = |what| move |source| MockError::System { what, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("cannot start a runtime"))?;
        let inner = self.addr;
        let listener = {
            let _inside = runtime.enter();
            listen(outside).map_err(|source| MockError::Listen {
                address: outside,
                source,
            })?
        };
        let address = listener.local_addr();
        self.addr = address.map_err(system("cannot tell the address"))?;
        self.encrypted = true;
        let thread = std::thread::Builder::new()
            .name("mock-tls".to_owned())
            .spawn(move || runtime.block_on(tls::serve(listener, acceptor, inner, stop)))
            .map_err(system("cannot start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The address as a base URL.
    pub fn base_url(&self) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// What was sent for the requests that have ended.
    pub fn log(&self) -> Log {
        self.shared.log()
    }

    /// Ends all streams, stops, and returns what was sent.
    pub fn stop(mut self) -> Log {
        self.join();
        self.shared.log()
    }

    fn join(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed; the log is as good as it was.
            let _ = thread.join();
        }
        self.shared.close_log();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.join();
    }
}

fn check(options: &MockOptions) -> Result<(), MockError> {
    let at_least_one = [
        ("threads", options.threads),
        ("style.bundle", options.style.bundle as usize),
        ("cache.block_size", options.cache.block_size),
        ("max_concurrency", options.max_concurrency.unwrap_or(1)),
        ("max_model_len", options.max_model_len),
        (
            "default_max_tokens",
            options.timing.default_max_tokens as usize,
        ),
        (
            "slots",
            match options.persona {
                Persona::Vllm => 1,
                Persona::LlamaCpp { slots } => slots,
            },
        ),
    ];
    for (name, value) in at_least_one {
        if value == 0 {
            return Err(MockError::Option(format!(
                "{name}: must be at least 1, got 0"
            )));
        }
    }
    check_times(options)?;
    if options.threads > MAX_THREADS {
        let message = format!(
            "threads: must be at most {MAX_THREADS}, got {}",
            options.threads
        );
        return Err(MockError::Option(message));
    }
    Ok(())
}

/// Longest time of anything: eleven days, as in scripts.
const LONGEST_NS: f64 = 1e15;

/// Refuses times that no run lives to see, which are slips of the unit.
fn check_times(options: &MockOptions) -> Result<(), MockError> {
    let timing = &options.timing;
    let ns = |at: Option<pb_contract::Nanos>| at.map_or(0.0, |at| at.0 as f64);
    let times = [
        ("ttft", timing.ttft_ns.typical()),
        ("itl", timing.itl_ns.typical()),
        ("prefill per token", timing.prefill_ns_per_token),
        ("head", ns(timing.head_ns)),
        ("role", ns(timing.role_ns)),
    ];
    for (name, value) in times {
        if !(0.0..=LONGEST_NS).contains(&value) {
            let message = format!("{name}: {} ms: must be 0 to 1e9 ms", value / 1e6);
            return Err(MockError::Option(message));
        }
    }
    Ok(())
}

type Ready = std_mpsc::Sender<io::Result<SocketAddr>>;
type Inboxes = Vec<mpsc::UnboundedSender<std::net::TcpStream>>;

/// What one thread starts with.
struct Thread {
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
    inbox: mpsc::UnboundedReceiver<std::net::TcpStream>,
    accept: Option<(SocketAddr, Inboxes, Ready)>,
}

impl Thread {
    fn run(self) {
        let ready = self.accept.as_ref().map(|(_, _, ready)| ready.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let result = match runtime {
            Ok(runtime) => LocalSet::new().block_on(&runtime, self.serve()),
            Err(error) => Err(error),
        };
        if let (Err(error), Some(ready)) = (result, ready) {
            // Nobody listens any more when the server was running already.
            let _ = ready.send(Err(error));
        }
    }

    async fn serve(self) -> io::Result<()> {
        let Thread {
            shared,
            stop,
            mut inbox,
            accept,
        } = self;
        let timer = Timer::new(shared.options.spin_ns)?;
        let worker = Rc::new(Worker::new(shared, stop));
        if let Some((address, inboxes, ready)) = accept {
            let listener = listen(address)?;
            // The starter waits for this.
            let _ = ready.send(listener.local_addr());
            tokio::task::spawn_local(accept_all(listener, inboxes));
        }
        let connections = async {
            while let Some(socket) = inbox.recv().await {
                // A client that left while it was handed over is none.
                let _ = take(&worker, socket);
            }
        };
        tokio::select! {
            result = worker.wheel.run(&timer) => result?,
            () = connections => {}
            () = worker.stopped() => {}
        }
        // Streams hear of the stop too and report what they wrote.
        for _ in 0..10_000 {
            if worker.shared.busy() == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Hands connections to the threads in turn.
async fn accept_all(listener: TcpListener, inboxes: Inboxes) {
    let mut turn = 0;
    loop {
        let accepted = match listener.accept().await {
            Ok((socket, _)) => socket.into_std(),
            Err(error) => Err(error),
        };
        match accepted {
            Ok(socket) => {
                // A thread that is gone has said why.
                let _ = inboxes[turn % inboxes.len()].send(socket);
                turn += 1;
            }
            // No descriptor is free, or the client left: the next may fare better.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

fn take(worker: &Rc<Worker>, socket: std::net::TcpStream) -> io::Result<()> {
    let socket = TcpStream::from_std(socket)?;
    // A write is a segment: nothing waits for more.
    socket.set_nodelay(true)?;
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        // Errors of a connection are the client's to see.
        let _ = match connection::is_http2(&socket).await {
            Ok(true) => http2::serve(worker, socket).await,
            Ok(false) => connection::serve(worker, socket).await,
            Err(error) => Err(error),
        };
    });
    Ok(())
}
