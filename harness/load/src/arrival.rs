//! When bytes arrived, as the kernel saw it.
//!
//! A client that is busy reads late, and a stamp taken after the read blames the server for that.
//! Linux notes when each segment came in (`SO_TIMESTAMPNS`) and tells it with the bytes, so the
//! instant of an event does not depend on how busy this process is. Where the kernel does not
//! tell, the stamp is taken right after the read.
//!
//! One read may bring several segments; the kernel tells the instant of the last one, which is
//! also what a stamp after the read would be at best. The first segments after the first socket
//! of the machine has asked may carry none, because the kernel turns its stamps on by and by.

use std::io;

use pb_contract::{Clock, Nanos, WallClock};
use tokio::net::TcpStream;

/// Oldest arrival that is believed: bytes do not lie unread for longer than any limit.
const OLDEST: Nanos = Nanos::from_secs(3_600);

/// Difference between two readings of the offset of the clocks that is no step of the wall clock.
const JITTER_NS: u64 = 50_000;

/// Longest time between the readings of two clocks that are taken for one instant.
const APART_NS: u64 = JITTER_NS / 2;

/// Readings of the two clocks until they are from one instant.
const READINGS: usize = 8;

/// Bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// When the last of them arrived, on the monotonic clock.
    pub(crate) at: Nanos,
    /// When they were read, if the kernel told when they had arrived.
    pub(crate) read: Option<Nanos>,
}

/// The kernel's time of arrival is of the wall clock; this turns it into the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clocks {
    /// The monotonic instant and the wall clock's offset from it at the last read.
    seen: Option<(Nanos, i128)>,
    last: Nanos,
}

impl Clocks {
    /// The monotonic instant of `arrived`, both clocks having been read now. `None` when the wall
    /// clock was set since the last read, or the instant is none: then nothing is known.
    fn instant(&mut self, arrived: Nanos, wall: Nanos, now: Nanos) -> Option<Nanos> {
        let offset = i128::from(wall.0) - i128::from(now.0);
        let stepped = self.seen.is_some_and(|(then, before)| {
            // A clock that is being adjusted drifts by at most 500 parts in a million.
            let drift = JITTER_NS + (now.0.saturating_sub(then.0)) / 1_000;
            (offset - before).unsigned_abs() > u128::from(drift)
        });
        self.seen = Some((now, offset));
        let age = wall.checked_sub(arrived)?;
        if stepped || age > OLDEST {
            return None;
        }
        now.checked_sub(age).map(|at| at.max(self.last))
    }

    fn received(&mut self, bytes: usize, arrived: Option<Nanos>) -> Received {
        let (now, wall) = both_clocks(|| WallClock.now(), wall_now);
        let known = arrived.zip(wall);
        let at = known.and_then(|(arrived, wall)| self.instant(arrived, wall, now));
        self.last = at.unwrap_or(now);
        Received {
            bytes,
            at: self.last,
            read: at.map(|_| now),
        }
    }
}

/// The monotonic clock now, and the wall clock at the same instant. A process that loses its
/// processor between the two readings would take the pause for a step of the wall clock, so it
/// reads them again. `None` when it never had them together: then no instant of one clock can be
/// told on the other.
fn both_clocks(
    mut monotonic: impl FnMut() -> Nanos,
    mut wall: impl FnMut() -> Nanos,
) -> (Nanos, Option<Nanos>) {
    let mut now = monotonic();
    for _ in 0..READINGS {
        let wall = wall();
        let after = monotonic();
        if after.saturating_sub(now).0 < APART_NS {
            return (now, Some(wall));
        }
        now = after;
    }
    (now, None)
}

/// The wall clock, which is what the kernel's stamps count.
fn wall_now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Asks the kernel for times of arrival; a kernel that has none leaves stamps as they were.
pub(crate) fn ask_for_arrivals(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::socket::{setsockopt, sockopt::ReceiveTimestampns};
        let _ = setsockopt(socket, ReceiveTimestampns, &true);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Reads what is there, without waiting.
///
/// # Errors
/// As `recv`: `WouldBlock` when nothing is there.
#[cfg(target_os = "linux")]
pub(crate) fn receive(
    socket: &TcpStream,
    buffer: &mut [u8],
    clocks: &mut Clocks,
) -> io::Result<Received> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

    /// Room for one control message, aligned as the kernel writes it.
    #[repr(align(16))]
    struct Control([u8; 64]);

    let mut control = Control([0; 64]);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control.0), flags)?;
    let mut arrived = None;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmTimestampns(time) = part {
            arrived = Some(Nanos(
                time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64,
            ));
        }
    }
    Ok(clocks.received(message.bytes, arrived))
}

/// Reads what is there, without waiting.
///
/// # Errors
/// As `recv`: `WouldBlock` when nothing is there.
#[cfg(not(target_os = "linux"))]
pub(crate) fn receive(
    socket: &TcpStream,
    buffer: &mut [u8],
    clocks: &mut Clocks,
) -> io::Result<Received> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{MsgFlags, recv};

    let bytes = recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?;
    Ok(clocks.received(bytes, None))
}

