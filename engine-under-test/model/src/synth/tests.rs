use super::*;
use crate::fuzz::{fuzz_safetensors, fuzz_tokenizer_json};
use crate::{ChatMessage, ModelError, hf, load};

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let var = values
        .iter()
        .map(|v| (f64::from(*v) - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean, var.sqrt())
}

#[test]
fn deviations_are_the_specified_ones() {
    let (_, sharp, _) = generate(Kind::Sharp, Size::Small, 5);
    let (_, flat, _) = generate(Kind::HfInit, Size::Small, 5);
    let (s, f) = (&sharp.layers[2], &flat.layers[2]);
    // 1/sqrt(256) = 0.0625, doubled on q, k and the head; 1/sqrt(704) for the down projection.
    let expected = [
        (&s.q, &f.q, 0.125),
        (&s.k, &f.k, 0.125),
        (&s.v, &f.v, 0.0625),
        (&s.o, &f.o, 0.0625),
        (&s.gate, &f.gate, 0.0625),
        (&s.up, &f.up, 0.0625),
        (&s.down, &f.down, 0.03768891807222045),
        (sharp.head(), flat.head(), 0.125),
    ];
    for (sharp, flat, sigma) in expected {
        // With at least 16,384 draws the deviation is known to 0.6 %; four times that is allowed.
        let (mean, got) = moments(&sharp.data);
        assert!(
            (got / sigma - 1.0).abs() < 0.024 && mean.abs() < sigma * 0.04,
            "{got} {sigma}"
        );
        let (_, got) = moments(&flat.data);
        assert!((got / 0.02 - 1.0).abs() < 0.024, "{got}");
    }
    assert_eq!(flat.final_norm, vec![1.0; 256]);
}

#[test]
fn the_seed_decides_every_byte() {
    let digest = |kind, seed| model(kind, Size::Tiny, seed).unwrap().identity.sha256;
    assert_eq!(digest(Kind::Sharp, 1), digest(Kind::Sharp, 1));
    assert_ne!(digest(Kind::Sharp, 1), digest(Kind::Sharp, 2));
    assert_ne!(digest(Kind::Sharp, 1), digest(Kind::HfInit, 1));
}

#[test]
fn a_written_folder_loads_as_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny");
    write_dir(&path, Kind::Sharp, Size::Tiny, 9).unwrap();
    let read = load(&path).unwrap();
    let made = model(Kind::Sharp, Size::Tiny, 9).unwrap();
    assert_eq!(read.config, made.config);
    assert_eq!(read.weights, made.weights);
    assert_eq!(read.identity.sha256, made.identity.sha256);
    assert_eq!(read.identity.name, "tiny");
    let messages = [ChatMessage::new("user", "é?")];
    let text = read.tokenizer.apply_chat_template(&messages, true).unwrap();
    assert_eq!(
        text,
        "<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        made.tokenizer.apply_chat_template(&messages, true).unwrap(),
        text
    );
}

#[test]
fn bytes_are_their_own_ids_in_both_forms() {
    let json = Tokenizer::from_json(&tokenizer_json()).unwrap();
    let bytes = gguf_bytes(Kind::HfInit, Size::Tiny, 1, MatrixType::F32);
    let header = crate::gguf::Header::parse(&bytes).unwrap();
    let gguf = Tokenizer::from_gguf(&header).unwrap();
    let text = "Hé 12\n<|im_start|>\u{1}\u{7f}😀<|im_end|>";
    let mut expected: Vec<u32> = "Hé 12\n".bytes().map(u32::from).collect();
    expected.push(257);
    expected.extend("\u{1}\u{7f}😀".bytes().map(u32::from));
    expected.push(258);
    for tokenizer in [json, gguf] {
        assert_eq!(tokenizer.encode(text, true).unwrap(), expected);
        assert_eq!(tokenizer.decode(&expected, false), text);
        assert_eq!(tokenizer.decode(&expected, true), "Hé 12\n\u{1}\u{7f}😀");
        assert_eq!(tokenizer.id_bound(), 288);
        assert_eq!(tokenizer.token_bytes(0xe9), [0xe9]);
        assert_eq!(tokenizer.token_str(0xe9), "\u{fffd}");
        assert_eq!(tokenizer.token_str(287), "<|reserved_287|>");
    }
}

