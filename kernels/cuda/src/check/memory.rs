//! Operations that only move data, and the choice of tokens: results are equal or wrong.

use super::suite::{Suite, equal};
use super::values::Rng;
use crate::checksum;
use crate::device::{Buffer, Device, DeviceExt};
use crate::error::KernelError;
use crate::ops::{self, SampleRow, Stores};

/// Copies, gathers, scatters and checksums of blocks.
pub(super) fn blocks<D: Device + ?Sized>(suite: &mut Suite<'_, D>) -> Result<(), KernelError> {
    const BLOCKS: usize = 5;
    for block_bytes in [16, 1536, 16_384] {
        let host = |seed: u64| -> Vec<u8> {
            let mut rng = Rng(seed);
            (0..BLOCKS * block_bytes)
                .map(|_| rng.next_u64() as u8)
                .collect()
        };
        let sides = [host(1), host(2), host(3)];
        let block = |side: &[u8], b: u32| side[b as usize * block_bytes..][..block_bytes].to_vec();
        let shape = format!("3 stores, blocks of {block_bytes} B");
        let chosen = [4u32, 0, 3];
        let staged: Vec<u8> = chosen
            .iter()
            .flat_map(|b| sides.iter().flat_map(move |s| block(s, *b)))
            .collect();
        suite.one("block_copy", shape.clone(), |d| {
            let there = place(d, &sides)?;
            let stores = Stores::new(d, &there, block_bytes)?;
            ops::block_copy(d, &stores, &[[4, 1], [0, 2]])?;
            let mut want = sides[2].clone();
            for (from, to) in [(4, 1), (0, 2)] {
                want[to * block_bytes..][..block_bytes].copy_from_slice(&block(&sides[2], from));
            }
            Ok(equal(&d.download(&there[2])?, &want))
        })?;
        suite.one("block_gather", shape.clone(), |d| {
            let stores = Stores::new(d, &place(d, &sides)?, block_bytes)?;
            let staging = d.empty::<u8>("staging", staged.len())?;
            ops::block_gather(d, &stores, &chosen, &staging)?;
            Ok(equal(&d.download(&staging)?, &staged))
        })?;
        suite.one("block_scatter", shape.clone(), |d| {
            let there = place(d, &sides)?;
            let stores = Stores::new(d, &there, block_bytes)?;
            let staging = d.input("staging", &staged)?;
            ops::block_scatter(d, &stores, &[1, 2, 0], &staging)?;
            let mut want = sides[0].clone();
            for (from, to) in chosen.into_iter().zip([1, 2, 0]) {
                want[to * block_bytes..][..block_bytes].copy_from_slice(&block(&sides[0], from));
            }
            Ok(equal(&d.download(&there[0])?, &want))
        })?;
        suite.one("block_checksum", shape, |d| {
            let stores = Stores::new(d, &place(d, &sides)?, block_bytes)?;
            let sums = d.empty::<u64>("sums", chosen.len() * sides.len())?;
            ops::block_checksum(d, &stores, &chosen, &sums)?;
            let want: Vec<u64> = staged.chunks_exact(block_bytes).map(checksum).collect();
            Ok(equal(&d.download(&sums)?, &want))
        })?;
    }
    Ok(())
}

/// The first choice of every row, asked for in two ways.
pub(super) fn samples<D: Device + ?Sized>(suite: &mut Suite<'_, D>) -> Result<(), KernelError> {
    for vocab in [288, 49_152] {
        suite.one("sample_rows", format!("first choice of {vocab}"), |d| {
            let host = Rng(9).values(3 * vocab, 8.0);
            let row = |temperature, top_k| SampleRow {
                temperature,
                top_k,
                top_p: 1.0,
                forbidden: &[],
                key: [7; 32],
                draw: 11,
            };
            let logits = d.input("logits", &host)?;
            let out = d.empty::<u32>("out", 3)?;
            ops::sample(d, &logits, &[row(0.0, 0), row(0.7, 1), row(0.0, 5)], &out)?;
            let first = |row: &[f32]| {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter().position(|x| *x == largest).unwrap_or_default() as u32
            };
            let want: Vec<u32> = host.chunks_exact(vocab).map(first).collect();
            Ok(equal(&d.download(&out)?, &want))
        })?;
    }
    Ok(())
}

fn place<D: Device + ?Sized>(
    device: &D,
    sides: &[Vec<u8>],
) -> Result<Vec<Buffer<u8>>, KernelError> {
    sides.iter().map(|s| device.upload("store", s)).collect()
}
