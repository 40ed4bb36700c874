//! Disk: crashes, foreign files, bad disks and other engines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pb_tiers::{DiskTier, Tier, TierError, Victims};

use crate::setup::{HEADER_BYTES, image, key};

const PLENTY: u64 = 1 << 30;

fn open(dir: &Path) -> DiskTier {
    DiskTier::open(dir, PLENTY, Victims::Drop).unwrap()
}

/// Files below `dir`, sorted.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn only_block(dir: &Path) -> PathBuf {
    let blocks = files(&dir.join("blocks"));
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    blocks[0].clone()
}

#[test]
fn blocks_come_back_after_a_restart_in_the_order_of_their_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    // Descending, so that the order of names is not the order of writes.
    for n in (0..5).rev() {
        tier.put(&key(n), &image(n, 50)).unwrap();
    }
    drop(tier);
    let mut tier = open(dir.path());
    assert_eq!((tier.blocks(), tier.bytes()), (5, 5 * (50 + HEADER_BYTES)));
    let mut out = Vec::new();
    for n in 0..5 {
        assert!(tier.get(&key(n), &mut out).unwrap());
        assert_eq!(out, image(n, 50));
    }
    tier.put(&key(9), &image(9, 50)).unwrap();
    drop(tier);
    // Half the room: the first written, 4, 3 and 2, go.
    let tier = DiskTier::open(dir.path(), 3 * (50 + HEADER_BYTES), Victims::Drop).unwrap();
    let held: Vec<u32> = (0..10).filter(|&n| tier.contains(&key(n))).collect();
    assert_eq!(held, [0, 1, 9]);
    assert_eq!(files(&dir.path().join("blocks")).len(), 3);
    tier.check().unwrap();
}

#[test]
fn a_directory_in_the_place_of_a_block_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    tier.put(&key(0), &image(0, 50)).unwrap();
    drop(tier);
    let block = only_block(dir.path());
    fs::remove_file(&block).unwrap();
    fs::create_dir(&block).unwrap();
    let mut tier = open(dir.path());
    assert_eq!(tier.blocks(), 0);
    assert!(!tier.get(&key(0), &mut Vec::new()).unwrap());
    assert!(block.is_dir());
}

#[test]
fn a_file_cut_at_any_length_is_never_returned() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).put(&key(3), &image(3, 40)).unwrap();
    let path = only_block(dir.path());
    let whole = fs::read(&path).unwrap();
    let mut out = Vec::new();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let mut tier = open(dir.path());
        assert_eq!((tier.blocks(), tier.discarded()), (0, 1), "cut to {length}");
        assert!(!tier.get(&key(3), &mut out).unwrap() && out.is_empty());
        assert!(!path.exists(), "cut to {length}");
    }
    fs::write(&path, &whole).unwrap();
    assert!(open(dir.path()).get(&key(3), &mut out).unwrap());
    assert_eq!(out, image(3, 40));
}

#[test]
fn every_flipped_bit_is_noticed_at_the_latest_when_the_block_is_read() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).put(&key(3), &image(3, 10)).unwrap();
    let path = only_block(dir.path());
    let whole = fs::read(&path).unwrap();
    let mut out = Vec::new();
    for bit in 0..whole.len() * 8 {
        let mut bad = whole.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bad).unwrap();
        let mut tier = open(dir.path());
        let found = tier.get(&key(3), &mut out);
        assert!(!matches!(found, Ok(true)), "bit {bit}");
        assert!(out.is_empty());
        assert_eq!((tier.discarded(), path.exists()), (1, false), "bit {bit}");
        assert!(!tier.get(&key(3), &mut out).unwrap(), "gone after that");
    }
}

#[test]
fn damage_while_the_tier_is_open_is_an_error_once_and_a_miss_then() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    tier.put(&key(3), &image(3, 10)).unwrap();
    let path = only_block(dir.path());
    let grown = [fs::read(&path).unwrap(), vec![0]].concat();
    fs::write(&path, grown).unwrap();
    let mut out = Vec::new();
    let error = tier.get(&key(3), &mut out).unwrap_err();
    assert!(matches!(error, TierError::Corrupt { .. }), "{error}");
    assert!(
        error.to_string().contains(&*path.to_string_lossy()),
        "{error}"
    );
    assert!(!tier.get(&key(3), &mut out).unwrap());
    // A file that somebody removed is a miss, and can be written again.
    tier.put(&key(4), &image(4, 10)).unwrap();
    fs::remove_file(only_block(dir.path())).unwrap();
    assert!(!tier.get(&key(4), &mut out).unwrap());
    assert!(tier.put(&key(4), &image(4, 10)).unwrap().stored);
    assert!(tier.get(&key(4), &mut out).unwrap());
    tier.check().unwrap();
}

