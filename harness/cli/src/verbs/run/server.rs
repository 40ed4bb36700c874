//! The server of a cell: started, waited for, and ended whatever happens.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pb_contract::{Clock, Nanos, WallClock};
use pb_load::Endpoint;
use pb_load::control::{Control, Method};

use crate::interrupt::{Interrupt, Interrupted};
use crate::verbs::quickstart::log_tail;
use crate::verbs::router::LOG_DIR;
use crate::verbs::suite::{Arm, Way};

/// Between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(100);

/// What one such question may take.
const ASK: Duration = Duration::from_secs(5);

/// Ports that are tried: one that was free may be taken before the server has it.
const PORTS: usize = 3;

/// What a server is given beyond its own grace before its keeper is killed.
const SLACK: Duration = Duration::from_secs(5);

/// A server that answers; it is ended when this is dropped, and by its keeper when this process
/// dies ([`crate::verbs::guard`]).
pub(crate) struct Server {
    keeper: Option<Child>,
    base_url: String,
    log: PathBuf,
    grace: Duration,
}

impl Server {
    /// Starts the server of an arm, its words going to `log`, and waits until it answers.
    ///
    /// # Errors
    /// [`Interrupted`]; a server that cannot be started, ends, or is not ready in time: the end
    /// of its log is then part of the message.
    pub(crate) fn start(arm: &Arm, log: &Path, interrupt: &Interrupt) -> Result<Server> {
        let mut server = Server {
            keeper: None,
            base_url: String::new(),
            log: log.to_owned(),
            grace: Duration::from_secs_f64(arm.stop.grace_s),
        };
        if let Way::Running(url) = &arm.way {
            server.base_url.clone_from(url);
            return Ok(server);
        }
        for attempt in 1.. {
            let (words, url) = command(arm)?;
            if fixed(arm) && answers(&url, &arm.ready.path, interrupt)? {
                bail!(
                    "arm {}: something answers at {url} before its server was started: end it",
                    arm.name
                );
            }
            let from = std::fs::metadata(log).map_or(0, |file| file.len());
            server.keeper = Some(keep(arm, &words, log)?);
            server.base_url = url;
            let Err(error) = server.ready(arm, interrupt) else {
                break;
            };
            server.end();
            if error.is::<Interrupted>() {
                return Err(error);
            }
            if attempt == PORTS || fixed(arm) || !port_was_taken(log, from) {
                let shown = pb_record::visible(&words.join(" "));
                return Err(error.context(format!("arm {}: `{shown}`", arm.name)));
            }
        }
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Whether it ended by itself.
    pub(crate) fn is_gone(&mut self) -> bool {
        let ended = |keeper: &mut Child| !matches!(keeper.try_wait(), Ok(None));
        self.keeper.as_mut().is_some_and(ended)
    }

    fn ready(&mut self, arm: &Arm, interrupt: &Interrupt) -> Result<()> {
        let limit = Nanos::from_secs_f64(arm.ready.timeout_s);
        let start = WallClock.now();
        loop {
            let answered = answers(&self.base_url, &arm.ready.path, interrupt)?;
            if self.is_gone() {
                bail!(
                    "the server ended before it was ready; {}",
                    log_tail(&self.log)
                );
            }
            if answered {
                return Ok(());
            }
            if WallClock.now() - start > limit {
                bail!(
                    "the server did not answer {}{} within {} s (ready.timeout_s); {}",
                    self.base_url,
                    arm.ready.path,
                    arm.ready.timeout_s,
                    log_tail(&self.log)
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks the keeper to end the server and waits for both.
    fn end(&mut self) {
        let Some(mut keeper) = self.keeper.take() else {
            return;
        };
        // The end of its standard input is what it waits for.
        drop(keeper.stdin.take());
        let start = WallClock.now();
        let limit = (self.grace + SLACK).as_nanos() as u64;
        while matches!(keeper.try_wait(), Ok(None)) {
            if (WallClock.now() - start).0 > limit {
                // It kills the server itself, so this is for a keeper that hangs.
                let _ = keeper.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether its address is given and not chosen here.
fn fixed(arm: &Arm) -> bool {
    matches!(arm.way, Way::Command(_, Some(_)))
}

/// The words of an arm's command with a free port, and the address that they make.
fn command(arm: &Arm) -> Result<(Vec<String>, String)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    let port = listener.local_addr().context("no free port")?.port();
    drop(listener);
    let program = std::env::current_exe().context("where is this program?")?;
    let program = program.display().to_string();
    let local = format!("http://127.0.0.1:{port}");
    let (words, url) = match &arm.way {
        Way::Engine(flags) => {
            let own = [&program, "serve", "--host", "127.0.0.1", "--port", "{port}"];
            let own = own.into_iter().map(String::from);
            (own.chain(flags.iter().cloned()).collect(), None)
        }
        Way::Command(words, url) => (words.clone(), url.clone()),
        Way::Running(_) | Way::Unknown => bail!("arm {} is not started here", arm.name),
    };
    let filled = |word: String| {
        let word = word.replace("{port}", &port.to_string());
        word.replace("{program}", &program)
    };
    let words = words.into_iter().map(filled).collect();
    Ok((words, url.unwrap_or(local)))
}

/// Starts a keeper with the server. Both have process groups of their own, so that a Ctrl-C in the
/// terminal reaches this process alone and a running cell can end in order.
fn keep(arm: &Arm, words: &[String], log: &Path) -> Result<Child> {
    let program = std::env::current_exe().context("where is this program?")?;
    let place = || format!("cannot write {}", log.display());
    let out = File::options().create(true).append(true).open(log);
    let out = out.with_context(place)?;
    let grace = (arm.stop.grace_s * 1e3).ceil() as u64;
    Command::new(program)
        .args(["guard", "--signal", &arm.stop.signal])
        .args(["--grace-ms", &grace.to_string(), "--"])
        .args(words)
        // For a router that starts workers; nobody else looks at it.
        .env(LOG_DIR, log.with_extension("workers"))
        .envs(&arm.env)
        .stdin(Stdio::piped())
        .stdout(out.try_clone().with_context(place)?)
        .stderr(out)
        .process_group(0)
        .spawn()
        .context("cannot start the keeper of a server")
}

/// Whether a server answers: also that it wants a key is an answer.
fn answers(base_url: &str, path: &str, interrupt: &Interrupt) -> Result<bool> {
    let endpoint = Endpoint::parse(base_url)?;
    let control = Control::new(&endpoint)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let ask = async {
        let asked = control.exchange(Method::GET, path, None);
        tokio::time::timeout(ASK, asked).await
    };
    let answer = runtime
        .block_on(interrupt.guard(ask))
        .map_err(|error| anyhow!(error))?;
    let status = match answer {
        Ok(Ok(exchange)) => exchange.status,
        Ok(Err(_)) | Err(_) => return Ok(false),
    };
    Ok((200..300).contains(&status) || status == 401 || status == 403)
}

/// Whether what was written to the log since `from` says that the port was not free.
fn port_was_taken(log: &Path, from: u64) -> bool {
    let bytes = std::fs::read(log).unwrap_or_default();
    let new = bytes.get(from as usize..).unwrap_or_default();
    let text = String::from_utf8_lossy(new).to_lowercase();
    text.contains("address already in use") || text.contains("address in use")
}
