use super::*;
use crate::gguf::write::write_gguf;
use crate::gguf::{ArrayValue, Value};

/// A GGUF header with only a tokenizer: the 256 bytes, then `extra` tokens with their types.
fn header(pre: &str, extra: &[(&str, i32)], merges: &[&str], more: &[(&str, Value)]) -> Header {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_to_char(b).to_string()).collect();
    let mut types = vec![1; 256];
    for (text, kind) in extra {
        tokens.push(text.to_string());
        types.push(*kind);
    }
    let mut metadata = vec![
        (
            "tokenizer.ggml.model".to_string(),
            Value::String("gpt2".into()),
        ),
        ("tokenizer.ggml.pre".to_string(), Value::String(pre.into())),
        (
            "tokenizer.ggml.tokens".to_string(),
            Value::Array(ArrayValue::of_strings(&tokens)),
        ),
        (
            "tokenizer.ggml.token_type".to_string(),
            Value::Array(ArrayValue::of_i32s(types)),
        ),
        (
            "tokenizer.ggml.merges".to_string(),
            Value::Array(ArrayValue::of_strings(merges)),
        ),
    ];
    metadata.extend(
        more.iter()
            .map(|(key, value)| (key.to_string(), value.clone())),
    );
    let mut file = Vec::new();
    write_gguf(&mut file, &metadata, &[]).unwrap();
    Header::parse(&file).unwrap()
}

/// Ids of `text`, spelled as token texts.
fn spelled(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer
        .encode(text, false)
        .unwrap()
        .iter()
        .map(|id| tokenizer.token_str(*id))
        .collect()
}

#[test]
fn merges_apply_by_rank() {
    let extra = [("he", 1), ("ll", 1), ("hell", 1), ("Ġhe", 1)];
    let merges = ["h e", "l l", "he ll", "Ġ he"];
    let tokenizer = Tokenizer::from_gguf(&header("gpt-2", &extra, &merges, &[])).unwrap();
    // "hello": h+e first, then l+l, then he+ll; " he": Ġ+he after h+e.
    assert_eq!(spelled(&tokenizer, "hello he"), ["hell", "o", " he"]);
    assert_eq!(tokenizer.encode("he", false).unwrap(), [256]);
    assert_eq!(tokenizer.longest_token_bytes(), 4, "hell");
}

#[test]
fn pre_tokenizers_cut_digits_as_published() {
    let extra = [("12", 1), ("123", 1), ("1234", 1)];
    let merges = ["1 2", "12 3", "123 4"];
    // Qwen2: digit by digit. Llama 3: at most three. GPT-2, and SmolLM as transformers converts
    // it: the whole run.
    let expected: [(&str, &[&str]); 4] = [
        ("smollm", &["1234"]),
        ("qwen2", &["1", "2", "3", "4"]),
        ("llama-bpe", &["123", "4"]),
        ("gpt-2", &["1234"]),
    ];
    for (pre, pieces) in expected {
        let more = [("tokenizer.ggml.bos_token_id", Value::U32(0))];
        let tokenizer = Tokenizer::from_gguf(&header(pre, &extra, &merges, &more)).unwrap();
        assert_eq!(spelled(&tokenizer, "1234"), pieces, "{pre}");
        let text = "It's 1234 ways\r\n\r\n  to   cut, don't?\t😀";
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text, "{pre}");
    }
}

#[test]
fn a_space_run_before_a_digit_leaves_one_space_to_it() {
    // GPT-2's expression matches all but the last space first, then " 1".
    let tokenizer = Tokenizer::from_gguf(&header("smollm", &[("ĠĠ", 1)], &["Ġ Ġ"], &[])).unwrap();
    assert_eq!(spelled(&tokenizer, "   1"), ["  ", " ", "1"]);
}

#[test]
fn llama3_puts_its_begin_token_in_front_and_skips_merges_for_whole_words() {
    // "abc" is a token without a merge that makes it: ignore_merges finds it all the same.
    let extra = [("<|begin|>", 3), ("abc", 1)];
    let more = [("tokenizer.ggml.bos_token_id", Value::U32(256))];
    let llama = Tokenizer::from_gguf(&header("llama-bpe", &extra, &[], &more)).unwrap();
    assert_eq!(llama.encode("abc", true).unwrap(), [256, 257]);
    assert_eq!(llama.encode("abc", false).unwrap(), [257]);
    let gpt2 = Tokenizer::from_gguf(&header("gpt-2", &extra, &[], &more)).unwrap();
    assert_eq!(gpt2.encode("abc", true).unwrap(), [97, 98, 99]);
    let more = [
        more[0].clone(),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ];
    let gpt2 = Tokenizer::from_gguf(&header("gpt-2", &extra, &[], &more)).unwrap();
    assert_eq!(gpt2.encode("a", true).unwrap(), [256, 97]);
}

