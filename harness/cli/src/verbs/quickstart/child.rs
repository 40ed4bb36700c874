//! An engine as a child process, driven over HTTP exactly like a remote server.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use pb_load::Endpoint;

/// What the ready line of `serve` begins with.
pub(crate) const READY_PREFIX: &str = "listening on ";

/// A running engine. It is stopped when this is dropped, and it stops by itself when this
/// process dies, because its standard input closes then.
pub(crate) struct EngineChild {
    child: Child,
    endpoint: Endpoint,
    command: String,
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
            .stderr(Stdio::from(log_file))
            .spawn()
            .with_context(|| format!("cannot start {program:?} serve"))?;
        let command = format!("prefillbench serve {}", args.join(" "));
        let Some(url) = read_ready_line(&mut child) else {
            let _ = child.kill();
            let _ = child.wait();
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
