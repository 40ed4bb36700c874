//! Moving blocks, and their checksums.

use pb_kernels_cuda::ops::{Stores, block_checksum, block_copy, block_gather, block_scatter};
use pb_kernels_cuda::{Buffer, DeviceExt, Emulator, checksum};

use crate::common::{Rng, library};

const BLOCKS: usize = 7;
const STORES: usize = 4;

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

/// Stores on a device, with a copy on the host.
fn stores(device: &Emulator<'_>, block_bytes: usize) -> (Stores, Vec<Buffer<u8>>, Vec<Vec<u8>>) {
    let host: Vec<Vec<u8>> = (0..STORES)
        .map(|i| content(i as u64, BLOCKS * block_bytes))
        .collect();
    let placed = |x: &Vec<u8>| device.upload("store", x).unwrap();
    let buffers: Vec<Buffer<u8>> = host.iter().map(placed).collect();
    let stores = Stores::new(device, &buffers, block_bytes).unwrap();
    (stores, buffers, host)
}

#[test]
fn copies_within_stores() {
    let Some(library) = library() else { return };
    for (block_bytes, seed) in [(16, 0), (2048, 1), (9216, 2)] {
        let device = Emulator::new(library);
        device.permute(seed);
        let (stores, buffers, mut host) = stores(&device, block_bytes);
        block_copy(&device, &stores, &[[2, 5], [2, 0], [6, 3]]).unwrap();
        for (buffer, host) in buffers.iter().zip(&mut host) {
            for (from, to) in [(2, 5), (2, 0), (6, 3)] {
                host.copy_within(
                    from * block_bytes..(from + 1) * block_bytes,
                    to * block_bytes,
                );
            }
            assert!(
                device.download(buffer).unwrap() == *host,
                "blocks of {block_bytes}"
            );
        }
        for (pairs, word) in [
            (&[[0, 7]][..], "below 7"),
            (&[[0, 1], [2, 1]], "different blocks"),
            (&[[0, 1], [1, 2]], "no block read that is written"),
        ] {
            let refused = block_copy(&device, &stores, pairs).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}

#[test]
fn gather_then_scatter_moves_blocks_between_pools() {
    let Some(library) = library() else { return };
    let (device, block_bytes) = (Emulator::new(library), 1040);
    device.permute(3);
    let (from, _, host) = stores(&device, block_bytes);
    let (list, to_list) = ([4u32, 1, 6], [0u32, 6, 2]);
    let staging = device
        .empty::<u8>("staging", 3 * from.staged_bytes())
        .unwrap();
    block_gather(&device, &from, &list, &staging).unwrap();
    let block = |x: &[u8], b: u32| x[b as usize * block_bytes..][..block_bytes].to_vec();
    let want: Vec<u8> = list
        .iter()
        .flat_map(|b| host.iter().flat_map(|s| block(s, *b)))
        .collect();
    assert!(device.download(&staging).unwrap() == want);

    let blank = vec![0u8; BLOCKS * block_bytes];
    let targets: Vec<_> = (0..STORES)
        .map(|_| device.upload("target", &blank).unwrap())
        .collect();
    let to = Stores::new(&device, &targets, block_bytes).unwrap();
    block_scatter(&device, &to, &to_list, &staging).unwrap();
    for (target, source) in targets.iter().zip(&host) {
        let got = device.download(target).unwrap();
        for b in 0..BLOCKS as u32 {
            let moved = to_list
                .iter()
                .position(|t| *t == b)
                .map(|i| block(source, list[i]));
            assert!(
                block(&got, b) == moved.unwrap_or_else(|| vec![0; block_bytes]),
                "block {b}"
            );
        }
    }
    assert!(block_scatter(&device, &to, &[0, 0, 1], &staging).is_err());
}

#[test]
fn checksums_are_the_definition_in_any_order_of_threads() {
    let Some(library) = library() else { return };
    for block_bytes in [16, 1040, 9216] {
        for seed in 0..3 {
            let device = Emulator::new(library);
            device.permute(seed);
            let (stores, _, host) = stores(&device, block_bytes);
            let out = device.empty::<u64>("sums", 3 * STORES).unwrap();
            block_checksum(&device, &stores, &[6, 0, 3], &out).unwrap();
            let sum = |b: usize, s: &Vec<u8>| checksum(&s[b * block_bytes..][..block_bytes]);
            let of_block = |b: usize| host.iter().map(move |s| sum(b, s));
            let want: Vec<u64> = [6, 0, 3].into_iter().flat_map(of_block).collect();
            assert_eq!(
                device.download(&out).unwrap(),
                want,
                "{block_bytes}, order {seed}"
            );
        }
    }
}
