use std::borrow::Cow;
use std::path::Path;

use super::dequant::dequantize;
use super::write::{TensorData, TensorOut, write_gguf};
use super::*;
use crate::config::{Arch, LlamaConfig, RopeScaling};
use crate::error::ModelError;
use crate::fuzz::fuzz_gguf;
use crate::synth::{self, Kind, Size};

/// Decodes the committed blocks and compares with what gguf-py made of them, bit for bit.
fn check_fixture(name: &str, kind: TensorType) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/gguf_quants");
    let json = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    let file: serde_json::Value = serde_json::from_str(&json).unwrap();
    let hex = file["bytes"].as_str().unwrap();
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let expected: Vec<u64> = file["f32_bits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    let got: Vec<u64> = dequantize(kind, &bytes)
        .iter()
        .map(|v| u64::from(v.to_bits()))
        .collect();
    assert!(!expected.is_empty());
    assert_eq!(got, expected, "{name}");
}

#[test]
fn dequantisers_equal_gguf_py() {
    check_fixture("q4_0", TensorType::Q4_0);
    check_fixture("q4_1", TensorType::Q4_1);
    check_fixture("q8_0", TensorType::Q8_0);
    check_fixture("q4_k", TensorType::Q4K);
    check_fixture("q6_k", TensorType::Q6K);
    check_fixture("bf16", TensorType::Bf16);
    check_fixture("f16", TensorType::F16);
}

#[test]
fn a_q4_1_block_by_hand() {
    // d = 0.5 (0x3800), m = -1 (0xbc00); byte 0 holds codes 3 (low) and 10 (high).
    let mut block = vec![0x00, 0x38, 0x00, 0xbc, 0xa3];
    block.resize(20, 0);
    let values = dequantize(TensorType::Q4_1, &block);
    assert_eq!((values[0], values[16], values[1]), (0.5, 4.0, -1.0));
}

#[test]
fn type_numbers_round_trip() {
    for kind in TensorType::ALL {
        assert_eq!(TensorType::from_code(kind.code()), Some(kind));
    }
    for code in 0..13 {
        assert_eq!(ValueType::from_code(code).unwrap().code(), code);
    }
    assert_eq!(
        (TensorType::from_code(13), ValueType::from_code(13)),
        (None, None)
    );
}

/// A model with every tensor distinct, for layout tests.
fn sample(arch: Arch) -> (LlamaConfig, crate::weights::Weights) {
    let (mut config, mut weights, _) = synth::generate(Kind::Sharp, Size::Tiny, 11);
    config.arch = arch;
    if arch == Arch::Qwen2 {
        config.qkv_bias = true;
        for (i, layer) in weights.layers.iter_mut().enumerate() {
            let ramp = |n: usize| Some((0..n).map(|j| (i * 1000 + j) as f32).collect());
            layer.q_bias = ramp(config.q_dim());
            layer.k_bias = ramp(config.kv_dim());
            layer.v_bias = ramp(config.kv_dim());
        }
    }
    weights.config = config.clone();
    (config, weights)
}

fn written(weights: &crate::weights::Weights, matrices: MatrixType) -> Vec<u8> {
    let metadata = metadata_from_config(&weights.config, "sample");
    let mut out = Vec::new();
    write_model(&mut out, weights, &metadata, matrices).unwrap();
    out
}

#[test]
fn f32_files_round_trip_for_both_architectures() {
    for arch in [Arch::Llama, Arch::Qwen2] {
        let (mut config, weights) = sample(arch);
        let bytes = written(&weights, MatrixType::F32);
        let header = Header::parse(&bytes).unwrap();
        let (read, got) = config_and_weights(&header, &bytes).unwrap();
        // The file stores these two as f32.
        config.rms_eps = f64::from(config.rms_eps as f32);
        assert_eq!(read, config);
        assert_eq!(got.layers, weights.layers, "{arch:?}");
        assert_eq!((got.embed, got.lm_head), (weights.embed, weights.lm_head));
        assert_eq!(got.final_norm, weights.final_norm);
    }
}

#[test]
fn llama_files_hold_interleaved_rows_and_qwen2_files_do_not() {
    for (arch, second_row) in [(Arch::Llama, 8), (Arch::Qwen2, 1)] {
        let (config, weights) = sample(arch);
        let bytes = written(&weights, MatrixType::F32);
        let header = Header::parse(&bytes).unwrap();
        let info = header.tensor("blk.1.attn_q.weight").unwrap();
        assert_eq!(info.dims, [64, 64]);
        // Row 1 of the file: by the format, llama.cpp's second member of the first pair, which
        // is row d_head / 2 = 8 of the half-split order.
        let start = info.offset as usize + config.hidden * 4;
        let stored = dequantize(TensorType::F32, &bytes[start..start + config.hidden * 4]);
        assert_eq!(stored, weights.layers[1].q.row(second_row), "{arch:?}");
    }
}

