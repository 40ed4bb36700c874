//! The kinds of servers that are known.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
    /// Text Generation Inference.
    Tgi,
    /// TensorRT-LLM's server.
    TrtLlm,
    /// The engine of this project.
    OwnEngine,
    /// The ground-truth server of this project.
    Mock,
    /// None of these, or not to be told.
    Unknown,
}

impl ServerKind {
    /// All kinds.
    pub const ALL: [ServerKind; 8] = [
        ServerKind::Vllm,
        ServerKind::Sglang,
        ServerKind::LlamaCpp,
        ServerKind::Tgi,
        ServerKind::TrtLlm,
        ServerKind::OwnEngine,
        ServerKind::Mock,
        ServerKind::Unknown,
    ];

    /// The name that a user writes.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Vllm => "vllm",
            ServerKind::Sglang => "sglang",
            ServerKind::LlamaCpp => "llama-cpp",
            ServerKind::Tgi => "tgi",
            ServerKind::TrtLlm => "trt-llm",
            ServerKind::OwnEngine => "own-engine",
            ServerKind::Mock => "mock",
            ServerKind::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ServerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ServerKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names = ServerKind::ALL.map(ServerKind::name).join(", ");
            format!("{text:?} is no kind of server: write one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_listed() {
        for kind in ServerKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
        let error = "vLLM".parse::<ServerKind>().unwrap_err();
        assert!(
            error.contains("\"vLLM\"") && error.contains("trt-llm"),
            "{error}"
        );
    }
}
