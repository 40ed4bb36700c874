//! The real model: token ids, chat text and weights against files made by other programs.
//!
//! The GGUF file is found through `PREFILLBENCH_TEST_MODEL`; without it, and without the golden
//! files, these tests say so and pass, because neither is part of the source tree.

use std::path::{Path, PathBuf};

use pb_model::gguf::{GgufFile, MatrixType, write_model};
use pb_model::{ChatMessage, DetokenizeStream, Tokenizer, load};
use serde_json::Value;

/// The folder with golden files: named by a variable, in the tree, or beside the checkout.
fn golden_dir() -> Option<PathBuf> {
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| Path::new(&dir).join("golden"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let above = root
        .ancestors()
        .flat_map(|dir| [dir.join("golden/logits"), dir.join("shared/golden")]);
    named
        .into_iter()
        .chain(above)
        .find(|dir| dir.join("chat_sky.json").is_file())
}

/// The model file: where `PREFILLBENCH_TEST_MODEL` says, else in the cache directory.
fn model_path() -> Option<PathBuf> {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let home = var("PREFILLBENCH_HOME")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("prefillbench")))
        .or_else(|| Some(var("HOME")?.join(".cache/prefillbench")));
    var("PREFILLBENCH_TEST_MODEL")
        .or_else(|| Some(home?.join("models/SmolLM2-135M-Instruct.Q4_1.gguf")))
        .filter(|path| path.is_file())
}

/// Both, or a message about what is missing.
fn inputs() -> Option<(PathBuf, PathBuf)> {
    let found = model_path().zip(golden_dir());
    if found.is_none() {
        eprintln!("skipped: needs `prefillbench model fetch smollm2-135m` and the golden files");
    }
    found
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn token_ids_equal_the_golden_files_and_decode_back() {
    let Some((model, golden)) = inputs() else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(&model).unwrap().header).unwrap();
    let mut checked = 0;
    for name in [
        "austen_a_337",
        "austen_b_64",
        "austen_c_512",
        "chat_sky",
        "jargon_1031",
        "single_token",
    ] {
        let file = read_json(&golden.join(format!("{name}.json")));
        let text = file["text"].as_str().unwrap();
        let expected: Vec<u32> = file["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_u64().unwrap() as u32)
            .collect();
        // The model adds no begin token, so both ways of encoding agree.
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{name}");
        assert_eq!(tokenizer.encode(text, true).unwrap(), expected, "{name}");
        assert_eq!(tokenizer.decode(&expected, false), text, "{name}");
        let mut stream = DetokenizeStream::new(&tokenizer, false);
        let mut streamed: String = expected
            .iter()
            .map(|id| stream.push(&tokenizer, *id))
            .collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, text, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 6);
}

#[test]
fn the_chat_template_renders_the_golden_prompt() {
    let Some((model, golden)) = inputs() else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(&model).unwrap().header).unwrap();
    let file = read_json(&golden.join("chat_sky.json"));
    let question = "Explain in two sentences why the sky is blue.";
    let rendered = tokenizer.apply_chat_template(&[ChatMessage::new("user", question)], true);
    assert_eq!(rendered.unwrap(), file["text"].as_str().unwrap());
}

#[test]
fn the_file_loads_with_the_published_shape_and_digest() {
    let Some((path, golden)) = inputs() else {
        return;
    };
    let model = load(&path).unwrap();
    let file = read_json(&golden.join("single_token.json"));
    assert_eq!(
        model.identity.sha256,
        file["model_sha256"].as_str().unwrap()
    );
    let c = &model.config;
    assert_eq!(
        (c.layers, c.hidden, c.q_heads, c.kv_heads, c.d_head),
        (30, 576, 9, 3, 64)
    );
    assert_eq!(
        (c.ffn, c.vocab, c.max_position, c.rope_theta),
        (1536, 49152, 8192, 1e5)
    );
    assert_eq!(
        (c.tied_embeddings, c.qkv_bias, c.bos_id),
        (true, false, Some(1))
    );
    assert_eq!(c.eos_ids, [2]);
    // SmolLM2-135M's model card: 134.5 million parameters.
    assert_eq!(model.weights.parameter_count(), 134_515_008);

    let source = GgufFile::open(&path).unwrap();
    let mut out = Vec::new();
    write_model(
        &mut out,
        &model.weights,
        &source.header.metadata,
        MatrixType::Bf16,
    )
    .unwrap();
    let header = pb_model::gguf::Header::parse(&out).unwrap();
    let (config, weights) = pb_model::gguf::config_and_weights(&header, &out).unwrap();
    assert_eq!(&config, c);
    // Order and permutation survive: every value is within bf16's rounding of the source's.
    for (layer, source) in weights.layers.iter().zip(&model.weights.layers) {
        for (a, b) in layer.k.data.iter().zip(&source.k.data) {
            assert!((a - b).abs() <= b.abs() / 256.0);
        }
    }
}
