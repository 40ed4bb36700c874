//! File descriptors: every connection needs one, and the usual limit is 1,024.

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
    if needed > limit {
        return Err(LoadError::Descriptors { needed, limit });
    }
    Ok(())
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
        if let Some(limit) = now.current {
            let message = ensure_descriptors(limit as usize).unwrap_err().to_string();
            assert!(message.contains(&limit.to_string()), "{message}");
            assert!(message.contains("ulimit -n"), "{message}");
        }
    }
}
