//! A server of metrics pages that a test writes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pb_load::Endpoint;

/// What one request for the page is answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) delay: Duration,
}

impl Page {
    pub(crate) fn ok(body: impl Into<String>) -> Page {
        Page {
            status: 200,
            body: body.into(),
            delay: Duration::ZERO,
        }
    }
}

/// A running server; its thread ends with the process.
pub(crate) struct Pages {
    address: SocketAddr,
    asked: Arc<AtomicU64>,
}

impl Pages {
    /// Serves `page`, which is given the number of the request from 0.
    pub(crate) fn serve(page: impl Fn(u64) -> Page + Send + Sync + 'static) -> Pages {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let (counter, page) = (Arc::clone(&asked), Arc::new(page));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let page = Arc::clone(&page);
                std::thread::spawn(move || answer(socket, &page(number)));
            }
        });
        Pages { address, asked }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&format!("http://{}", self.address)).unwrap()
    }

    /// Requests so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(mut socket: TcpStream, page: &Page) {
    let mut head = [0u8; 2048];
    let _ = socket.read(&mut head);
    std::thread::sleep(page.delay);
    // A client that left is none of ours.
    let _ = write!(
        socket,
        "HTTP/1.1 {} X\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         content-length: {}\r\n\r\n{}",
        page.status,
        page.body.len(),
        page.body
    );
}
