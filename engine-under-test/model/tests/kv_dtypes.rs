//! Quantised caches in the forward pass: the same bits for every chunking, block images, and the
//! error of each element type against its own reference.

mod common;

use std::sync::Arc;

use common::{Rows, distance};
use pb_contract::{BlockId, KvDtype, Numerics, Stream, TokenId, WallClock};
use pb_kernels_cpu::Dot;
use pb_model::Weights;
use pb_model::forward::{
    Decoder, ForwardError, ForwardOptions, ImageError, KvScales, LogitRow, LogitRows, LogitSink,
    SeqInput, StoredKv, block_image_bytes, build, judge_stored_kv, kv_bytes_per_token,
    round_matrices_to_bf16,
};
use pb_model::lora::AdapterSet;
use pb_model::synth::{Kind, Size, generate};

const DTYPES: [KvDtype; 6] = [
    KvDtype::F32,
    KvDtype::Bf16,
    KvDtype::F16,
    KvDtype::Fp8E4m3,
    KvDtype::Fp8E5m2,
    KvDtype::Int8,
];

/// Tokens of the prompts below: not a multiple of a block.
const TOKENS: usize = 203;

/// Largest excess of a correct cache: the noise of f32 in four layers, seen at 4e-6, with room.
/// One code off is 2e-3 or more for the 8-bit types.
const EXCESS: f64 = 2e-5;

struct Sink(Rows);

impl LogitSink for Sink {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        self.0.insert((seq, position), logits.to_f64());
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {
        panic!("a model has logits");
    }
}

fn weights(size: Size) -> Arc<Weights> {
    Arc::new(generate(Kind::Sharp, size, 5).1)
}

fn prompt(weights: &Weights, label: &str) -> Vec<TokenId> {
    let mut stream = Stream::new(11, label);
    let vocab = weights.config.vocab as u64;
    (0..TOKENS)
        .map(|_| stream.below(vocab) as TokenId)
        .collect()
}

/// Options of a cache of `dtype`; fp8 gets scales that are found on another prompt.
fn options(weights: &Arc<Weights>, numerics: Numerics, dtype: KvDtype) -> ForwardOptions {
    let sample = prompt(weights, "sample");
    ForwardOptions {
        numerics,
        kv_dtype: dtype,
        kv_scales: KvScales::calibrate(weights, dtype, &sample)
            .ok()
            .map(Arc::new),
        num_blocks: 32,
        dot: Some(Dot::F32),
        ..ForwardOptions::default()
    }
}

fn decoder(weights: &Arc<Weights>, options: &ForwardOptions) -> Box<dyn Decoder> {
    build(weights, &Arc::default(), options.clone()).expect("a decoder")
}

/// Blocks `first, first + step, ..` of a pool of 32, as many as `block_size` needs.
fn table(block_size: usize, first: u32, step: u32) -> Vec<BlockId> {
    (0..TOKENS.div_ceil(block_size) as u32)
        .map(|i| BlockId((first + i * step) % 32))
        .collect()
}

/// Logits of the positions from `start` on, computed in chunks.
fn run_from(
    decoder: &mut dyn Decoder,
    tokens: &[TokenId],
    blocks: &[BlockId],
    start: usize,
    chunk: usize,
) -> Rows {
    let mut sink = Sink(Rows::new());
    for start in (start..tokens.len()).step_by(chunk) {
        let input = SeqInput {
            tokens: &tokens[start..(start + chunk).min(tokens.len())],
            start,
            block_table: blocks,
            rows: LogitRows::All,
            is_prefill: true,
            adapter: None,
        };
        decoder.forward(&[input], &WallClock, &mut sink);
    }
    sink.0
}

fn run(decoder: &mut dyn Decoder, tokens: &[TokenId], chunk: usize) -> Rows {
    run_from(decoder, tokens, &table(16, 0, 1), 0, chunk)
}

fn images(decoder: &dyn Decoder, blocks: &[BlockId]) -> Vec<Vec<u8>> {
    let image = |block: &BlockId| {
        let mut out = Vec::new();
        decoder.read_block(*block, &mut out);
        out
    };
    blocks.iter().map(image).collect()
}