#[test]
fn bf16_export_rounds_matrices_and_keeps_vectors_and_metadata() {
    let bytes = synth::gguf_bytes(Kind::Sharp, Size::Tiny, 3, MatrixType::F32);
    let header = Header::parse(&bytes).unwrap();
    let (_, weights) = config_and_weights(&header, &bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    export_bf16(&weights, &header, &path).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.header.get("general.file_type"), Some(&Value::U32(32)));
    let kept: Vec<_> = header
        .metadata
        .iter()
        .filter(|(k, _)| k != "general.file_type")
        .collect();
    let found: Vec<_> = file
        .header
        .metadata
        .iter()
        .filter(|(k, _)| k != "general.file_type")
        .collect();
    assert_eq!(found, kept);
    assert_eq!(
        file.header.tensor("blk.0.ffn_up.weight").unwrap().kind,
        TensorType::Bf16
    );
    assert_eq!(
        file.header.tensor("blk.0.ffn_norm.weight").unwrap().kind,
        TensorType::F32
    );
    let (_, read) = file.weights().unwrap();
    assert_eq!(read.layers[0].mlp_norm, weights.layers[0].mlp_norm);
    for (got, source) in read.layers[1].k.data.iter().zip(&weights.layers[1].k.data) {
        // Eight significant bits: relative error at most 2^-9 + rounding of the tie.
        assert!(
            (got - source).abs() <= source.abs() / 256.0,
            "{got} from {source}"
        );
        assert_eq!(got.to_bits() & 0xffff, 0, "a bf16 value");
    }
    assert!(!dir.path().join("out.gguf.partial").exists());
}

#[test]
fn rope_factors_travel_as_a_tensor() {
    let (mut config, mut weights) = sample(Arch::Llama);
    config.rope_scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 512,
    };
    weights.config = config.clone();
    let bytes = written(&weights, MatrixType::F32);
    let header = Header::parse(&bytes).unwrap();
    let (read, _) = config_and_weights(&header, &bytes).unwrap();
    assert!(matches!(&read.rope_scaling, RopeScaling::Factors(f) if f.len() == 8));
    for (got, want) in read.inv_freq().iter().zip(config.inv_freq()) {
        assert!((got / want - 1.0).abs() < 1e-6, "{got} against {want}");
    }
}

#[test]
fn a_large_header_is_read_in_growing_prefixes() {
    let (_, weights) = sample(Arch::Llama);
    let mut metadata = metadata_from_config(&weights.config, "big");
    let filler: String = "x".repeat(700_000);
    for i in 0..4 {
        metadata.push((format!("filler.{i}"), Value::String(filler.clone())));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big.gguf");
    let mut out = Vec::new();
    write_model(&mut out, &weights, &metadata, MatrixType::Bf16).unwrap();
    std::fs::write(&path, &out).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.header.text("filler.3").unwrap(), Some(filler.as_str()));
    assert!(file.weights().is_ok());
}

/// A file with one F32 tensor and the given metadata.
fn one_tensor(metadata: &[(String, Value)]) -> Vec<u8> {
    let tensor = TensorOut {
        name: "t".into(),
        dims: vec![2, 3],
        data: TensorData::F32(Cow::Owned(vec![1.0; 6])),
    };
    let mut out = Vec::new();
    write_gguf(&mut out, metadata, &[tensor]).unwrap();
    out
}

/// The error that `file` gives, which must name `field`.
fn refused(file: &[u8], field: &str) -> String {
    match Header::parse(file) {
        Err(ModelError::Gguf {
            field: found,
            offset,
            problem,
        }) => {
            assert_eq!(found, field, "{problem}");
            assert!(offset <= file.len() as u64);
            problem
        }
        other => panic!("{field}: {other:?}"),
    }
}

#[test]
fn wrong_fields_are_named() {
    let good = one_tensor(&[]);
    assert!(Header::parse(&good).is_ok());
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    // Layout: magic 0, version 4, tensors 8, keys 16, name length 24, "t" 32, dimensions 33,
    // sizes 37 and 45, type 53, offset 57.
    refused(b"", "magic");
    refused(&patched(0, b"GGML"), "magic");
    assert!(refused(&patched(4, &1u32.to_le_bytes()), "version").contains('1'));
    assert!(refused(&patched(4, &3u32.to_be_bytes()), "version").contains("big-endian"));
    let huge = u64::MAX.to_le_bytes();
    assert!(refused(&patched(24, &huge), "tensor name").contains(&u64::MAX.to_string()));
    assert!(refused(&patched(33, &5u32.to_le_bytes()), "t").contains("5 dimensions"));
    refused(&patched(37, &huge), "t");
    refused(&patched(37, &0u64.to_le_bytes()), "t");
    assert!(refused(&patched(53, &13u32.to_le_bytes()), "t").contains("13"));
    assert!(refused(&patched(53, &8u32.to_le_bytes()), "t").contains("blocks of 32"));
    assert!(refused(&patched(57, &huge), "t").contains("beyond the file"));
    assert!(refused(&patched(45, &100u64.to_le_bytes()), "t").contains("beyond the file"));
    assert!(Header::parse(&patched(8, &huge)).is_err());
    assert!(Header::parse(&patched(16, &huge)).is_err());
}

