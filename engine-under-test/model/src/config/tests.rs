use super::*;

/// A valid small config with one entry replaced or added.
fn json_with(entry: &str) -> String {
    let base = r#""model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 288, "rms_norm_eps": 1e-5, "max_position_embeddings": 512"#;
    // Later entries of the same key win in serde_json, so an override can simply follow.
    format!(
        "{{{base}{}{entry}}}",
        if entry.is_empty() { "" } else { ", " }
    )
}

fn parse_with(entry: &str) -> Result<LlamaConfig> {
    LlamaConfig::from_hf_json(&json_with(entry))
}

#[test]
fn published_files_are_understood() {
    // Llama 3.1 8B's config.json, as published.
    let json = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 128256}"#;
    let c = LlamaConfig::from_hf_json(json).unwrap();
    assert_eq!(
        (c.d_head, c.group(), c.q_dim(), c.kv_dim()),
        (128, 4, 4096, 1024)
    );
    assert_eq!(c.eos_ids, [128001, 128008, 128009]);
    assert_eq!(
        (c.bos_id, c.tied_embeddings, c.qkv_bias),
        (Some(128000), false, false)
    );
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    };
    assert_eq!(c.rope_scaling, scaling);

    let qwen = parse_with(r#""model_type": "qwen2", "tie_word_embeddings": true"#).unwrap();
    assert_eq!(
        (qwen.arch, qwen.qkv_bias, qwen.tied_embeddings),
        (Arch::Qwen2, true, true)
    );

    // Newer transformers put everything rotary into one object.
    let entry = r#""rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}"#;
    let new = parse_with(entry).unwrap();
    assert_eq!(
        (new.rope_theta, new.rope_scaling),
        (1e6, RopeScaling::Linear { factor: 4.0 })
    );
}

#[test]
fn errors_name_key_and_value() {
    let cases = [
        (r#""model_type": "mistral""#, "model_type", "mistral"),
        (r#""hidden_act": "gelu""#, "hidden_act", "gelu"),
        (r#""num_attention_heads": 5"#, "num_attention_heads", "5"),
        (r#""num_key_value_heads": 3"#, "q_heads", "4"),
        (r#""num_key_value_heads": 0"#, "kv_heads", "0"),
        (r#""head_dim": 15"#, "d_head", "15"),
        (r#""hidden_size": -64"#, "hidden_size", "-64"),
        (r#""hidden_size": 1e30"#, "hidden_size", "1e+30"),
        (r#""vocab_size": 4294967296"#, "vocab", "4294967296"),
        (r#""eos_token_id": [2, "x"]"#, "eos_token_id", "x"),
        (r#""eos_token_id": 288"#, "token id", "288"),
        (r#""rope_theta": 0.5"#, "rope_theta", "0.5"),
        (
            r#""rope_scaling": {"type": "yarn", "factor": 2}"#,
            "type",
            "yarn",
        ),
        (r#""rope_scaling": {"type": "linear"}"#, "factor", "missing"),
        (
            r#""rope_scaling": {"type": "linear", "factor": 0}"#,
            "factor",
            "0",
        ),
        (r#""rms_norm_eps": "small""#, "rms_norm_eps", "small"),
        (r#""attention_bias": true"#, "attention_bias", "true"),
        (
            r#""quantization_config": {"bits": 4}"#,
            "quantization_config",
            "bits",
        ),
        (r#""head_dim": 1073741824"#, "q_heads", "4"),
    ];
    for (entry, key, value) in cases {
        let text = parse_with(entry).expect_err(entry).to_string();
        assert!(
            text.contains(key) && text.contains(value),
            "{entry} gave: {text}"
        );
    }
    for broken in ["", "[]", "{", "null", "{\"model_type\": 3}"] {
        assert!(LlamaConfig::from_hf_json(broken).is_err(), "{broken}");
    }
}

#[test]
fn llama3_frequencies_match_transformers_formula() {
    // Computed with Python floats from the published formula, d = 16, theta = 5e5: the first
    // three are kept, number 4 is blended (wavelength 4443 of 2048 to 8192), the rest divided.
    let expected = [
        1.0,
        0.19392274474868576,
        0.03760603093086393,
        0.007292664737217109,
        0.0005248461609929547,
        3.428102195952591e-05,
        6.647869871181235e-06,
        1.2891731721515574e-06,
    ];
    let entry = r#""rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}"#;
    let got = parse_with(entry).unwrap().inv_freq();
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g / e - 1.0).abs() < 1e-14, "{g} against {e}");
    }
}

#[test]
fn plain_linear_and_listed_frequencies() {
    // theta = 16, d = 4 (head_dim): frequencies 1 and 16^(-1/2) = 1/4.
    let plain = parse_with(r#""rope_theta": 16.0, "head_dim": 4"#).unwrap();
    assert_eq!(plain.inv_freq(), [1.0, 0.25]);
    let linear = LlamaConfig {
        rope_scaling: RopeScaling::Linear { factor: 2.0 },
        ..plain.clone()
    };
    assert_eq!(linear.inv_freq(), [0.5, 0.125]);
    let listed = RopeScaling::Factors(vec![1.0, 8.0]);
    let listed = LlamaConfig {
        rope_scaling: listed,
        ..plain.clone()
    };
    assert_eq!(listed.inv_freq(), [1.0, 0.03125]);
    assert!(listed.validate().is_ok());
    let short = LlamaConfig {
        rope_scaling: RopeScaling::Factors(vec![1.0]),
        ..plain
    };
    assert!(short.validate().is_err());
}

#[test]
fn a_stored_config_reads_back() {
    let entry = r#""rope_scaling": {"type": "linear", "factor": 2.5}, "eos_token_id": [1, 2]"#;
    let mut config = parse_with(entry).unwrap();
    let copy: LlamaConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(copy, config);
    config.rope_scaling = RopeScaling::Factors(vec![1.0; 8]);
    let copy: LlamaConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(copy, config);
}

#[test]
fn mutated_configs_do_not_panic() {
    let seed = json_with(r#""rope_scaling": {"type": "linear", "factor": 2}, "eos_token_id": [1]"#);
    let mut stream = pb_contract::rng::Stream::new(5, "config mutation");
    let alphabet = b"0123456789-+eE.{}[]\",:ntf x";
    for _ in 0..4000 {
        let mut bytes = seed.clone().into_bytes();
        for _ in 0..1 + stream.below(4) {
            let at = stream.below(bytes.len() as u64) as usize;
            bytes[at] = alphabet[stream.below(alphabet.len() as u64) as usize];
        }
        bytes.truncate(bytes.len() - stream.below(3) as usize);
        crate::fuzz::fuzz_hf_config(&String::from_utf8(bytes).unwrap());
    }
    assert!(
        LlamaConfig::from_hf_json(&seed).is_ok(),
        "the seed itself is valid"
    );
}