/// Equal bits; the f64 of an f32 keeps them.
fn same(a: &Rows, b: &Rows) -> bool {
    let bits = |rows: &Rows| -> Vec<Vec<u64>> {
        let row = |r: &Vec<f64>| r.iter().map(|v| v.to_bits()).collect();
        rows.values().map(row).collect()
    };
    !a.is_empty() && a.keys().eq(b.keys()) && bits(a) == bits(b)
}

#[test]
fn exact_bits_do_not_depend_on_chunk_or_block_size_or_block_order() {
    let weights = weights(Size::Tiny);
    let tokens = prompt(&weights, "prompt");
    for dtype in DTYPES {
        let mut options = options(&weights, Numerics::Exact, dtype);
        let whole = run(&mut *decoder(&weights, &options), &tokens, TOKENS);
        assert_eq!(whole.len(), TOKENS);
        for chunk in [1, 15, 16, 17, 50, TOKENS - 1] {
            let got = run(&mut *decoder(&weights, &options), &tokens, chunk);
            assert!(same(&got, &whole), "{dtype:?} in chunks of {chunk}");
        }
        for block_size in [7, 8, 32] {
            options.block_size = block_size;
            options.num_blocks = 32;
            let mut other = decoder(&weights, &options);
            let blocks = table(block_size, 5, 9);
            let got = run_from(&mut *other, &tokens, &blocks, 0, 41);
            assert!(same(&got, &whole), "{dtype:?} in blocks of {block_size}");
        }
    }
}

#[test]
fn images_round_trip_and_blocks_may_move_through_them() {
    let weights = weights(Size::Tiny);
    let tokens = prompt(&weights, "prompt");
    let reference = [(Numerics::F64, KvDtype::F64)];
    let packed = DTYPES.map(|dtype| (Numerics::Exact, dtype));
    for (numerics, dtype) in packed.into_iter().chain(reference) {
        let options = options(&weights, numerics, dtype);
        let mut first = decoder(&weights, &options);
        let whole = run(&mut *first, &tokens, TOKENS);
        let blocks = table(16, 0, 1);
        let read = images(&*first, &blocks);
        let size = block_image_bytes(&weights.config, dtype, 16);
        assert!(read.iter().all(|image| image.len() == size), "{dtype:?}");
        assert!(read.windows(2).all(|w| w[0] != w[1]), "blocks differ");
        // Into another pool, in another order; every other block by a copy from a third place.
        let (mut second, moved) = (decoder(&weights, &options), table(16, 31, 13));
        for (i, (block, image)) in moved.iter().zip(&read).enumerate() {
            if i % 2 == 0 {
                second.write_block(*block, image).expect("a fitting image");
                continue;
            }
            let spare = BlockId((0..32).find(|b| !moved.contains(&BlockId(*b))).unwrap());
            second.write_block(spare, image).expect("a fitting image");
            second.copy_block(spare, *block);
        }
        assert_eq!(images(&*second, &moved), read, "{dtype:?}");
        // The last block and a half are computed again on the moved context.
        let start = TOKENS - 24;
        let got = run_from(&mut *second, &tokens, &moved, start, 10);
        let want: Rows = whole
            .into_iter()
            .filter(|((_, p), _)| *p >= start)
            .collect();
        if numerics == Numerics::F64 {
            assert!(distance(&got, &want) < 1e-13);
        } else {
            assert!(same(&got, &want), "{dtype:?} on moved blocks");
        }
        // What was computed again is what was there.
        assert_eq!(images(&*second, &moved)[..12], read[..12], "{dtype:?}");
        if numerics == Numerics::Exact {
            assert_eq!(images(&*second, &moved), read, "{dtype:?}");
        }
    }
}

