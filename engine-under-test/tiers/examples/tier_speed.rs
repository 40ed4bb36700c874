//! What a block costs in each tier: time to store it and to bring it back.
//!
//! usage: tier_speed DISK_DIR [REDIS_URL] [IMAGE_BYTES]
//!
//! One block of 16 tokens of SmolLM2-135M in bf16 has 368,640 bytes, which is the default. Each
//! tier is alone in its stack, takes 200 images and gives them back; every image is compared. The
//! images come from the page cache when read from disk: the figure is no disk's read speed.

use std::error::Error;

use pb_contract::{Clock, Fault, Stream, TierOptions, WallClock};
use pb_kv::BlockHash;
use pb_tiers::TierStack;

const BLOCKS: u64 = 200;

fn hash(n: u64) -> BlockHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    hash[31] = n as u8;
    BlockHash(hash)
}

/// Sorted times in microseconds: median and 99th percentile.
fn summary(mut times_ns: Vec<u64>, bytes: usize) -> String {
    times_ns.sort_unstable();
    let at = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100] as f64 / 1e3;
    let rate = bytes as f64 / at(50) / 1e3;
    format!(
        "p50 {:8.1} us  p99 {:8.1} us  {rate:6.2} GB/s",
        at(50),
        at(99)
    )
}

fn measure(options: &TierOptions, image: &mut [u8]) -> Result<(), Box<dyn Error>> {
    let mut stack = TierStack::open(options, [1; 32], Fault::None)?;
    let clock = WallClock;
    let (mut stored, mut fetched, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..BLOCKS {
        image[..8].copy_from_slice(&n.to_le_bytes());
        let start = clock.now().0;
        stack.store(&hash(n), image);
        stored.push(clock.now().0 - start);
    }
    for n in 0..BLOCKS {
        image[..8].copy_from_slice(&n.to_le_bytes());
        let start = clock.now().0;
        let found = stack.fetch(&hash(n), &mut out);
        fetched.push(clock.now().0 - start);
        if found.is_none() || out != image {
            return Err(format!("block {n} did not come back: {:?}", stack.stats()).into());
        }
    }
    let name = stack.stats()[0].0.name();
    println!("{name:5}  store {}", summary(stored, image.len()));
    println!("{name:5}  fetch {}", summary(fetched, image.len()));
    stack.clear();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .ok_or("usage: tier_speed DISK_DIR [REDIS_URL] [IMAGE_BYTES]")?;
    let redis_url = arguments.next();
    let bytes: usize = arguments.next().map_or(Ok(368_640), |text| text.parse())?;
    if bytes < 8 {
        return Err(format!("IMAGE_BYTES = {bytes}: must be at least 8").into());
    }
    let mut stream = Stream::new(1, "image");
    let mut image: Vec<u8> = (0..bytes).map(|_| stream.below(256) as u8).collect();
    let room = 2 * BLOCKS * bytes as u64 + 1_000_000;
    let host = TierOptions {
        host_bytes: room,
        ..TierOptions::default()
    };
    measure(&host, &mut image)?;
    let disk = TierOptions {
        disk_dir: Some(dir),
        disk_bytes: room,
        ..TierOptions::default()
    };
    measure(&disk, &mut image)?;
    if redis_url.is_some() {
        let redis = TierOptions {
            redis_url,
            ..TierOptions::default()
        };
        measure(&redis, &mut image)?;
    }
    Ok(())
}