#[test]
fn wrong_metadata_is_named() {
    let pair = |key: &str, value| (key.to_string(), value);
    let twice = [pair("k", Value::U8(1)), pair("k", Value::U8(2))];
    assert!(refused(&one_tensor(&twice), "k").contains("twice"));
    let alignment = [pair("general.alignment", Value::U32(24))];
    assert!(refused(&one_tensor(&alignment), "general.alignment").contains("24"));
    let mut flag = one_tensor(&[pair("b", Value::Bool(true))]);
    // Key length 24, key 32, type 33, value 37.
    flag[37] = 2;
    assert!(refused(&flag, "b").contains('2'));
    let mut text = one_tensor(&[pair("s", Value::String("ab".into()))]);
    text[45] = 0xff;
    assert!(refused(&text, "s").contains("UTF-8"));
    let mut array = one_tensor(&[pair("a", Value::Array(ArrayValue::of_i32s([1])))]);
    array[37] = 9;
    assert!(refused(&array, "a").contains("arrays of arrays"));
}

#[test]
fn overlapping_tensors_are_refused() {
    let tensor = |name: &str| TensorOut {
        name: name.into(),
        dims: vec![256],
        data: TensorData::F32(Cow::Owned(vec![0.5; 256])),
    };
    let mut out = Vec::new();
    let names: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
    write_gguf(&mut out, &[], &tensors).unwrap();
    let header_len = Header::parse(&out).unwrap().tensors[0].offset as usize;
    // All eight entries at offset 0: each is 8 + 2 + 4 + 8 + 4 + 8 bytes long.
    for i in 0..8 {
        out[24 + 34 * i + 26..24 + 34 * (i + 1)].fill(0);
    }
    assert!(
        Header::parse(&out).is_err_and(|e| e.to_string().contains("overlap")) || {
            // With all of the data section left, the sum still fits; shrink to one tensor's worth.
            out.truncate(header_len + 1024);
            refused(&out, "tensor data").contains("overlap")
        }
    );
}

#[test]
fn values_of_every_type_survive() {
    let values = [
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::F32(1.5),
        Value::Bool(true),
        Value::String("é".into()),
        Value::Array(ArrayValue::of_strings(["a", "", "ccc"])),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(-0.25),
    ];
    let metadata: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(i, v)| (format!("k{i}"), v.clone()))
        .collect();
    let header = Header::parse(&one_tensor(&metadata)).unwrap();
    assert_eq!(header.metadata, metadata);
    let strings: Vec<&str> = header
        .array("k9")
        .unwrap()
        .unwrap()
        .strings()
        .unwrap()
        .collect();
    assert_eq!(strings, ["a", "", "ccc"]);
    assert_eq!(
        (header.uint("k4").unwrap(), header.uint("none").unwrap()),
        (Some(3), None)
    );
    assert!(header.uint("k5").is_err() && header.text("k0").is_err());
}

#[test]
fn truncated_files_are_errors() {
    let bytes = synth::gguf_bytes(Kind::HfInit, Size::Tiny, 1, MatrixType::Bf16);
    let header = Header::parse(&bytes).unwrap();
    let data_start = header.tensors[0].offset as usize;
    assert!(config_and_weights(&header, &bytes).is_ok());
    let short = (0..data_start)
        .step_by(7)
        .chain((data_start..bytes.len() - 32).step_by(4093));
    for len in short {
        assert!(
            Header::parse(&bytes[..len]).is_err(),
            "{len} of {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn mutated_files_neither_panic_nor_grow() {
    let seed = synth::gguf_bytes(Kind::HfInit, Size::Tiny, 1, MatrixType::Bf16);
    let header_len = Header::parse(&seed).unwrap().tensors[0].offset;
    fuzz_gguf(&seed);
    let mut stream = pb_contract::rng::Stream::new(17, "gguf mutation");
    for _ in 0..1500 {
        let mut bytes = seed.clone();
        for _ in 0..1 + stream.below(3) {
            let at = stream.below(header_len) as usize;
            match stream.below(3) {
                0 => bytes[at] ^= 1 << stream.below(8),
                1 => bytes[at] = stream.next_u64() as u8,
                _ => {
                    let end = (at + 8).min(header_len as usize);
                    bytes[at..end].fill(if stream.below(2) == 0 { 0xff } else { 0 });
                }
            }
        }
        fuzz_gguf(&bytes);
    }
}
