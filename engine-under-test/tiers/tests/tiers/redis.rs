//! The shared server: other engines, other contents, and a server that is not there.

use std::net::TcpListener;
use std::time::Duration;

use pb_contract::{Clock, WallClock};
use pb_tiers::{RETRY_AFTER_OPERATIONS, RedisOptions, RedisTier, Secret, Tier, TierError};

use crate::server::{Server, free_port};
use crate::setup::{image, key, key_of};

fn tier(options: &RedisOptions, engine: u8) -> RedisTier {
    RedisTier::new(options, [engine; 32]).unwrap()
}

#[test]
fn another_process_finds_the_blocks_and_another_engine_does_not() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut writer = tier(&server.options(), 1);
    for n in 0..600 {
        writer.put(&key(n), &image(n, 30)).unwrap();
    }
    let mut reader = tier(&server.options(), 1);
    let keys: Vec<_> = (0..700).map(key).collect();
    assert_eq!(reader.leading(&keys), 600);
    let mut out = Vec::new();
    assert!(reader.get(&key(599), &mut out).unwrap());
    assert_eq!(out, image(599, 30));
    assert!(!tier(&server.options(), 2).contains(&key_of(2, 0)));
    let mut elsewhere = server.options();
    elsewhere.namespace = "other".to_owned();
    assert!(!tier(&elsewhere, 1).contains(&key(0)));
}

#[test]
fn clear_removes_what_is_of_this_engine_alone() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (mut one, mut two) = (tier(&server.options(), 1), tier(&server.options(), 2));
    for n in 0..3_000 {
        one.put(&key_of(1, n), b"one").unwrap();
    }
    two.put(&key_of(2, 0), b"two").unwrap();
    server.command(&["SET", "theirs", "kept"]);
    one.clear().unwrap();
    assert_eq!(server.command(&["DBSIZE"]), redis::Value::Int(2));
    assert!(tier(&server.options(), 2).contains(&key_of(2, 0)));
}

#[test]
fn a_value_that_is_not_the_image_is_removed_and_never_returned() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut tier = tier(&server.options(), 1);
    tier.put(&key(1), &image(1, 30)).unwrap();
    let name = format!("prefillbench:1:{}", key(1).to_hex());
    let mut out = Vec::new();
    // A byte of the image replaced, and appended to.
    for damage in [
        ["SETRANGE", &name, "130", "xyz"].as_slice(),
        &["APPEND", &name, "x"],
    ] {
        tier.put(&key(1), &image(1, 30)).unwrap();
        server.command(damage);
        let error = tier.get(&key(1), &mut out).unwrap_err();
        assert!(matches!(error, TierError::Corrupt { .. }), "{error}");
        assert!(out.is_empty() && !tier.contains(&key(1)));
        assert_eq!(server.command(&["EXISTS", &name]), redis::Value::Int(0));
    }
    // What the server drops by itself is a miss.
    tier.put(&key(1), &image(1, 30)).unwrap();
    server.command(&["FLUSHALL"]);
    assert!(!tier.get(&key(1), &mut out).unwrap());
    assert!(!tier.contains(&key(1)));
}

#[test]
fn a_full_server_is_an_error_that_the_tier_survives() {
    let Some(server) = Server::start(&["--maxmemory", "3mb"]) else {
        return;
    };
    let mut tier = tier(&server.options(), 1);
    let full = (0..100).find_map(|n| tier.put(&key(n), &image(n, 100_000)).err());
    assert!(matches!(full, Some(TierError::Server(_))), "{full:?}");
    assert!(!tier.is_resting());
    let mut out = Vec::new();
    assert!(tier.get(&key(0), &mut out).unwrap());
}

#[test]
fn after_a_loss_the_tier_rests_and_then_comes_back() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let mut tier = tier(&server.options(), 1);
    tier.put(&key(0), &image(0, 30)).unwrap();
    server.kill();
    let mut out = Vec::new();
    let lost = tier.get(&key(0), &mut out).unwrap_err();
    assert!(matches!(lost, TierError::Unreachable(_)), "{lost}");
    assert_eq!(
        tier.leading(&[key(0)]),
        0,
        "nothing can come from a server that is away"
    );
    server.restart();
    // The server is back, but the tier has its rest first.
    for rested in 0..RETRY_AFTER_OPERATIONS {
        assert!(tier.is_resting(), "after {rested}");
        assert!(
            !tier.put(&key(1), &image(1, 30)).unwrap().stored,
            "after {rested}"
        );
    }
    assert!(tier.put(&key(1), &image(1, 30)).unwrap().stored);
    assert!(tier.get(&key(1), &mut out).unwrap());
    assert_eq!(out, image(1, 30));
}

#[test]
fn the_rest_doubles_while_the_server_stays_away() {
    let options = RedisOptions::parse(&format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let mut tier = tier(&options, 1);
    let mut failures = Vec::new();
    for operation in 0..1_000_u32 {
        if tier.put(&key(0), b"x").is_err() {
            failures.push(operation);
        }
    }
    // 64, 128, 256 and 512 operations of rest between the attempts.
    assert_eq!(failures, [0, 65, 194, 451, 964]);
}

#[test]
fn a_server_that_never_answers_costs_one_timeout() {
    // The kernel accepts connections for it; nobody ever reads them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut options = RedisOptions::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
    options.timeout = Duration::from_millis(100);
    let mut tier = tier(&options, 1);
    let clock = WallClock;
    let start = clock.now();
    assert!(matches!(
        tier.put(&key(0), b"x"),
        Err(TierError::Unreachable(_))
    ));
    let mut out = Vec::new();
    for _ in 0..20 {
        assert!(!tier.get(&key(0), &mut out).unwrap());
        assert_eq!(tier.leading(&[key(1), key(2)]), 0);
    }
    // Every further operation waiting too would take four seconds.
    let waited_ms = (clock.now().0 - start.0) / 1_000_000;
    assert!((90..3_000).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn a_password_is_used_and_not_shown() {
    let Some(server) = Server::start(&["--requirepass", "hunter2"]) else {
        return;
    };
    let mut options = server.options();
    for wrong in [None, Some("hunter3")] {
        options.password = wrong.map(|text| Secret::new(text.to_owned()));
        let error = tier(&options, 1).put(&key(0), b"x").unwrap_err();
        assert!(matches!(error, TierError::Unreachable(_)), "{error}");
        assert!(
            !format!("{error} {error:?}").contains("hunter"),
            "{error:?}"
        );
    }
    options.password = Some(Secret::new("hunter2".to_owned()));
    assert!(tier(&options, 1).put(&key(0), b"x").unwrap().stored);
}

/// Needs no server: nothing listens on a port that was just given back.
#[test]
fn a_lookup_as_the_first_thing_asked_of_a_dead_server_finds_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = RedisOptions::parse(&format!("redis://127.0.0.1:{port}/0")).unwrap();
    let tier = tier(&options, 1);
    assert_eq!(tier.leading(&[key(0)]), 0);
    assert!(tier.is_resting(), "a failed lookup is a failure");
    assert_eq!(tier.leading(&[key(0)]), 0);
}
