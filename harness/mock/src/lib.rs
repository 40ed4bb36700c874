//! A ground-truth server: OpenAI-compatible, with no model behind it.
//!
//! What a load generator measures is only worth as much as it was seen to measure rightly. This
//! server sends streams whose instants are known beforehand, to well below a millisecond, and
//! keeps a log of when each byte really left, on the same monotonic clock that the client of this
//! project reads. It can be wrong in every way that real servers were seen to be wrong
//! ([`FaultKind`]), pretends a prefix cache with salts and resets, and replays recorded responses
//! of real servers byte for byte. `docs/MOCK.md` has the script format and the options.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use pb_mock::{Mock, MockOptions, Script};
//!
//! let script = Some(Script::worked_stream());
//! let server = Mock::start(MockOptions { script, ..MockOptions::default() }).unwrap();
//! let mut client = std::net::TcpStream::connect(server.addr).unwrap();
//! let body = r#"{"messages": [{"role": "user", "content": "hi"}], "stream": true}"#;
//! write!(
//!     client,
//!     "POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n\
//!      content-length: {}\r\n\r\n{body}",
//!     body.len()
//! )
//! .unwrap();
//! let mut response = String::new();
//! client.read_to_string(&mut response).unwrap();
//! assert!(response.contains(r#""content":"BCD""#));
//! let log = server.stop();
//! let tokens: Vec<u32> = log.requests[0].writes.iter().map(|w| w.tokens).collect();
//! assert_eq!(tokens.iter().sum::<u32>(), 5);
//! ```

mod answer;
mod arrival;
mod ask;
mod cache;
mod connection;
mod dist;
mod error;
mod event;
mod fault;
mod generate;
mod http1;
mod http2;
mod log;
mod log_file;
mod metrics;
mod options;
mod parts;
mod program;
mod recording;
mod render;
mod rest;
mod routes;
mod script;
mod server;
mod slots;
mod state;
mod timer;
mod tls;
mod tokens;
mod wheel;

pub use dist::{Dist, DistError};
pub use error::MockError;
pub use fault::{Fault, FaultError, FaultKind};
pub use log::{Ending, Lateness, Log, LoggedRequest, LoggedWrite, WriteKind};
pub use options::{
    CacheModel, DEFAULT_BLOCK_SIZE, MockOptions, Persona, ResetStyle, Style, Timing, Tls,
    UsageStyle,
};
pub use recording::Recording;
pub use script::Script;
pub use server::{Handle, Mock};
pub use tokens::Tokenizer;
