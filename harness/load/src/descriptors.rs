//! What every connection needs of this machine: a file descriptor, of which the usual limit is
//! 1,024, and a local port, of which there are some 28,000 for each address of the target.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::LoadError;

/// Descriptors kept for everything that is no connection of the run: files, timers, the readers
/// of steps and counters.
const SPARE: u64 = 64;

/// Raises this process's limit of open descriptors as far as it may and makes sure that
/// `connections` more fit.
///
/// # Errors
/// They do not fit; the message has both numbers.
pub fn ensure_descriptors(connections: usize) -> Result<(), LoadError> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some() && now.current != now.maximum {
        let raised = Rlimit {
            current: now.maximum,
            maximum: now.maximum,
        };
        // Refused, the old limit holds and decides below.
        let _ = setrlimit(Resource::Nofile, raised);
    }
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return Ok(());
    };
    let needed = connections as u64 + open_now() + SPARE;
    if needed <= limit {
        return Ok(());
    }
    // A privileged process may go beyond the limit that it was given.
    let raised = Rlimit {
        current: Some(needed),
        maximum: Some(needed),
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => Ok(()),
        Err(_) => Err(LoadError::Descriptors { needed, limit }),
    }
}

/// Makes sure that this machine has local ports for `connections` to a target of so many
/// addresses. A port serves one connection to each address.
///
/// # Errors
/// They do not suffice; the message has both numbers.
pub fn ensure_ports(connections: usize, addresses: usize) -> Result<(), LoadError> {
    // Elsewhere the system says it when it has no port left.
    let Ok(text) = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else {
        return Ok(());
    };
    let Some(ports) = ports_in(&text) else {
        return Ok(());
    };
    let available = ports * addresses.max(1) as u64;
    match connections as u64 > available {
        true => Err(LoadError::Ports {
            needed: connections as u64,
            available,
        }),
        false => Ok(()),
    }
}

/// Ports in a range such as `32768\t60999`.
fn ports_in(text: &str) -> Option<u64> {
    let mut ends = text.split_whitespace().map(|end| end.parse::<u64>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    (last >= first).then(|| last - first + 1)
}

/// Descriptors that are open now; a guess where the system does not list them.
fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(32, |list| list.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_beyond_the_limit_is_an_error_with_both_numbers() {
        ensure_descriptors(1).unwrap();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum, "the limit is raised");
        // More than any system has, whoever asks.
        let needed = 1_usize << 40;
        if let Some(limit) = now.current {
            let message = ensure_descriptors(needed).unwrap_err().to_string();
            assert!(message.contains(&limit.to_string()), "{message}");
            assert!(message.contains("ulimit -n"), "{message}");
        }
    }

    #[test]
    fn row_51_ports_are_counted_before_the_run() {
        assert_eq!(ports_in("32768\t60999\n"), Some(28_232));
        assert_eq!(ports_in("5 4"), None);
        assert_eq!(ports_in("x"), None);
        ensure_ports(1, 1).unwrap();
        // A port is a number of 16 bits.
        let message = ensure_ports(70_000, 1).unwrap_err().to_string();
        assert!(message.contains("70000 local ports"), "{message}");
        assert!(message.contains("ip_local_port_range"), "{message}");
        ensure_ports(70_000, 100).unwrap();
    }
}