#[test]
fn a_block_under_another_name_is_not_taken_for_it() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).put(&key(3), &image(3, 10)).unwrap();
    let path = only_block(dir.path());
    let other = path
        .to_string_lossy()
        .replace(&key(3).to_hex(), &key(256 + 3).to_hex());
    assert_ne!(other, path.to_string_lossy());
    fs::rename(&path, &other).unwrap();
    let tier = open(dir.path());
    assert_eq!((tier.blocks(), tier.discarded()), (0, 1));
}

#[test]
fn files_of_others_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let note = dir.path().join("blocks/00/note.txt");
    fs::create_dir_all(note.parent().unwrap()).unwrap();
    fs::write(&note, "mine").unwrap();
    fs::write(dir.path().join("blocks/note.txt"), "mine").unwrap();
    let mut tier = open(dir.path());
    tier.put(&key(0), &image(0, 10)).unwrap();
    tier.clear().unwrap();
    assert_eq!((tier.blocks(), tier.discarded()), (0, 0));
    assert_eq!(fs::read_to_string(&note).unwrap(), "mine");
    // A directory that never was a store is refused, untouched.
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("thesis.txt"), "mine").unwrap();
    let error = DiskTier::open(home.path(), PLENTY, Victims::Drop).unwrap_err();
    assert!(matches!(error, TierError::Foreign(_)), "{error}");
    assert_eq!(files(home.path()).len(), 1);
}

#[test]
fn two_engines_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = DiskTier::open(dir.path(), PLENTY, Victims::Drop).unwrap_err();
    assert!(matches!(error, TierError::Locked(_)), "{error}");
    assert!(error.to_string().contains("disk_dir"), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    // A file stands where the block's folder would be.
    fs::write(dir.path().join("blocks/07"), "in the way").unwrap();
    let error = tier.put(&key(7), &image(7, 10)).unwrap_err();
    assert!(matches!(error, TierError::Io { .. }), "{error}");
    assert!(!tier.contains(&key(7)) && tier.bytes() == 0);
    assert!(files(&dir.path().join("incoming")).is_empty());
    assert!(tier.put(&key(8), &image(8, 10)).unwrap().stored);
}

/// Keys that the child writes, many more than fit.
const KEYS: u32 = 400;

/// Set in the child of the next test: the directory to write into until it is killed.
const WRITE_INTO: &str = "PB_TIERS_TEST_WRITE_INTO";

/// Not a test of its own: the child process of the next one.
#[test]
fn writer_until_killed() {
    let Some(dir) = std::env::var_os(WRITE_INTO) else {
        return;
    };
    let mut tier = DiskTier::open(Path::new(&dir), 200_000, Victims::Drop).unwrap();
    for n in 0..KEYS {
        tier.put(&key(n), &image(n, 20_000)).unwrap();
    }
    // Ends with its parent, should it not be killed.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The child; it does not outlive a test that fails.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_writer(dir: &Path) -> Writer {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk::writer_until_killed"])
        .env(WRITE_INTO, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    Writer(child.unwrap())
}

/// The highest key under `blocks` at present, by the names alone.
fn newest(dir: &Path) -> Option<u32> {
    let held = |n: &u32| {
        let name = key(*n).to_hex();
        let folder = &name[name.len() - 2..];
        dir.join("blocks").join(folder).join(&name).exists()
    };
    (0..KEYS).rev().find(held)
}

#[test]
fn killed_while_writing_the_store_holds_whole_blocks_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    for round in 0..6_u32 {
        let mut writer = start_writer(dir.path());
        // The later rounds are killed deeper into the writing, when blocks are evicted too.
        while newest(dir.path()).is_none_or(|n| n < 3 * round) {
            assert!(
                writer.0.try_wait().unwrap().is_none(),
                "the writer has ended"
            );
        }
        drop(writer);
        let mut tier = DiskTier::open(dir.path(), 200_000, Victims::Drop).unwrap();
        assert!(
            files(&dir.path().join("incoming")).is_empty(),
            "round {round}"
        );
        assert!(
            tier.blocks() > 0 && tier.bytes() <= 200_000,
            "round {round}"
        );
        let held: Vec<u32> = (0..KEYS).filter(|&n| tier.contains(&key(n))).collect();
        assert_eq!(held.len() as u64, tier.blocks());
        for n in held {
            assert!(
                tier.get(&key(n), &mut out).unwrap(),
                "round {round}: block {n}"
            );
            assert!(out == image(n, 20_000), "round {round}: block {n}");
        }
        tier.clear().unwrap();
    }
}