#[test]
fn images_of_another_kind_are_refused_and_change_nothing() {
    let weights = weights(Size::Tiny);
    let with = |dtype| options(&weights, Numerics::Exact, dtype);
    let mut cache = decoder(&weights, &with(KvDtype::Fp8E4m3));
    run(&mut *cache, &prompt(&weights, "prompt"), TOKENS);
    let before = images(&*cache, &[BlockId(3)]);
    let shape = |key, found, expected| ImageError::Shape {
        key,
        found,
        expected,
    };
    let of =
        |options: &ForwardOptions| images(&*decoder(&weights, options), &[BlockId(0)]).remove(0);
    let mut wide = with(KvDtype::Fp8E4m3);
    wide.block_size = 8;
    let mut unscaled = with(KvDtype::Fp8E4m3);
    unscaled.kv_scales = None;
    let (cut, mut version) = (before[0][..100].to_vec(), before[0].clone());
    version[4] = 2;
    let refused = |cache: &mut dyn Decoder, image: &[u8]| {
        cache
            .write_block(BlockId(3), image)
            .expect_err("not of this kind")
    };
    let got = refused(&mut *cache, &of(&with(KvDtype::Int8)));
    assert_eq!(got, shape("dtype", 6, 4));
    assert_eq!(refused(&mut *cache, &of(&wide)), shape("block_size", 8, 16));
    let expected = block_image_bytes(&weights.config, KvDtype::Fp8E4m3, 16);
    let length = ImageError::Length {
        found: 100,
        expected,
    };
    assert_eq!(refused(&mut *cache, &cut), length);
    let format = |found: &[u8]| ImageError::Format {
        found: found.to_vec(),
    };
    assert_eq!(refused(&mut *cache, &version), format(b"PBKV\x02"));
    assert_eq!(refused(&mut *cache, b"PB"), format(b"PB"));
    let got = refused(&mut *cache, &of(&unscaled));
    assert!(
        matches!(
            got,
            ImageError::Scales {
                layer: 0,
                found: [1.0, 1.0],
                ..
            }
        ),
        "{got}"
    );
    assert_eq!(images(&*cache, &[BlockId(3)]), before);
}

