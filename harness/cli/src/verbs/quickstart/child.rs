//! An engine as a child process, driven over HTTP exactly like a remote server.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use pb_load::Endpoint;

/// What the ready line of `serve` begins with.
pub(crate) const READY_PREFIX: &str = "listening on ";

/// Most bytes of one engine's log: a machine is not filled by what one engine says.
const LOG_BYTES: u64 = 16 << 20;

/// A running engine. It is stopped when this is dropped, and it stops by itself when this
/// process dies, because its standard input closes then.
pub(crate) struct EngineChild {
    child: Child,
    endpoint: Endpoint,
    command: String,
    /// Writes the log until the engine has ended.
    logging: Option<JoinHandle<()>>,
}

impl EngineChild {
    /// Starts `serve` with `args`, its messages going to `log`, and waits for its ready line.
    ///
    /// # Errors
    /// When the process cannot be started or ends before it is ready: the end of its log is then
    /// part of the message.
    pub(crate) fn start(args: &[String], log: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot create {log:?}"))?;
        let mut child = Command::new(&program)
            .arg("serve")
            .args(args)
            .args(["--host", "127.0.0.1", "--port", "0", "--until-stdin-closes"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program:?} serve"))?;
        let said = child.stderr.take();
        let logging = said.map(|said| std::thread::spawn(|| keep_log(said, log_file, LOG_BYTES)));
        let command = format!("prefillbench serve {}", args.join(" "));
        let Some(url) = read_ready_line(&mut child) else {
            let _ = child.kill();
            let _ = child.wait();
            // Its last words are in the log then.
            let _ = logging.map(JoinHandle::join);
            bail!(
                "the engine ended before it was ready: `{command}`\n{}",
                log_tail(log)
            )
        };
        let endpoint = Endpoint::parse(&url)?;
        Ok(EngineChild {
            child,
            endpoint,
            command,
            logging,
        })
    }

    /// Where it listens.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The command line, for the manifest.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }
}

impl Drop for EngineChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.logging.take().map(JoinHandle::join);
    }
}

/// Writes what comes to a log of at most `most` bytes. What does not fit is read all the same, so
/// that nobody waits for it, and counted in the log's last line.
fn keep_log(mut from: impl Read, mut log: impl Write, most: u64) {
    let (mut buffer, mut room, mut left_out) = ([0_u8; 8 << 10], most, 0_u64);
    loop {
        let n = match from.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        let fits = usize::try_from(room).map_or(n, |room| room.min(n));
        // A full disk is no reason to stop an engine.
        let written = log.write_all(&buffer[..fits]).is_ok();
        room -= fits as u64;
        left_out += if written { n - fits } else { n } as u64;
    }
    if left_out > 0 {
        let _ = writeln!(
            log,
            "\n[{left_out} bytes more were left out: the log is full]"
        );
    }
}

/// The address in the first line that the child prints, or nothing when it ends first.
fn read_ready_line(child: &mut Child) -> Option<String> {
    let stdout = child.stdout.take()?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).ok()?;
    let url = line.strip_prefix(READY_PREFIX)?.split_whitespace().next()?;
    Some(url.to_string())
}

/// The last lines of a log.
pub(crate) fn log_tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(12)..];
    format!(
        "its last messages ({}):\n{}",
        PathBuf::from(log).display(),
        tail.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_says_what_it_lacks() {
        let kept = |most: u64| {
            let mut log = Vec::new();
            keep_log(&[b'x'; 20_000][..], &mut log, most);
            String::from_utf8(log).unwrap()
        };
        assert_eq!(kept(20_000), "x".repeat(20_000));
        let end = "\n[10001 bytes more were left out: the log is full]\n";
        assert_eq!(kept(9_999), "x".repeat(9_999) + end);
    }
}