#[test]
fn control_tokens_are_special_and_user_tokens_are_not() {
    let extra = [("<|end|>", 3), ("<tool é>", 4)];
    let tokenizer = Tokenizer::from_gguf(&header("smollm", &extra, &[], &[])).unwrap();
    let ids = tokenizer.encode("a<tool é>b<|end|>", false).unwrap();
    assert_eq!(ids, [97, 257, 98, 256]);
    assert_eq!(tokenizer.decode(&ids, true), "a<tool é>b");
    assert_eq!(tokenizer.decode(&ids, false), "a<tool é>b<|end|>");
    assert!(tokenizer.is_special(256) && !tokenizer.is_special(257));
    assert_eq!(tokenizer.token_id("<|end|>"), Some(256));
    assert_eq!(tokenizer.token_bytes(999), b"");
}

#[test]
fn unusable_vocabularies_are_named() {
    let refused = |header: &Header| Tokenizer::from_gguf(header).unwrap_err().to_string();
    assert!(refused(&header("deepseek", &[], &[], &[])).contains("deepseek"));
    // The crate underneath panics on a merge that is longer than every token.
    let long = refused(&header("gpt-2", &[("ab", 1)], &["ab ab"], &[]));
    assert!(long.contains("merges") && long.contains("abab"), "{long}");
    assert!(refused(&header("gpt-2", &[], &["ab"], &[])).contains("no space"));
    assert!(refused(&header("gpt-2", &[("a", 1)], &[], &[])).contains("97 and 256"));
    let no_bos = [("tokenizer.ggml.add_bos_token", Value::Bool(true))];
    assert!(refused(&header("gpt-2", &[], &[], &no_bos)).contains("bos_token_id"));
    let mut spm = Vec::new();
    let model = (
        "tokenizer.ggml.model".to_string(),
        Value::String("llama".into()),
    );
    write_gguf(&mut spm, &[model], &[]).unwrap();
    let text = refused(&Header::parse(&spm).unwrap());
    assert!(
        text.contains("tokenizer.ggml.model") && text.contains("llama"),
        "{text}"
    );
}

/// A SentencePiece-like tokenizer.json with byte fallback.
fn fallback_json() -> String {
    serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
            "stride": 0},
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": null,
            "vocab": {"<s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "<0xC3>": 5, "<0xA9>": 6},
            "merges": ["▁ a"]},
    })
    .to_string()
}

#[test]
fn byte_fallback_vocabularies_decode_to_the_text() {
    let tokenizer = Tokenizer::from_json(&fallback_json()).unwrap();
    // Prepend gives "▁a▁abé"; é is not a token and falls back to its two bytes. The file's
    // truncation to two tokens must not apply.
    let ids = tokenizer.encode("a abé", true).unwrap();
    assert_eq!(ids, [0, 4, 4, 3, 5, 6]);
    assert_eq!(tokenizer.decode(&ids, true), "a abé");
    assert_eq!(tokenizer.token_bytes(5), [0xc3]);
}

#[test]
fn unusable_tokenizer_files_are_named() {
    let refused = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut file: serde_json::Value = serde_json::from_str(&fallback_json()).unwrap();
        edit(&mut file);
        Tokenizer::from_json(&file.to_string())
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&|f| f["model"]["type"] = "Unigram".into()).contains("Unigram"));
    assert!(refused(&|f| f["model"]["merges"] = serde_json::json!(["▁a ▁a"])).contains("▁a▁a"));
    assert!(refused(&|f| f["model"]["merges"] = serde_json::json!([["a"]])).contains("pair"));
    assert!(refused(&|f| f["model"]["vocab"]["a"] = (-1).into()).contains("vocab"));
    let word_piece = refused(&|f| f["decoder"] = serde_json::json!({"type": "WordPiece"}));
    assert!(word_piece.contains("WordPiece"));
    assert!(Tokenizer::from_json("{").is_err() && Tokenizer::from_json("{}").is_err());
}