#[test]
fn bytes_count_the_scales_of_int8() {
    let weights = weights(Size::Tiny);
    let c = &weights.config;
    // Two layers, two heads of 16: 128 numbers, and 8 scales of 4 bytes.
    let per_token = |dtype| kv_bytes_per_token(c, dtype);
    assert_eq!((c.layers, c.kv_heads, c.d_head), (2, 2, 16));
    assert_eq!(DTYPES.map(per_token), [512, 256, 256, 128, 128, 160]);
    for dtype in DTYPES {
        let cache = decoder(&weights, &options(&weights, Numerics::Exact, dtype));
        assert_eq!(cache.kv_bytes(), 32 * 16 * per_token(dtype), "{dtype:?}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let weights = weights(Size::Tiny);
    let error = |options: ForwardOptions| {
        let built = build(&weights, &Arc::<AdapterSet>::default(), options);
        built.err().expect("an error").to_string()
    };
    let base = |numerics, kv_dtype| ForwardOptions {
        numerics,
        kv_dtype,
        ..ForwardOptions::default()
    };
    for numerics in [Numerics::Exact, Numerics::Fast] {
        assert!(error(base(numerics, KvDtype::F64)).contains("f64 goes with f64 only"));
    }
    assert!(error(base(Numerics::F64, KvDtype::Int8)).contains("f64 goes with f64 only"));
    let mut rounds = base(Numerics::Exact, KvDtype::F32);
    rounds.kv_rounding = KvDtype::Int8;
    assert!(error(rounds).contains("only F64 rounds; set kv_dtype"));
    let scaled = |dtype, k: &[f32]| ForwardOptions {
        kv_scales: Some(Arc::new(KvScales {
            k: k.to_vec(),
            ..KvScales::ones(2)
        })),
        ..base(Numerics::Fast, dtype)
    };
    assert!(error(scaled(KvDtype::Int8, &[1.0; 2])).contains("only Fp8E4m3 and Fp8E5m2"));
    assert!(error(scaled(KvDtype::Fp8E5m2, &[1.0])).contains("k has 1 scales, the model has 2"));
    assert!(error(scaled(KvDtype::Fp8E4m3, &[1.0, 0.0])).contains("k[1] = 0"));
    let sample = KvScales::calibrate(&weights, KvDtype::Fp8E4m3, &[]);
    assert!(matches!(sample, Err(ForwardError::EmptySample)));
}

/// Rows of the f64 pass on what `decoder` stored, and the comparison.
fn judged(
    weights: &Arc<Weights>,
    options: &ForwardOptions,
    tokens: &[TokenId],
    images: &[Vec<u8>],
) -> (Rows, StoredKv) {
    let mut sink = Sink(Rows::new());
    let stored = judge_stored_kv(weights, options, tokens, images, &mut sink).expect("a verdict");
    (sink.0, stored)
}

/// Distances of single rows, in ascending order.
fn row_distances(got: &Rows, want: &Rows) -> Vec<f64> {
    let one = |(key, row): (&(usize, usize), &Vec<f64>)| {
        let of = |row: &Vec<f64>| Rows::from([(*key, row.clone())]);
        distance(&of(&got[key]), &of(row))
    };
    let mut all: Vec<f64> = want.iter().map(one).collect();
    all.sort_by(f64::total_cmp);
    all
}

#[test]
fn every_type_errs_as_f32_does_against_its_own_reference() {
    let plain = weights(Size::Small);
    let tokens = prompt(&plain, "prompt");
    let rounded = Arc::new(round_matrices_to_bf16(&plain));
    for (numerics, judge) in [(Numerics::Exact, &plain), (Numerics::Fast, &rounded)] {
        let unrounded = options(judge, Numerics::F64, KvDtype::F64);
        let ideal = run(&mut *decoder(judge, &unrounded), &tokens, TOKENS);
        let exact = decoder(&plain, &options(&plain, numerics, KvDtype::F32));
        let noise = distance(&run({ exact }.as_mut(), &tokens, TOKENS), &ideal);
        assert!(noise < 1e-5, "{numerics:?}: f32 errs by {noise:.1e}");
        for dtype in DTYPES {
            let options = options(&plain, numerics, dtype);
            let mut cache = decoder(&plain, &options);
            let rows = run(&mut *cache, &tokens, 64);
            let images = images(&*cache, &table(16, 0, 1));
            let (on_stored, stored) = judged(judge, &options, &tokens, &images);
            let error = distance(&rows, &on_stored);
            let effect = distance(&rows, &ideal);
            // The reference that rounds by itself: rows without a tie before them agree as well.
            let own = ForwardOptions {
                numerics: Numerics::F64,
                kv_dtype: KvDtype::F64,
                kv_rounding: dtype,
                ..options.clone()
            };
            let own = run(&mut *decoder(judge, &own), &tokens, 50);
            let by_row = row_distances(&rows, &own);
            println!(
                "{numerics:?} {dtype:?}: error on the stored cache {error:.1e} ({:.2} of f32's), \
                 against own rounding: least row {:.1e}, median {:.1e}, largest {:.1e}; \
                 other codes {} of {}, worst excess {:.1e}; effect against f64 {effect:.1e}",
                error / noise,
                by_row[0],
                by_row[TOKENS / 2],
                by_row[TOKENS - 1],
                stored.other_codes,
                stored.values,
                stored.worst_excess,
            );
            assert!(
                error < 2.0 * noise,
                "{dtype:?}: {error:.1e}, f32 {noise:.1e}"
            );
            assert!(stored.worst_excess < EXCESS, "{dtype:?}: {stored:?}");
            assert_eq!(stored.values, 2 * 4 * TOKENS * plain.config.kv_dim());
            assert!(stored.other_codes * 1000 < stored.values, "{stored:?}");
            assert!(
                by_row[0] < 1e-5,
                "{dtype:?}: no row agrees, {:.1e}",
                by_row[0]
            );
            if dtype != KvDtype::F32 {
                assert!(
                    effect > 10.0 * error,
                    "{dtype:?} changes nothing: {effect:.1e}"
                );
                assert!(by_row[TOKENS - 1] < effect, "ties weigh less than rounding");
            }
        }
    }
}

#[test]
fn the_judge_notices_a_code_that_is_one_off_and_a_wrong_scale() {
    let weights = weights(Size::Tiny);
    let tokens = prompt(&weights, "prompt");
    for dtype in [KvDtype::Fp8E4m3, KvDtype::Fp8E5m2, KvDtype::Int8] {
        let options = options(&weights, Numerics::Exact, dtype);
        let mut cache = decoder(&weights, &options);
        run(&mut *cache, &tokens, TOKENS);
        let right = images(&*cache, &table(16, 0, 1));
        let excess = |images: &[Vec<u8>]| judged(&weights, &options, &tokens, images).1;
        assert!(excess(&right).worst_excess < EXCESS);
        // The last elements of an image are values of the last layer; the largest in magnitude
        // of them moves one code towards zero.
        let (mut wrong, scale) = (right.clone(), if dtype == KvDtype::Int8 { 8 } else { 1 });
        let tail = wrong[2].len() - 16;
        let largest = (tail..tail + 16)
            .max_by_key(|i| match dtype {
                KvDtype::Int8 => (right[2][*i] as i8).unsigned_abs(),
                _ => right[2][*i] & 0x7f,
            })
            .expect("16 codes");
        let negative_int8 = dtype == KvDtype::Int8 && right[2][largest] > 127;
        wrong[2][largest] = if negative_int8 {
            right[2][largest] + 1
        } else {
            right[2][largest] - 1
        };
        let found = excess(&wrong);
        assert!(found.worst_excess > 100.0 * EXCESS, "{dtype:?}: {found:?}");
        assert_eq!(found.worst_layer, 1, "{dtype:?}");
        assert_eq!(
            found.other_codes,
            excess(&right).other_codes + 1,
            "{dtype:?}"
        );
        // A cache that was written with another scale than the one it is read with.
        let mut other = options.clone();
        other.kv_scales = options.kv_scales.as_ref().map(|s| {
            let double = |x: &Vec<f32>| x.iter().map(|v| v * 2.0).collect();
            Arc::new(KvScales {
                k: double(&s.k),
                v: double(&s.v),
            })
        });
        let verdict = judge_stored_kv(&weights, &other, &tokens, &right, &mut Sink(Rows::new()));
        assert_eq!(verdict.is_err(), scale == 1, "{dtype:?}: {verdict:?}");
    }
}

#[test]
fn images_are_laid_out_as_documented_and_calibration_finds_the_largest_values() {
    let weights = weights(Size::Tiny);
    let tokens = prompt(&weights, "sample");
    let mut cache = decoder(&weights, &options(&weights, Numerics::Exact, KvDtype::F32));
    run(&mut *cache, &tokens, 64);
    let read = images(&*cache, &table(16, 0, 1));
    let header = b"PBKV\x01\x01\0\0\x02\0\0\0\x02\0\0\0\x10\0\0\0\x10\0\0\0";
    // Two heads of 16 in a block of 16; keys and values of two layers follow the header.
    let side = 2 * 16 * 16;
    let mut largest = [[0.0f32; 2]; 2];
    for image in &read {
        assert_eq!(image[..24], header[..]);
        assert_eq!(image.len(), 24 + 4 * side * 4);
        for (i, bytes) in image[24..].chunks_exact(4).enumerate() {
            let value = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let place = &mut largest[i / side / 2][i / side % 2];
            *place = place.max(value.abs());
        }
    }
    for (dtype, top) in [(KvDtype::Fp8E4m3, 448.0), (KvDtype::Fp8E5m2, 57_344.0)] {
        let scales = KvScales::calibrate(&weights, dtype, &tokens).expect("an fp8 type");
        for (layer, [k, v]) in largest.iter().enumerate() {
            for (scale, magnitude) in [(scales.k[layer], k), (scales.v[layer], v)] {
                let error = (scale * top / magnitude - 1.0).abs();
                assert!(
                    *magnitude > 0.0 && error < 1e-4,
                    "{dtype:?} {scale} {magnitude}"
                );
            }
        }
    }
    // A key's dimensions lie a block apart: token 3 of head 1, written alone into another pool,
    // is found at [head][d][slot] and nowhere else among the keys.
    let mut alone = decoder(&weights, &options(&weights, Numerics::Exact, KvDtype::F32));
    let input = SeqInput {
        tokens: &tokens[3..4],
        start: 3,
        block_table: &[BlockId(7)],
        rows: LogitRows::None,
        is_prefill: true,
        adapter: None,
    };
    alone.forward(&[input], &WallClock, &mut Sink(Rows::new()));
    let image = images(&*alone, &[BlockId(7)]).remove(0);
    let set = |at: usize| image[24 + 4 * at..][..4] != [0; 4];
    let keys: Vec<usize> = (0..side).filter(|i| set(*i)).collect();
    let values: Vec<usize> = (0..side).filter(|i| set(side + *i)).collect();
    assert_eq!(keys, (0..32).map(|i| i * 16 + 3).collect::<Vec<_>>());
    let slot = |head: usize| (head * 16 + 3) * 16..(head * 16 + 4) * 16;
    assert_eq!(values, slot(0).chain(slot(1)).collect::<Vec<_>>());
}
