//! Reading PEFT folders: what is accepted, and that everything else is refused by name.

use std::path::Path;

use half::{bf16, f16};
use pb_contract::Stream;
use pb_model::lora::{AdapterSet, LoraAdapter, Projection, synth};
use pb_model::synth::{Size, config};
use pb_model::{LlamaConfig, ModelError};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// A folder with a generated adapter of rank 4, alpha 8.
struct Folder {
    dir: tempfile::TempDir,
    config: LlamaConfig,
}

impl Folder {
    fn new() -> Folder {
        let (dir, config) = (tempfile::tempdir().unwrap(), config(Size::Tiny));
        synth::write_dir(dir.path(), &config, 4, 8.0, 1).unwrap();
        Folder { dir, config }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn load(&self) -> Result<LoraAdapter, ModelError> {
        LoraAdapter::load("x", self.path(), &self.config)
    }

    /// Changes the config, loads, and changes it back.
    fn load_with(&self, key: &str, value: Value) -> Result<LoraAdapter, ModelError> {
        let path = self.path().join(CONFIG);
        let before = std::fs::read_to_string(&path).unwrap();
        let mut document: Value = serde_json::from_str(&before).unwrap();
        document[key] = value;
        std::fs::write(&path, document.to_string()).unwrap();
        let result = self.load();
        std::fs::write(&path, before).unwrap();
        result
    }

    /// Rewrites the tensors: `change` gets name, shape and values and may drop one.
    fn rewrite(&self, dtype: Dtype, change: impl Fn(&str, &mut Vec<usize>, &mut Vec<f32>) -> bool) {
        let path = self.path().join(WEIGHTS);
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut kept = Vec::new();
        for (name, view) in file.tensors() {
            let words = view.data().chunks_exact(4);
            let mut values: Vec<f32> = words
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            let mut shape = view.shape().to_vec();
            if change(&name, &mut shape, &mut values) {
                kept.push((name, shape, encode(dtype, &values)));
            }
        }
        let views = kept
            .iter()
            .map(|(n, s, b)| (n.clone(), TensorView::new(dtype, s.clone(), b).unwrap()));
        std::fs::write(&path, serialize(views, None).unwrap()).unwrap();
    }
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let bytes = |v: &f32| match dtype {
        Dtype::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
        _ => v.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn message(result: Result<LoraAdapter, ModelError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_written_folder_loads_as_the_generated_adapter() {
    let folder = Folder::new();
    let loaded = folder.load().unwrap();
    assert_eq!(loaded, synth::adapter("x", &folder.config, 4, 8.0, 1));
    // 2 layers of width 64: q, o 64 + 64; k, v 64 + 32; gate, up, down 64 + 128; times rank 4.
    assert_eq!(
        loaded.parameter_count(),
        2 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    );
    assert_eq!(loaded.delta(1, Projection::Down).unwrap().scale, 2.0);
    assert!(loaded.delta(2, Projection::Down).is_none());
}

#[test]
fn half_precision_is_widened_exactly() {
    for dtype in [Dtype::F16, Dtype::BF16] {
        let folder = Folder::new();
        let before = folder.load().unwrap();
        folder.rewrite(dtype, |_, _, _| true);
        let after = folder.load().unwrap();
        let rounded = |v: &f32| match dtype {
            Dtype::F16 => f16::from_f32(*v).to_f32(),
            _ => bf16::from_f32(*v).to_f32(),
        };
        let (want, got) = (
            before.delta(0, Projection::Up),
            after.delta(0, Projection::Up),
        );
        let want: Vec<f32> = want.unwrap().b.iter().map(rounded).collect();
        assert_eq!(got.unwrap().b, want);
    }
}

#[test]
fn scales() {
    let folder = Folder::new();
    let scale = |key: &str, value: Value| {
        let adapter = folder.load_with(key, value).unwrap();
        adapter.delta(0, Projection::Q).unwrap().scale
    };
    assert_eq!(scale("lora_alpha", json!(6)), 1.5);
    assert_eq!(scale("lora_alpha", json!(0.5)), 0.125);
    // alpha / sqrt(r) = 8 / 2.
    assert_eq!(scale("use_rslora", json!(true)), 4.0);
}

#[test]
fn the_digest_is_of_what_is_computed() {
    let folder = Folder::new();
    let digest = folder.load().unwrap().digest;
    let same = |key: &str, value: Value| folder.load_with(key, value).unwrap().digest == digest;
    // Spelled otherwise, or of no effect on inference.
    assert!(same("target_modules", json!("all-linear")));
    assert!(same("lora_dropout", json!(0.1)));
    assert!(same("base_model_name_or_path", json!("elsewhere")));
    assert!(!same("lora_alpha", json!(9)));
    assert!(!same("use_rslora", json!(true)));
    let other = LoraAdapter::load("another name", folder.path(), &folder.config).unwrap();
    assert_eq!(other.digest, digest);
    // One value of one tensor, by one ulp.
    folder.rewrite(Dtype::F32, |name, _, values| {
        if name.contains("layers.1.mlp.up_proj.lora_B") {
            values[17] = f32::from_bits(values[17].to_bits() ^ 1);
        }
        true
    });
    assert_ne!(folder.load().unwrap().digest, digest);
}

#[test]
fn targets_may_be_a_list_a_pattern_or_some_layers() {
    let folder = Folder::new();
    let attention = |name: &str| name.contains("self_attn.q_proj") || name.contains("v_proj");
    folder.rewrite(Dtype::F32, |name, _, _| attention(name));
    let adapted = |adapter: LoraAdapter| {
        let all = (0..2).flat_map(|l| Projection::ALL.map(|p| (l, p)));
        all.filter(|(l, p)| adapter.delta(*l, *p).is_some()).count()
    };
    let load = |value| folder.load_with("target_modules", value);
    assert_eq!(adapted(load(json!(["q_proj", "v_proj"])).unwrap()), 4);
    assert_eq!(
        adapted(load(json!(["self_attn.q_proj", "v_proj"])).unwrap()),
        4
    );
    assert_eq!(adapted(load(json!(".*\\.(q|v)_proj")).unwrap()), 4);
    // The config asks for k, the file lacks it.
    let text = message(load(json!(["q_proj", "k_proj", "v_proj"])));
    let missing = "layers.0.self_attn.k_proj.lora_A.weight`: is missing";
    assert!(text.contains(missing), "{text}");
    // The file has v, the config does not ask for it.
    let text = message(load(json!(["q_proj"])));
    assert!(
        text.contains("layers.0.self_attn.v_proj.lora_A.weight"),
        "{text}"
    );
    folder.rewrite(Dtype::F32, |name, _, _| {
        name.contains("layers.1.self_attn.q")
    });
    let one = folder.load_with("target_modules", json!(["model.layers.1.self_attn.q_proj"]));
    assert_eq!(adapted(one.unwrap()), 1);
}

#[test]
fn unsupported_options_are_refused_with_key_and_value() {
    let folder = Folder::new();
    let cases = [
        ("peft_type", json!("LOHA"), "only LORA"),
        ("r", json!(0), "1 to 1024"),
        ("r", json!(1_000_000), "1 to 1024"),
        ("r", json!("8"), "1 to 1024"),
        ("lora_alpha", json!("x"), "finite number"),
        ("lora_alpha", json!(1e300), "finite number"),
        ("bias", json!("all"), "none"),
        ("use_dora", json!(true), "unsupported"),
        ("fan_in_fan_out", json!(true), "unsupported"),
        ("modules_to_save", json!(["lm_head"]), "unsupported"),
        ("rank_pattern", json!({"q_proj": 8}), "unsupported"),
        ("alpha_pattern", json!({"q_proj": 8}), "unsupported"),
        ("layer_replication", json!([[0, 2]]), "unsupported"),
        ("init_lora_weights", json!("pissa"), "base weights"),
        ("use_rslora", json!("yes"), "true or false"),
        ("target_modules", json!([]), "a list"),
        ("target_modules", json!(null), "a list"),
        ("target_modules", json!(["q_proj", "lm_head"]), "lm_head"),
        ("target_modules", json!([7]), "names"),
        ("layers_to_transform", json!([0, 2]), "layers 0 to 1"),
        ("layers_to_transform", json!([-1]), "layer number"),
        ("layers_pattern", json!("blocks"), "layers"),
    ];
    for (key, value, hint) in cases {
        let text = message(folder.load_with(key, value.clone()));
        assert!(
            text.contains(key) && text.contains(hint),
            "{key} {value}: {text}"
        );
        assert!(text.contains(CONFIG), "{text}");
    }
    assert!(folder.load().is_ok(), "the folder itself is fine");
}

#[test]
fn wrong_tensors_are_refused_with_file_and_name() {
    let name = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight";
    let refuse = |hint: &str, change: &dyn Fn(&mut Vec<usize>, &mut Vec<f32>) -> bool| {
        let folder = Folder::new();
        folder.rewrite(Dtype::F32, |n, shape, values| {
            n != name || change(shape, values)
        });
        let text = message(folder.load());
        let all = [hint, name, WEIGHTS];
        assert!(all.iter().all(|part| text.contains(part)), "{hint}: {text}");
    };
    refuse("is missing", &|_, _| false);
    refuse("has shape [64, 4]", &|shape, _| {
        shape.reverse();
        true
    });
    refuse("value 5 is NaN", &|_, values| {
        values[5] = f32::NAN;
        true
    });
    // A rank in the config that the tensors do not have.
    let folder = Folder::new();
    let text = message(folder.load_with("r", json!(8)));
    assert!(
        text.contains("has shape [4, 64]") && text.contains("[8, 64]"),
        "{text}"
    );
    // An adapter of a larger model.
    let text = message(LoraAdapter::load("x", folder.path(), &config(Size::Small)));
    assert!(text.contains("has shape [4, 64]"), "{text}");
}

#[test]
fn broken_folders_are_refused_by_name() {
    let folder = Folder::new();
    let (weights, json) = (folder.path().join(WEIGHTS), folder.path().join(CONFIG));
    let good = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &good[..good.len() / 2]).unwrap();
    assert!(folder.load().is_err());
    std::fs::remove_file(&weights).unwrap();
    assert!(message(folder.load()).contains("has no adapter_model.safetensors"));
    std::fs::write(&weights, &good).unwrap();
    std::fs::write(&json, "{").unwrap();
    assert!(message(folder.load()).contains(CONFIG));
    std::fs::write(&json, " ".repeat(1 << 20)).unwrap();
    assert!(message(folder.load()).contains("1 MiB"));
    std::fs::remove_file(&json).unwrap();
    assert!(message(folder.load()).contains(CONFIG));
}

#[test]
fn mutated_files_neither_panic_nor_load_by_chance() {
    let folder = Folder::new();
    let digest = folder.load().unwrap().digest;
    let path = folder.path().join(WEIGHTS);
    let good = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap());
    let mut stream = Stream::new(31, "adapter mutation");
    let mut refused = 0;
    for _ in 0..200 {
        let mut bytes = good.clone();
        let at = stream.below(header) as usize;
        bytes[at] = b"0123456789[]{},:\"F\xff"[stream.below(19) as usize];
        std::fs::write(&path, &bytes).unwrap();
        match folder.load() {
            // The mutation hit a number that still fits: other values, so another digest.
            Ok(adapter) => assert!(adapter.digest != digest || header_agrees(&bytes, &good)),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Whether two files describe the same tensors: the mutation was a no-op or hit free text.
fn header_agrees(a: &[u8], b: &[u8]) -> bool {
    let tensors = |bytes: &[u8]| -> Vec<(String, Vec<u8>)> {
        let file = SafeTensors::deserialize(bytes).unwrap();
        let mut all: Vec<_> = file
            .tensors()
            .into_iter()
            .map(|(n, v)| (n, v.data().to_vec()))
            .collect();
        all.sort();
        all
    };
    tensors(a) == tensors(b)
}

#[test]
fn sets_need_different_names_and_decoders_fitting_adapters() {
    let shape = config(Size::Tiny);
    let make = |name: &str| synth::adapter(name, &shape, 2, 2.0, 1);
    let set = AdapterSet::new(vec![make("a"), make("b")]).unwrap();
    assert_eq!(
        (set.index("b"), set.index("c"), set.len()),
        (Some(1), None, 2)
    );
    assert_eq!(set.get(1).unwrap().name, "b");
    let twice = AdapterSet::new(vec![make("a"), make("a")]).unwrap_err();
    assert!(twice.to_string().contains("\"a\""), "{twice}");
    assert!(AdapterSet::new(vec![make("")]).is_err());
    let other = make("a").check_fits(&config(Size::Small)).unwrap_err();
    assert!(other.to_string().contains("adapter a"), "{other}");
}
