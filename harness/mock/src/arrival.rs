//! When a request arrived, as the kernel saw it.
//!
//! The schedule of an answer counts from the arrival of its request. A server that is busy reads
//! late, and a schedule that counted from the read would move with that. Linux tells with the
//! bytes when they came in; elsewhere, and after the wall clock was set, the instant of the read
//! has to do. (This is written apart from the client's stamping on purpose: the judge and the
//! judged share no code.)

use std::io;

use pb_contract::{Clock, Nanos, WallClock};
use tokio::net::TcpStream;

/// Oldest arrival that is believed.
const OLDEST: Nanos = Nanos::from_secs(60);

/// Longest time between two readings of the monotonic clock within which the wall clock is taken
/// to be read at the first of them.
const TOGETHER: Nanos = Nanos::from_micros(25);

/// The monotonic clock now, and how long ago `arrived` of the wall clock was. `None` when that
/// cannot be: the wall clock was set, or this thread never had both clocks together.
#[cfg(target_os = "linux")]
fn age_of(arrived: Nanos) -> (Nanos, Option<Nanos>) {
    let mut now = WallClock.now();
    for _ in 0..8 {
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let after = WallClock.now();
        if after.saturating_sub(now) < TOGETHER {
            let wall = Nanos(wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64);
            let age = wall.checked_sub(arrived).filter(|&age| age <= OLDEST);
            return (now, age);
        }
        now = after;
    }
    (now, None)
}

/// Asks the kernel for times of arrival; one that has none leaves the instants of the reads.
pub(crate) fn ask(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::socket::{setsockopt, sockopt::ReceiveTimestampns};
        let _ = setsockopt(socket, ReceiveTimestampns, &true);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Reads what is there; bytes and the instant of their arrival.
///
/// # Errors
/// As `recv`.
#[cfg(target_os = "linux")]
pub(crate) fn read(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Nanos)> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use tokio::io::Interest;

    /// Aligned as the kernel writes it.
    #[repr(align(16))]
    struct Control([u8; 64]);

    socket.try_io(Interest::READABLE, || {
        let mut control = Control([0; 64]);
        let mut parts = [io::IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control.0), flags)?;
        let mut arrived = Nanos::ZERO;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(time) = part {
                arrived = Nanos(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64);
            }
        }
        let (now, age) = age_of(arrived);
        let at = age.map_or(now, |age| now.saturating_sub(age));
        Ok((message.bytes, at))
    })
}

/// Reads what is there; bytes and the instant of the read.
///
/// # Errors
/// As `recv`.
#[cfg(not(target_os = "linux"))]
pub(crate) fn read(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Nanos)> {
    socket
        .try_read(buffer)
        .map(|bytes| (bytes, WallClock.now()))
}
