//! A PEFT folder: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use super::config::{CONFIG_FILE, PeftConfig};
use super::{LayerDeltas, LoraAdapter, LowRank, Projection};
use crate::config::LlamaConfig;
use crate::error::{ModelError, Result};
use crate::hf::Shard;

/// The weights' file name.
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// Longest config that is read; PEFT writes about 1 KiB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

impl LoraAdapter {
    /// Loads a PEFT folder for a model of shape `config` under the name `name`.
    ///
    /// Memory is bounded before anything is read: by `config`'s shapes and the rank.
    ///
    /// # Errors
    /// [`ModelError::Io`] or [`ModelError::Format`] naming the file, [`ModelError::Config`] naming
    /// key, value and what is supported, [`ModelError::Tensor`] naming a tensor that is missing,
    /// unexpected, misshapen or not finite.
    pub fn load(name: &str, dir: &Path, config: &LlamaConfig) -> Result<LoraAdapter> {
        let peft = read_config(dir)?;
        check_layers(dir, &peft, config)?;
        let path = dir.join(WEIGHTS_FILE);
        if !path.is_file() {
            let problem = format!("has no {WEIGHTS_FILE}; save the adapter as safetensors");
            return Err(ModelError::format(dir.display().to_string(), problem));
        }
        let shard = Shard::open(&path)?;
        let mut expected = BTreeSet::new();
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            let mut deltas = LayerDeltas::default();
            for projection in Projection::ALL {
                let [a, b] = tensor_names(layer, projection);
                let present = || shard.contains(&a) || shard.contains(&b);
                if peft.wants(layer, projection).unwrap_or_else(present) {
                    let delta = read(&shard, &peft, [&a, &b], projection.shape(config));
                    deltas[projection as usize] = Some(delta.map_err(|e| at(&path, e))?);
                    expected.extend([a, b]);
                }
            }
            layers.push(deltas);
        }
        if let Some(other) = shard.names().find(|name| !expected.contains(*name)) {
            let problem = "is not the A or B of a module that the config adapts in this model";
            return Err(at(&path, ModelError::tensor(other, problem)));
        }
        if expected.is_empty() {
            return Err(ModelError::format(
                path.display().to_string(),
                "adapts nothing",
            ));
        }
        Ok(LoraAdapter::new(name, layers))
    }
}

/// Names of A and B.
pub(super) fn tensor_names(layer: usize, projection: Projection) -> [String; 2] {
    let module = format!(
        "base_model.model.model.layers.{layer}.{}",
        projection.path()
    );
    ["lora_A", "lora_B"].map(|side| format!("{module}.{side}.weight"))
}

/// Reads the config, refusing a file that cannot be one before it is in memory.
fn read_config(dir: &Path) -> Result<PeftConfig> {
    let path = dir.join(CONFIG_FILE);
    let file = std::fs::File::open(&path).map_err(|e| ModelError::io(&path, e))?;
    let mut json = String::new();
    let read = file.take(MAX_CONFIG_BYTES).read_to_string(&mut json);
    let origin = path.display().to_string();
    if read.map_err(|e| ModelError::io(&path, e))? as u64 == MAX_CONFIG_BYTES {
        return Err(ModelError::format(origin, "is 1 MiB or longer"));
    }
    PeftConfig::parse(&origin, &json)
}

/// Every layer of `layers_to_transform` must exist.
fn check_layers(dir: &Path, peft: &PeftConfig, config: &LlamaConfig) -> Result<()> {
    let layers = peft.layers.iter().flatten();
    match layers.copied().find(|layer| *layer >= config.layers) {
        None => Ok(()),
        Some(layer) => Err(ModelError::Config {
            origin: dir.join(CONFIG_FILE).display().to_string(),
            key: "layers_to_transform".into(),
            value: layer.to_string(),
            problem: format!("the model has layers 0 to {}", config.layers - 1),
        }),
    }
}

/// Reads A and B of one module.
fn read(
    shard: &Shard,
    peft: &PeftConfig,
    [a, b]: [&str; 2],
    (outputs, inputs): (usize, usize),
) -> Result<LowRank> {
    let values = |name: &str, shape: [usize; 2]| {
        let values = shard.read(name, &shape)?;
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(i) => {
                let problem = format!("value {i} is {}: all must be finite", values[i]);
                Err(ModelError::tensor(name, problem))
            }
        }
    };
    Ok(LowRank {
        rank: peft.rank,
        a: values(a, [peft.rank, inputs])?,
        b: values(b, [outputs, peft.rank])?,
        scale: peft.scale(),
    })
}

/// Adds the file to an error about one of its tensors.
fn at(path: &Path, error: ModelError) -> ModelError {
    match error {
        ModelError::Tensor { name, problem } => ModelError::Tensor {
            name: format!("{}: {name}", path.display()),
            problem,
        },
        other => other,
    }
}