#[test]
fn broken_folders_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    assert!(load(path).unwrap_err().to_string().contains("config.json"));
    write_dir(path, Kind::Sharp, Size::Tiny, 9).unwrap();
    let weights = path.join("model.safetensors");
    let good = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &good[..good.len() - 1]).unwrap();
    assert!(matches!(load(path), Err(ModelError::Tensor { .. })));
    std::fs::write(&weights, &good[..4]).unwrap();
    assert!(matches!(load(path), Err(ModelError::Format { .. })));
    std::fs::write(&weights, &good).unwrap();
    let index = path.join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"x": "../model.safetensors"}}"#).unwrap();
    assert!(
        load(path)
            .unwrap_err()
            .to_string()
            .contains("leaves the folder")
    );
}

#[test]
fn shards_load_like_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    write_dir(path, Kind::Sharp, Size::Tiny, 9).unwrap();
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut map = serde_json::Map::new();
    for (file, odd) in [("a.safetensors", true), ("b.safetensors", false)] {
        let mut names = whole.names();
        names.sort();
        let chosen = names
            .into_iter()
            .enumerate()
            .filter(|(i, _)| (i % 2 == 1) == odd);
        let views: Vec<_> = chosen.map(|(_, n)| (n, whole.tensor(n).unwrap())).collect();
        views
            .iter()
            .for_each(|(n, _)| drop(map.insert(n.to_string(), file.into())));
        let shard = safetensors::serialize(views, None).unwrap();
        std::fs::write(path.join(file), shard).unwrap();
    }
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(path.join("model.safetensors.index.json"), index).unwrap();
    let read = load(path).unwrap();
    assert_eq!(read.weights, generate(Kind::Sharp, Size::Tiny, 9).1);
    assert_eq!(read.identity.sha256.len(), 64);
}

#[test]
fn mutated_safetensors_neither_panic_nor_grow() {
    let (config, weights, _) = generate(Kind::HfInit, Size::Tiny, 1);
    let seed = files::safetensors_bytes(&weights).unwrap();
    assert_eq!(hf::weights_from_bytes(&config, &seed).unwrap(), weights);
    let header_len = 8 + u64::from_le_bytes(seed[..8].try_into().unwrap());
    for len in (0..seed.len()).step_by(1021) {
        assert!(
            hf::weights_from_bytes(&config, &seed[..len]).is_err(),
            "{len}"
        );
    }
    let mut stream = pb_contract::rng::Stream::new(23, "safetensors mutation");
    for _ in 0..800 {
        let mut bytes = seed.clone();
        for _ in 0..1 + stream.below(3) {
            let at = stream.below(header_len) as usize;
            bytes[at] = b"0123456789[]{},:\"F\xff"[stream.below(19) as usize];
        }
        fuzz_safetensors(&config, &bytes);
    }
}

#[test]
fn mutated_tokenizer_files_do_not_panic() {
    let seed = tokenizer_json();
    let mut stream = pb_contract::rng::Stream::new(29, "tokenizer mutation");
    for _ in 0..300 {
        let mut bytes = seed.clone().into_bytes();
        for _ in 0..1 + stream.below(3) {
            let at = stream.below(bytes.len() as u64) as usize;
            bytes[at] = b"0123456789[]{},:\"tfn-"[stream.below(21) as usize];
        }
        if let Ok(text) = String::from_utf8(bytes) {
            fuzz_tokenizer_json(&text);
        }
    }
    assert!(Tokenizer::from_json(&seed).is_ok());
}
