//! The log as a file that grows while the server runs, so that a server that is killed leaves
//! what it has done.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::error::MockError;
use crate::log::{Log, LoggedRequest};

/// A file being written by a thread of its own: the rows of a request are text that would make
/// other writes late.
#[derive(Debug)]
pub(crate) struct LogFile {
    /// `None` once it is closed.
    rows: Mutex<Option<Sender<LoggedRequest>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LogFile {
    /// Creates the file and writes its header.
    ///
    /// # Errors
    /// It cannot be created or written.
    pub(crate) fn create(path: &Path) -> Result<LogFile, MockError> {
        let failed = |source| MockError::LogFile {
            path: path.to_owned(),
            source,
        };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        file.write_all(Log::header().as_bytes()).map_err(failed)?;
        file.flush().map_err(failed)?;
        let (rows, inbox) = channel();
        let name = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("mock-log".to_owned())
            .spawn(move || {
                if let Err(error) = write_all(&inbox, &mut file) {
                    eprintln!(
                        "the log {} is not written any more: {error}",
                        name.display()
                    );
                }
            });
        Ok(LogFile {
            rows: Mutex::new(Some(rows)),
            thread: Mutex::new(Some(thread.map_err(failed)?)),
        })
    }

    /// Adds a request.
    pub(crate) fn write(&self, request: &LoggedRequest) {
        if let Ok(rows) = self.rows.lock()
            && let Some(rows) = rows.as_ref()
        {
            // A thread that is gone has said why.
            let _ = rows.send(request.clone());
        }
    }

    /// Writes what is left.
    pub(crate) fn close(&self) {
        if let Ok(mut rows) = self.rows.lock() {
            rows.take();
        }
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Writes requests as they come; the file is whole whenever none waits.
fn write_all(inbox: &Receiver<LoggedRequest>, file: &mut impl Write) -> std::io::Result<()> {
    while let Ok(request) = inbox.recv() {
        file.write_all(Log::rows(&request).as_bytes())?;
        while let Ok(request) = inbox.try_recv() {
            file.write_all(Log::rows(&request).as_bytes())?;
        }
        file.flush()?;
    }
    file.flush()
}
