//! `adapter_config.json` as PEFT writes it.
//!
//! An option that would change the result and is not computed here is refused by name: an adapter
//! that is applied almost as trained answers fluently and wrongly.

use serde_json::{Map, Value};

use super::Projection;
use crate::error::{ModelError, Result};

/// The config's file name.
pub(super) const CONFIG_FILE: &str = "adapter_config.json";
/// Largest rank that is read; published adapters stay at or below 512.
const MAX_RANK: u64 = 1024;
/// Options that must be absent, null, false or empty, because the forward pass does not have them.
const UNSUPPORTED: &[&str] = &[
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "exclude_modules",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "lora_ga_config",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];
/// Initialisations that leave the base model's weights alone. Others (PiSSA, OLoRA, CorDA,
/// LoftQ) subtract from them what they put into the adapter.
const HARMLESS_INITIALISATIONS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// Which modules an adapter changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Targets {
    /// Every projection of every layer.
    AllLinear,
    /// Modules whose dotted name is one of these or ends with one.
    Names(Vec<String>),
    /// A pattern in Python's syntax, which is not evaluated: the tensors in the file are those of
    /// the modules that it matched.
    Pattern,
}

/// What matters of an adapter's config.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PeftConfig {
    /// Rows of A.
    pub(super) rank: usize,
    /// Numerator of the scale.
    pub(super) alpha: f64,
    /// Whether the scale divides by the root of the rank (rank-stabilised LoRA).
    pub(super) rslora: bool,
    /// Modules.
    pub(super) targets: Targets,
    /// Layers; `None` means all.
    pub(super) layers: Option<Vec<usize>>,
}

impl PeftConfig {
    /// Reads the JSON text; `origin` names the file in errors.
    ///
    /// # Errors
    /// [`ModelError::Format`] or [`ModelError::Config`] naming the key, its value and what is
    /// supported.
    pub(super) fn parse(origin: &str, json: &str) -> Result<PeftConfig> {
        let value: Value = serde_json::from_str(json).map_err(|e| ModelError::format(origin, e))?;
        let map = value
            .as_object()
            .ok_or_else(|| ModelError::format(origin, "not an object"))?;
        let keys = Keys { origin, map };
        keys.refuse_unsupported()?;
        Ok(PeftConfig {
            rank: keys.rank()?,
            alpha: keys.alpha()?,
            rslora: keys.flag("use_rslora")?,
            targets: keys.targets()?,
            layers: keys.layers()?,
        })
    }

    /// What `B A x` is multiplied by: `alpha / r`, or `alpha / sqrt(r)` with `use_rslora`.
    pub(super) fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Whether `projection` of `layer` is adapted; `None` when only the file can tell.
    pub(super) fn wants(&self, layer: usize, projection: Projection) -> Option<bool> {
        if self.layers.as_ref().is_some_and(|l| !l.contains(&layer)) {
            return Some(false);
        }
        match &self.targets {
            Targets::AllLinear => Some(true),
            Targets::Pattern => None,
            Targets::Names(names) => Some(names.iter().any(|n| named(n, layer, projection))),
        }
    }
}

/// PEFT's rule for a list entry: it is the module's dotted name or ends it after a dot.
fn named(entry: &str, layer: usize, projection: Projection) -> bool {
    let module = format!("model.layers.{layer}.{}", projection.path());
    module == entry || module.ends_with(&format!(".{entry}"))
}

/// The object's entries; `null` counts as missing.
struct Keys<'a> {
    origin: &'a str,
    map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn bad(&self, key: &str, problem: impl Into<String>) -> ModelError {
        let value = self
            .map
            .get(key)
            .map_or("(missing)".to_string(), Value::to_string);
        ModelError::Config {
            origin: self.origin.into(),
            key: key.into(),
            value: value.chars().take(120).collect(),
            problem: problem.into(),
        }
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.bad(key, "must be true or false")),
        }
    }

    fn refuse_unsupported(&self) -> Result<()> {
        if self.get("peft_type").and_then(Value::as_str) != Some("LORA") {
            return Err(self.bad("peft_type", "only LORA adapters are supported"));
        }
        if self.get("bias").is_some_and(|b| b != "none") {
            return Err(self.bad("bias", "must be \"none\": biases are not adapted"));
        }
        for key in UNSUPPORTED {
            let empty = match self.get(key) {
                None | Some(Value::Bool(false)) => true,
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !empty {
                let problem = "is unsupported; merge this adapter into the model's weights";
                return Err(self.bad(key, problem));
            }
        }
        let harmless = match self.get("init_lora_weights") {
            None | Some(Value::Bool(_)) => true,
            Some(value) => value
                .as_str()
                .is_some_and(|name| HARMLESS_INITIALISATIONS.contains(&name)),
        };
        if harmless {
            return Ok(());
        }
        let problem = "changes the base weights; save the adapter converted to plain LoRA";
        Err(self.bad("init_lora_weights", problem))
    }

    fn rank(&self) -> Result<usize> {
        let rank = self.get("r").and_then(Value::as_u64);
        rank.filter(|r| (1..=MAX_RANK).contains(r))
            .map(|r| r as usize)
            .ok_or_else(|| self.bad("r", format!("must be a whole number, 1 to {MAX_RANK}")))
    }

    fn alpha(&self) -> Result<f64> {
        let alpha = self.get("lora_alpha").and_then(Value::as_f64);
        alpha
            .filter(|a| (*a as f32).is_finite())
            .ok_or_else(|| self.bad("lora_alpha", "must be a finite number"))
    }

    fn targets(&self) -> Result<Targets> {
        let key = "target_modules";
        let list = match self.get(key) {
            Some(Value::String(text)) if text == "all-linear" => return Ok(Targets::AllLinear),
            Some(Value::String(_)) => return Ok(Targets::Pattern),
            Some(Value::Array(list)) if !list.is_empty() => list,
            _ => return Err(self.bad(key, "must be a list of modules, or a pattern")),
        };
        let mut names = Vec::new();
        for entry in list {
            let name = entry
                .as_str()
                .ok_or_else(|| self.bad(key, "must list names"))?;
            if !Projection::ALL.iter().any(|p| is_target(name, *p)) {
                let known = Projection::ALL.map(Projection::name).join(", ");
                let problem = format!("{name:?} cannot be adapted here; supported are {known}");
                return Err(self.bad(key, problem));
            }
            names.push(name.to_string());
        }
        names.sort();
        names.dedup();
        Ok(Targets::Names(names))
    }

    fn layers(&self) -> Result<Option<Vec<usize>>> {
        let pattern = self.get("layers_pattern");
        if pattern.is_some_and(|p| p != "layers" && p.as_array().is_none_or(|l| !l.is_empty())) {
            return Err(self.bad("layers_pattern", "must be \"layers\" or absent"));
        }
        let key = "layers_to_transform";
        let index = |v: &Value| {
            let index = v.as_u64().and_then(|i| usize::try_from(i).ok());
            index.ok_or_else(|| self.bad(key, "must be a layer number or a list of them"))
        };
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list.iter().map(index).collect::<Result<_>>()?)),
            Some(one) => Ok(Some(vec![index(one)?])),
        }
    }
}

/// Whether a list entry can name `projection`, of whatever layer: it ends with the module's own
/// name, and what comes before that is the end of its path.
fn is_target(entry: &str, projection: Projection) -> bool {
    let parts: Vec<&str> = entry.split('.').collect();
    let layer = match parts.len() {
        0..=2 => Some(0),
        n => parts[n - 3].parse().ok(),
    };
    layer.is_some_and(|layer| named(entry, layer, projection))
}
