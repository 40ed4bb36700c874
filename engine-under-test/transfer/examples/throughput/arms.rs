//! What carries the payload, and the other process.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use pb_contract::{Clock, WallClock};
use pb_transfer::{
    LocalTransport, MooncakeEngine, MooncakeOptions, MooncakeTransport, NixlOptions, NixlTransport,
    ShmOptions, ShmTransport, TcpOptions, TcpTransport, Transport,
};

use crate::job::FRAME_BYTES;
use crate::sink::{Listener, serve};
use crate::{Job, Outcome};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const SHM: ShmOptions = ShmOptions {
    slots: 8,
    slot_bytes: FRAME_BYTES as u32,
    stall: PATIENCE,
};

/// Names NIXL's `libnixl_capi.so`; set, NIXL is an arm too.
const NIXL: &str = "PB_NIXL_LIBRARY";

/// Names a Python that has Mooncake; set, Mooncake is an arm too.
const MOONCAKE: &str = "PB_MOONCAKE_PYTHON";

/// An engine of its own, and slots as of shared memory.
pub(crate) fn mooncake() -> Outcome<MooncakeOptions> {
    let python = std::env::var_os(MOONCAKE).unwrap_or_default();
    Ok(MooncakeOptions {
        engine: MooncakeEngine::start(Path::new(&python), Ipv4Addr::LOCALHOST)?,
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: PATIENCE,
    })
}

/// Slots as of shared memory.
pub(crate) fn nixl() -> NixlOptions {
    NixlOptions {
        library: std::env::var_os(NIXL).unwrap_or_default().into(),
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: PATIENCE,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Memcpy,
    Socket,
    Local,
    Shm,
    /// Over so many connections.
    Tcp(u32),
    Nixl,
    Mooncake,
}

impl Arm {
    pub(crate) fn all() -> Vec<Arm> {
        let mut all = vec![Arm::Memcpy, Arm::Socket, Arm::Local, Arm::Shm];
        all.extend([1, 2, 4].map(Arm::Tcp));
        all.extend(std::env::var_os(NIXL).map(|_| Arm::Nixl));
        all.extend(std::env::var_os(MOONCAKE).map(|_| Arm::Mooncake));
        all
    }

    pub(crate) fn name(self) -> String {
        match self {
            Arm::Memcpy => "memcpy".to_owned(),
            Arm::Socket => "socket".to_owned(),
            Arm::Local => "local".to_owned(),
            Arm::Shm => "shm".to_owned(),
            Arm::Tcp(n) => format!("tcp x{n}"),
            Arm::Nixl => "nixl".to_owned(),
            Arm::Mooncake => "mooncake".to_owned(),
        }
    }

    pub(crate) fn is_transport(self) -> bool {
        !matches!(self, Arm::Memcpy | Arm::Socket)
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(s: &str) -> Result<Arm, String> {
        let found = Arm::all().into_iter().find(|arm| arm.name() == s);
        found.ok_or_else(|| format!("{s} is no arm"))
    }
}

pub(crate) fn wall() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

/// How the sink is reached.
enum Reach {
    Nobody,
    Thread(Sender<LocalTransport>),
    /// With a socket in it.
    Folder(tempfile::TempDir),
    Address(SocketAddr),
}

/// The sink of an arm: another process, or for `local` another thread. It ends when its input does.
pub(crate) struct Child {
    arm: Arm,
    reach: Reach,
    input: Option<Box<dyn Write>>,
    output: Box<dyn BufRead>,
    process: Option<std::process::Child>,
    sessions: u64,
    mooncake: Option<MooncakeOptions>,
}

impl Child {
    pub(crate) fn start(arm: Arm) -> Outcome<Child> {
        match arm {
            Arm::Memcpy => Ok(Child::new(arm, None, Box::new(std::io::empty()))),
            Arm::Local => {
                let (from_us, to_it): (PipeReader, PipeWriter) = std::io::pipe()?;
                let (to_us, from_it) = std::io::pipe()?;
                let (reach, arriving) = channel();
                std::thread::spawn(move || {
                    serve(
                        &mut Listener::Local(arriving),
                        BufReader::new(from_us),
                        from_it,
                    )
                    .expect("the sink of the local transport");
                });
                let output = Box::new(BufReader::new(to_us));
                let mut child = Child::new(arm, Some(Box::new(to_it)), output);
                child.reach = Reach::Thread(reach);
                Ok(child)
            }
            Arm::Mooncake => {
                let mut child = Child::process(arm)?;
                child.mooncake = Some(mooncake()?);
                Ok(child)
            }
            Arm::Shm | Arm::Socket | Arm::Tcp(_) | Arm::Nixl => Child::process(arm),
        }
    }

    fn new(arm: Arm, input: Option<Box<dyn Write>>, output: Box<dyn BufRead>) -> Child {
        Child {
            arm,
            reach: Reach::Nobody,
            input,
            output,
            process: None,
            sessions: 0,
            mooncake: None,
        }
    }

    fn process(arm: Arm) -> Outcome<Child> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("socket");
        let mut process = Command::new(std::env::current_exe()?)
            .args(["sink", &arm.name()])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().ok_or("no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("no output")?);
        let mut child = Child::new(arm, Some(Box::new(input)), Box::new(output));
        child.process = Some(process);
        let said = child.line()?;
        child.reach = match said.parse() {
            Ok(address) => Reach::Address(address),
            Err(_) => Reach::Folder(dir),
        };
        Ok(child)
    }

    pub(crate) fn arm(&self) -> Arm {
        self.arm
    }

    /// What the sink says next.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the sink of {} has ended", self.arm.name()).into());
        }
        Ok(line.trim().to_owned())
    }

    pub(crate) fn tell(&mut self, job: &Job) -> Outcome<()> {
        let input = self.input.as_mut().ok_or("no sink")?;
        writeln!(input, "{}", job.line())?;
        Ok(input.flush()?)
    }

    /// A new connection of the arm's transport.
    pub(crate) fn connect(&mut self) -> Outcome<Box<dyn Transport>> {
        self.sessions += 1;
        Ok(match (&self.reach, self.arm) {
            (Reach::Thread(to), _) => {
                let (here, there) = LocalTransport::pair(wall());
                to.send(there).map_err(|_| "the sink is gone")?;
                Box::new(here)
            }
            (Reach::Folder(dir), _) => {
                let path = dir.path().join("socket");
                Box::new(ShmTransport::connect(&path, SHM, wall())?)
            }
            (Reach::Address(to), Arm::Tcp(connections)) => {
                let options = TcpOptions {
                    connections,
                    stall: PATIENCE,
                };
                Box::new(TcpTransport::connect(*to, self.sessions, options, wall())?)
            }
            (Reach::Address(to), Arm::Nixl) => {
                Box::new(NixlTransport::connect(*to, &nixl(), wall())?)
            }
            (Reach::Address(to), Arm::Mooncake) => {
                let options = self.mooncake.as_ref().ok_or("no engine")?;
                Box::new(MooncakeTransport::connect(*to, options, wall())?)
            }
            _ => return Err("an arm without a transport".into()),
        })
    }

    /// A plain connection.
    pub(crate) fn plain(&self) -> Outcome<TcpStream> {
        match &self.reach {
            Reach::Address(to) => Ok(TcpStream::connect(to)?),
            _ => Err("an arm without a socket".into()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        if let Some(process) = &mut self.process {
            // Without input it ends; how, was told by what it said.
            let _ = process.wait();
        }
    }
}
