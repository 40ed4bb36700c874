//! How exactly writes keep their times, alone in its process because others would disturb it.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use pb_contract::{Clock, Nanos, WallClock};
use pb_mock::{Dist, MockOptions, Timing};

use common::{complete, start};

const STREAMS: usize = 16;

/// Nanoseconds in which the server's thread did not sleep: it had a processor or waited for one.
/// `None` where nobody counts them as Linux does.
fn awake_ns() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let server = tasks.filter_map(Result::ok).find(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "mock-0")
    });
    // Time on a processor, time waiting for one, turns.
    let text = std::fs::read_to_string(server?.path().join("schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    Some(numbers.next()?? + numbers.next()??)
}

/// Median of how late writes were, in milliseconds, with so many streams at 2 ms a token; and the
/// share of the time in which the server did not sleep.
fn median_lateness_ms(spin: Nanos) -> (f64, Option<f64>) {
    let begun = WallClock.now();
    let server = start(MockOptions {
        spin_ns: spin,
        timing: Timing {
            ttft_ns: Dist::Fixed(5e6),
            itl_ns: Dist::Fixed(2e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    });
    let body = r#"{"prompt":"x","max_tokens":50,"stream":true}"#;
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| assert!(complete(&server, body).text().contains("[DONE]")));
        }
    });
    let awake = awake_ns();
    let share = awake.map(|ns| ns as f64 / (WallClock.now() - begun).0 as f64);
    let log = server.stop();
    assert_eq!(log.requests.len(), STREAMS);
    let mut late: Vec<f64> = Vec::new();
    for write in log.requests.iter().flat_map(|r| &r.writes) {
        assert!(write.written_ns >= write.due_ns, "early: {write:?}");
        late.push((write.written_ns - write.due_ns).as_millis_f64());
    }
    // The head, 50 tokens, `[DONE]` and the end.
    assert_eq!(late.len(), STREAMS * 53);
    late.sort_by(f64::total_cmp);
    (late[late.len() / 2], share)
}

/// The same of a plain loop that sleeps and then writes as many messages to as many readers: what
/// this machine lets anybody do. A virtual machine whose host is busy wakes late.
fn median_lateness_of_a_plain_loop_ms() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut late: Vec<f64> = std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for _ in 0..STREAMS {
            let mut reader = TcpStream::connect(address).unwrap();
            scope.spawn(move || while reader.read(&mut [0; 512]).unwrap() > 0 {});
            let (writer, _) = listener.accept().unwrap();
            writer.set_nodelay(true).unwrap();
            writers.push(writer);
        }
        let begun = WallClock.now();
        let mut late = Vec::new();
        for tick in 1..=50 {
            let due = begun + Nanos::from_millis(2 * tick);
            while WallClock.now() < due {
                std::thread::sleep(due.saturating_sub(WallClock.now()).to_duration());
            }
            for writer in &mut writers {
                writer.write_all(&[b'x'; 200]).unwrap();
                late.push((WallClock.now() - due).as_millis_f64());
            }
        }
        late
    });
    late.sort_by(f64::total_cmp);
    late[late.len() / 2]
}

/// Time that the host took from this virtual machine so far, in the kernel's ticks; zero where
/// nobody counts it.
fn stolen_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // The name, then user, nice, system, idle, iowait, irq, softirq and steal.
    let steal = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8));
    steal.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Tries in which the server slept enough, the host took nothing and plain loops before and after
/// it were in time, before the server is blamed.
const FREE_TRIES: usize = 5;

/// Tries at most.
const TRIES: usize = 40;

/// Share of the time in which a server may be awake on a machine that is free and quick enough: 16
/// streams and the last stretch before each token leave it asleep for most of the time.
const FREE_SHARE: f64 = 0.4;

/// How late the plain loop may be on a free machine, in milliseconds: half of what the server may.
const FREE_LATENESS_MS: f64 = 0.5;

#[test]
fn writes_are_never_early_and_a_free_machine_makes_them_in_time() {
    for spin in [Nanos::ZERO, Nanos::from_micros(200)] {
        let (mut free, mut plain_before) = (0, f64::INFINITY);
        // Another program can only make it worse, so the best of some tries is the server's.
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let stolen = stolen_ticks();
            let (late, awake) = median_lateness_ms(spin);
            best = best.min(late);
            if best < 1.0 {
                break;
            }
            let plain = median_lateness_of_a_plain_loop_ms();
            let stolen = stolen_ticks() - stolen;
            eprintln!(
                "spin {spin}: {late:.3} ms late, plain loops {plain_before:.3} and {plain:.3}, \
                 awake {awake:?}, {stolen} ticks stolen"
            );
            let slept = awake.is_some_and(|share| share < FREE_SHARE);
            let in_time = plain_before.max(plain) < FREE_LATENESS_MS;
            free += usize::from(slept && in_time && stolen == 0);
            plain_before = plain;
            if free == FREE_TRIES {
                break;
            }
        }
        if best >= 1.0 {
            assert!(
                free < FREE_TRIES,
                "spin {spin}: the median is never below 1 ms: {best}"
            );
            eprintln!("void: this machine is too busy to tell a millisecond");
        }
    }
}
