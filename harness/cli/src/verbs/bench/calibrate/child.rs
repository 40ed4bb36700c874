//! The ground-truth server as a process of its own, which ends with this one.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// What the ready line begins with.
const READY: &str = "listening on ";

/// A running server. It is ended when this is dropped, and it ends by itself when this process
/// dies, because its standard input closes then.
#[derive(Debug)]
pub(crate) struct MockChild {
    child: Child,
    base_url: String,
}

impl MockChild {
    /// Starts `PROGRAM mock` with `args` on a free port of the loopback and waits until it
    /// listens.
    ///
    /// # Errors
    /// The process cannot be started, or ends before it listens; its own words are in the message.
    pub(crate) fn start(program: &Path, args: &[String]) -> Result<MockChild> {
        let fixed = [
            "mock",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--until-stdin-closes",
        ];
        let mut child = Command::new(program)
            .args(fixed)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {} mock", program.display()))?;
        let base_url = ready_line(&mut child);
        let mut started = MockChild {
            child,
            base_url: String::new(),
        };
        match base_url {
            Some(url) => started.base_url = url,
            None => {
                let words = started.last_words();
                bail!("the ground-truth server ended before it listened: {words}");
            }
        }
        Ok(started)
    }

    /// Where it listens.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Its number.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn last_words(&mut self) -> String {
        // It may still run, and its standard error would then not end.
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            // What cannot be read is not said.
            let _ = stderr.read_to_string(&mut text);
        }
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        line.unwrap_or("no message").trim().to_owned()
    }
}

impl Drop for MockChild {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the first line, or nothing when the process ends without one.
fn ready_line(child: &mut Child) -> Option<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.take()?)
        .read_line(&mut line)
        .ok()?;
    let url = line.strip_prefix(READY)?.split_whitespace().next()?;
    Some(url.to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    fn program(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn runs(id: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{id}/stat"));
        status.is_ok_and(|text| !text.contains(") Z "))
    }

    #[test]
    fn it_is_ended_when_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo 'listening on http://127.0.0.1:9 (model mock)'; exec sleep 60";
        let child = MockChild::start(&program(dir.path(), script), &[]).unwrap();
        assert_eq!(child.base_url(), "http://127.0.0.1:9");
        let id = child.id();
        assert!(runs(id));
        drop(child);
        assert!(!runs(id));
    }

    #[test]
    fn one_that_does_not_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let error = MockChild::start(&missing, &[]).unwrap_err();
        assert!(format!("{error:#}").contains("none mock"), "{error:#}");
        let script = "echo 'error: no port is free' >&2; exit 2";
        let error = MockChild::start(&program(dir.path(), script), &[]).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.ends_with("before it listened: error: no port is free"),
            "{text}"
        );
    }

    #[test]
    fn it_gets_its_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo \"listening on $*\"; exec sleep 60";
        let args = ["--seed".to_owned(), "3".to_owned()];
        let child = MockChild::start(&program(dir.path(), script), &args).unwrap();
        assert_eq!(child.base_url(), "mock");
    }
}
