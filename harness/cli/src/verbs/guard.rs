//! A server's keeper: it ends the server when whoever started it ends, however that happens.
//!
//! A harness that is killed with SIGKILL can clean up nothing, and a server that outlives it holds
//! its port, its memory and the cores of the next measurement. So a server is not started by the
//! harness itself but by this process, whose standard input is a pipe from the harness: when the
//! pipe closes, the server is asked to end, and killed when it does not. The server has a process
//! group of its own, so that a Ctrl-C for the harness does not end it in the middle of a request,
//! and so that its workers end with it.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::GuardArgs;

/// Runs the command until it ends or standard input closes.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn run(args: &GuardArgs) -> Result<ExitCode> {
    let signal = signal(&args.signal)?;
    let grace = Duration::from_millis(args.grace_ms);
    let (program, words) = args.command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let group = Pid::from_child(&child);
    std::thread::spawn(move || {
        let mut sink = [0_u8; 64];
        while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
        // A group that is gone has ended already. This process ends as soon as the command has.
        let _ = kill_process_group(group, signal);
        std::thread::sleep(grace);
        let _ = kill_process_group(group, Signal::KILL);
    });
    let status = child.wait().context("cannot wait for the command")?;
    // What it started itself.
    let _ = kill_process_group(group, Signal::KILL);
    crate::console::say(format!("the server ended: {status}"));
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// The signal of a name.
///
/// # Errors
/// A name that no one uses to end a server.
pub(crate) fn signal(name: &str) -> Result<Signal> {
    Ok(match name.strip_prefix("SIG").unwrap_or(name) {
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "HUP" => Signal::HUP,
        "KILL" => Signal::KILL,
        _ => bail!("{name}: a server is ended by TERM, INT, QUIT, HUP or KILL"),
    })
}
