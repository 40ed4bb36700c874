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
        let now = WallClock.now();
        let mut at = now;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(time) = part {
                let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                let seconds = wall.tv_sec - time.tv_sec();
                let age =
                    i128::from(seconds) * 1_000_000_000 + i128::from(wall.tv_nsec - time.tv_nsec());
                // A wall clock that was set makes bytes that are older than can be, or newer.
                if let Ok(age) = u64::try_from(age)
                    && age <= OLDEST.0
                {
                    at = now.saturating_sub(Nanos(age));
                }
            }
        }
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
