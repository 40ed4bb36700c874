//! The thread that talks to the server, so that the engine waits for it no longer than it wants.
//!
//! Socket timeouts bound one read each, not a whole answer, and a name lookup not at all. The
//! engine therefore waits on a channel. A worker that is late once is abandoned with its channels:
//! its answer, should it come, can never be taken for the answer to a later question.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use redis::{Client, Connection, ConnectionInfo, RedisError, RedisResult};

/// Keys that one page of a walk over the key space looks at.
const SCAN_COUNT: u32 = 1_000;

/// A question to the server.
#[derive(Debug)]
pub(crate) enum Job {
    /// The value of a key.
    Get(String),
    /// Sets a key.
    Set(String, Vec<u8>),
    /// Removes a key.
    Delete(String),
    /// Which of the keys exist.
    Exist(Vec<String>),
    /// Removes the keys of one page that match the pattern.
    ClearPage { pattern: String, cursor: u64 },
}

/// Its answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Value(Option<Vec<u8>>),
    Done,
    Exist(Vec<bool>),
    /// Where the next page starts; 0 at the end.
    Cursor(u64),
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error and can be asked on.
    Server(String),
    /// No answer, or none in time.
    Unreachable(String),
}

/// A thread with one connection.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: SyncSender<Job>,
    answers: Receiver<Result<Answer, Failure>>,
    timeout: Duration,
}

impl Worker {
    /// Starts a thread; it connects at the first question.
    pub(crate) fn start(info: ConnectionInfo, timeout: Duration) -> Result<Self, Failure> {
        let (jobs, job_queue) = sync_channel::<Job>(1);
        let (answer_queue, answers) = sync_channel(1);
        let serve = move || {
            let mut connection = None;
            for job in job_queue {
                let answer = ask(&info, timeout, &mut connection, job);
                if answer_queue.send(answer).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new()
            .name("redis-tier".to_owned())
            .spawn(serve)
            .map_err(|e| Failure::Unreachable(format!("no thread for it: {e}")))?;
        Ok(Worker {
            jobs,
            answers,
            timeout,
        })
    }

    /// Asks and waits, at most for the timeout. After [`Failure::Unreachable`] drop the worker.
    pub(crate) fn ask(&self, job: Job) -> Result<Answer, Failure> {
        let gone = || Failure::Unreachable("its thread has ended".to_owned());
        self.jobs.try_send(job).map_err(|_| gone())?;
        match self.answers.recv_timeout(self.timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(Failure::Unreachable(format!(
                "no answer in {} ms",
                self.timeout.as_millis()
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

fn ask(
    info: &ConnectionInfo,
    timeout: Duration,
    connection: &mut Option<Connection>,
    job: Job,
) -> Result<Answer, Failure> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => connect(info, timeout).map_err(failure)?,
    };
    let answer = run(&mut open, job);
    match answer {
        Ok(answer) => {
            *connection = Some(open);
            Ok(answer)
        }
        Err(error) => {
            let failure = failure(error);
            // After an error of the connection its stream may be anywhere: it is not used again.
            if matches!(failure, Failure::Server(_)) {
                *connection = Some(open);
            }
            Err(failure)
        }
    }
}

fn connect(info: &ConnectionInfo, timeout: Duration) -> RedisResult<Connection> {
    let connection = Client::open(info.clone())?.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

fn run(connection: &mut Connection, job: Job) -> RedisResult<Answer> {
    match job {
        Job::Get(key) => {
            let value = redis::cmd("GET").arg(key).query(connection)?;
            Ok(Answer::Value(value))
        }
        Job::Set(key, value) => {
            let set = redis::cmd("SET").arg(key).arg(value).query(connection);
            set.map(|()| Answer::Done)
        }
        Job::Delete(key) => {
            let removed = redis::cmd("UNLINK").arg(key).query::<u64>(connection);
            removed.map(|_| Answer::Done)
        }
        Job::Exist(keys) => {
            let mut pipeline = redis::pipe();
            for key in keys {
                pipeline.cmd("EXISTS").arg(key);
            }
            pipeline.query(connection).map(Answer::Exist)
        }
        Job::ClearPage { pattern, cursor } => {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern);
            let (next, keys): (u64, Vec<String>) =
                scan.arg("COUNT").arg(SCAN_COUNT).query(connection)?;
            if !keys.is_empty() {
                redis::cmd("UNLINK").arg(keys).query::<u64>(connection)?;
            }
            Ok(Answer::Cursor(next))
        }
    }
}

/// Sorts errors into those of the server, which stay apart, and those of the connection.
fn failure(error: RedisError) -> Failure {
    let text = error.to_string();
    // A server that is still loading or refuses the password answers, but is of no use.
    let useless = matches!(
        error.code(),
        Some("LOADING" | "NOAUTH" | "WRONGPASS" | "NOPERM")
    );
    match error.code() {
        Some(_) if !useless => Failure::Server(text),
        _ => Failure::Unreachable(text),
    }
}