/// Whether the peer has said nothing and not hung up, on a connection that waits for no answer.
pub(crate) fn is_quiet(socket: &TcpStream) -> bool {
    use std::os::fd::AsRawFd;

    use nix::errno::Errno;
    use nix::sys::socket::{MsgFlags, recv};

    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    recv(socket.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_arrival_is_as_old_on_both_clocks() {
        let mut clocks = Clocks::default();
        let wall = |ns: u64| Nanos(1_700_000_000 * SECOND + ns);
        // Read at 500, arrived 70 before.
        assert_eq!(
            clocks.instant(wall(430), wall(500), Nanos(9_500)),
            Some(Nanos(9_430))
        );
        // The wall clock drifts by 40 us in a tenth of a second: no step.
        let late = 100_000_000;
        let at = clocks.instant(wall(late), wall(late + 40_000), Nanos(9_000 + late));
        assert_eq!(at, Some(Nanos(9_000 + late - 40_000)));
    }

    #[test]
    fn a_wall_clock_that_was_set_tells_nothing_once() {
        let mut clocks = Clocks::default();
        assert!(
            clocks
                .instant(Nanos(SECOND), Nanos(SECOND), Nanos(5))
                .is_some()
        );
        // Set forward by a second between two reads a millisecond apart.
        let wall = Nanos(2 * SECOND + 1_000_000);
        assert_eq!(clocks.instant(Nanos(SECOND), wall, Nanos(1_000_005)), None);
        let next = wall + Nanos(1_000);
        let at = clocks.instant(wall, next, Nanos(1_001_005));
        assert_eq!(at, Some(Nanos(1_000_005)));
        // From the future, or older than any limit.
        assert_eq!(
            clocks.instant(next + Nanos(1), next, Nanos(1_001_005)),
            None
        );
        let old = Nanos(3_601 * SECOND);
        assert_eq!(Clocks::default().instant(Nanos::ZERO, old, old), None);
    }

    /// A processor that is taken away for a millisecond at each of the first `pauses` readings.
    fn read_with_pauses(pauses: u64) -> (Nanos, Option<Nanos>) {
        let time = std::cell::Cell::new(0);
        let mut readings = 0;
        let monotonic = || {
            readings += 1;
            let pause = if readings <= pauses { 1_000_000 } else { 100 };
            time.set(time.get() + pause);
            Nanos(time.get())
        };
        both_clocks(monotonic, || Nanos(time.get() + SECOND))
    }

    #[test]
    fn clocks_that_cannot_be_read_together_tell_nothing() {
        let (now, wall) = read_with_pauses(0);
        assert_eq!(wall, Some(now + Nanos(SECOND)));
        // The pair of the fourth and the fifth reading is the first without a pause in it.
        let (now, wall) = read_with_pauses(4);
        assert_eq!(
            (now, wall),
            (Nanos(4_000_000), Some(Nanos(4_000_000 + SECOND)))
        );
        let (now, wall) = read_with_pauses(u64::MAX);
        assert_eq!((now, wall), (Nanos(9_000_000), None));
    }

    /// Waits until something can be read: a busy machine delivers late, to itself too.
    #[cfg(target_os = "linux")]
    fn wait_for_news(socket: &TcpStream) {
        let give_up = WallClock.now() + Nanos::from_secs(60);
        while is_quiet(socket) {
            assert!(WallClock.now() < give_up, "nothing came");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_late_read_knows_when_its_bytes_came() {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, mut far) = (near.unwrap(), far.unwrap().0);
        // Else the second write may leave this machine later than its call returns.
        far.set_nodelay(true).unwrap();
        ask_for_arrivals(&near);
        assert!(is_quiet(&near));
        let mut clocks = Clocks::default();
        let mut buffer = [0; 16];
        let (mut stamped, give_up) = (0, WallClock.now() + Nanos::from_secs(60));
        while stamped < 3 {
            assert!(WallClock.now() < give_up, "{stamped} reads were stamped");
            let before = WallClock.now();
            far.write_all(b"abc").await.unwrap();
            let after = WallClock.now();
            std::thread::sleep(std::time::Duration::from_millis(30));
            wait_for_news(&near);
            let received = receive(&near, &mut buffer, &mut clocks).unwrap();
            assert_eq!(received.bytes, 3);
            let Some(read) = received.read else {
                // The kernel was not ready yet, or the clocks could not be read together.
                assert!(received.at >= after + Nanos::from_millis(30));
                continue;
            };
            stamped += 1;
            // The clocks are read one after the other, so the last digits may differ.
            let slack = Nanos::from_micros(200);
            assert!(received.at + slack >= before && received.at <= after + slack);
            assert!(read >= after + Nanos::from_millis(30));
        }
        let nothing = receive(&near, &mut buffer, &mut clocks).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(far);
        // The peer has hung up.
        wait_for_news(&near);
    }
}
