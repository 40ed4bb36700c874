//! The response reader against another implementation: seeds, mutations and random messages.

use std::path::PathBuf;

use pb_contract::{Clock, Nanos, Stream, WallClock};

fn corpus() -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/response");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn the_response_corpus_reads_the_same_in_another_implementation() {
    let seeds = corpus();
    assert!(seeds.len() >= 20, "only {} seeds", seeds.len());
    seeds.iter().for_each(|bytes| pb_load::fuzz_response(bytes));
}

/// Pieces of which responses are made, and of which wrong ones are.
const PIECES: [&[u8]; 44] = [
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n",
    b"HTTP/1.1 204 No Content\r\n",
    b"HTTP/1.1 304 Not Modified\r\n",
    b"HTTP/1.1 429\r\n",
    b"HTTP/1.1 503 \r\n",
    b"HTTP/1.1 099 X\r\n",
    b"HTTP/2.0 200 OK\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"content-length: 3\r\n",
    b"Content-Length: 0\r\n",
    b"content-length: 3, 3\r\n",
    b"content-length: +3\r\n",
    b"content-length: 18446744073709551615\r\n",
    b"content-length:\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, Chunked\r\n",
    b"transfer-encoding: gzip\r\n",
    b"transfer-encoding: chunked, gzip\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive, x\r\n",
    b"x: y\r\n",
    b" folded\r\n",
    b"x : y\r\n",
    b"x:\r\n",
    b"\xc3\xa9: z\r\n",
    b"x: \xff\r\n",
    b"0\r\n",
    b"3\r\nabc\r\n",
    b"3;e=1\r\nabc\r\n",
    b"3 \r\nabc\r\n",
    b"0a\r\n0123456789\r\n",
    b"ffffffffffffffff\r\n",
    b"10000000000000000\r\n",
    b"g\r\n",
    b"T: 1\r\n",
    b"abc",
    b";",
    b"3",
];

fn mutate(random: &mut Stream, seeds: &[Vec<u8>], bytes: &mut Vec<u8>) {
    let mut at = |length: usize| random.below(length as u64 + 1) as usize;
    let (from, to) = (at(bytes.len()), at(bytes.len()));
    let (from, to) = (from.min(to), from.max(to));
    match at(6) {
        0 if from < bytes.len() => bytes[from] ^= 1 << at(7),
        1 => drop(bytes.drain(from..to)),
        2 if to - from < 512 => {
            let part = bytes[from..to].to_vec();
            bytes.splice(to..to, part);
        }
        3 => {
            let other = &seeds[at(seeds.len() - 1)];
            let cut = at(other.len());
            bytes.truncate(from);
            bytes.extend_from_slice(&other[cut..]);
        }
        _ => {
            let piece = PIECES[at(PIECES.len() - 1)];
            bytes.splice(from..from, piece.iter().copied());
        }
    }
    bytes.truncate(4_096);
}

/// Mutated seeds: a few thousand, or for as many minutes as `PB_FUZZ_MINUTES` says. An input that
/// fails is printed, so that it can become a seed.
#[test]
fn mutated_responses_read_the_same_in_another_implementation() {
    let minutes = std::env::var("PB_FUZZ_MINUTES").ok();
    let minutes: Option<u64> = minutes.map(|text| text.parse().expect("PB_FUZZ_MINUTES: a number"));
    let end = minutes.map(|minutes| WallClock.now() + Nanos::from_secs(60 * minutes));
    let seeds = corpus();
    let mut random = Stream::new(
        WallClock.now().0 * u64::from(end.is_some()),
        "response mutations",
    );
    let mut done = 0_u64;
    while end.map_or(done < 3_000, |end| WallClock.now() < end) {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..1 + random.below(5) {
            mutate(&mut random, &seeds, &mut bytes);
        }
        let checked = std::panic::catch_unwind(|| pb_load::fuzz_response(&bytes));
        assert!(checked.is_ok(), "input {done}: {}", bytes.escape_ascii());
        done += 1;
    }
    println!("{done} responses read the same");
}

#[test]
fn random_responses_read_the_same_in_another_implementation() {
    let mut random = Stream::new(1, "response fuzz");
    for _ in 0..5_000 {
        let mut bytes = PIECES[random.below(10) as usize].to_vec();
        for _ in 0..random.below(12) {
            bytes.extend_from_slice(PIECES[random.below(PIECES.len() as u64) as usize]);
        }
        pb_load::fuzz_response(&bytes);
    }
}
