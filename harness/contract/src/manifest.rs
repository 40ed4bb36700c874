//! The receipt of a run: what was measured, on what, with which inputs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the run directory's layout; raised when a reader would misread an old one.
pub const RUN_SCHEMA_VERSION: u32 = 1;

/// Whether the writer of a run directory finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Being written, or its writer died.
    Running,
    /// Finished.
    Complete,
    /// Stopped on purpose before its end.
    Interrupted,
}

/// The tool that made the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVersion {
    /// Version of the binary.
    pub version: String,
    /// Revision of its sources, or `unknown`.
    pub git_rev: String,
    /// Whether the sources had uncommitted changes.
    pub git_dirty: bool,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Logical processors available to the process.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub os: String,
    /// Instruction set that the fast kernels use.
    pub isa: String,
}

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReceipt {
    /// Name.
    pub name: String,
    /// `gguf`, `safetensors` or `synthetic`.
    pub kind: String,
    /// sha256 of the weights file or files.
    pub sha256: String,
    /// Why this model stands in for the one asked for, if it does.
    pub substitute_reason: Option<String>,
}

/// One arm of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmReceipt {
    /// Name.
    pub name: String,
    /// How its server was started, or its address.
    pub command: String,
    /// What the server says of its own configuration.
    pub config: serde_json::Value,
    /// What the server says of its own version.
    pub version: String,
}

/// The manifest of a run directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    /// [`RUN_SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// What kind of run (`quickstart`, ...).
    pub kind: String,
    /// Whether the run finished.
    pub state: RunState,
    /// Start, UTC, RFC 3339. For people; nothing is computed from it.
    pub created: String,
    /// Command line.
    pub command: Vec<String>,
    /// Tool.
    pub tool: ToolVersion,
    /// Machine.
    pub machine: Machine,
    /// Model.
    pub model: ModelReceipt,
    /// Seed of every random stream of the run.
    pub seed: u64,
    /// sha256 of the request schedule of each block.
    pub schedule_sha256: BTreeMap<String, String>,
    /// Arms.
    pub arms: Vec<ArmReceipt>,
    /// Order in which arms ran, as `block:arm`.
    pub order: Vec<String>,
    /// Workload parameters, as resolved.
    pub workload: serde_json::Value,
}
