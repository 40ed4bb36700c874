//! How workers name the blocks of their caches, so that the router can name those of a prompt.

use std::sync::Arc;

use pb_contract::TokenId;
use pb_kv::{BlockHash, CacheScope, HashKind, HashedTokens};
use serde_json::Value;

/// One way to name blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Naming {
    kind: HashKind,
    /// Digest of what is fixed for the engine: model, precision, positions.
    identity: [u8; 32],
    block_size: usize,
}

impl Naming {
    /// From what a worker says under `hash`; none when it is not understood, and then prompts have
    /// no names there.
    pub(crate) fn of(hash: &Value, block_size: usize) -> Option<Naming> {
        let kind = match hash.get("algorithm")?.as_str()? {
            "blake3" => HashKind::Blake3,
            "sha256" => HashKind::Sha256,
            "xxh3" => HashKind::Xxh3,
            _ => return None,
        };
        let identity = ["identity", "seed"].iter().find_map(|name| hash.get(name));
        let identity = digest(identity?.as_str()?)?;
        Some(Naming {
            kind,
            identity,
            block_size,
        })
    }

    fn names(&self, tokens: &[TokenId], salt: Option<&str>) -> Arc<[BlockHash]> {
        let scope = CacheScope {
            identity: self.identity,
            adapter: None,
            salt: salt.map(str::to_owned),
        };
        let mut sequence = HashedTokens::with_hash(self.block_size, &scope, self.kind);
        sequence.extend(tokens);
        Arc::from(sequence.hashes())
    }
}

/// The name of a block, or another digest, from hexadecimal; shorter ones are padded with zeros.
pub(crate) fn digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() > 64 || !hex.len().is_multiple_of(2) || !hex.is_ascii() {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let text = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(text, 16).ok()?;
    }
    Some(out)
}

/// All ways to name blocks that were met, and the name of the model itself.
#[derive(Debug, Default)]
pub(crate) struct Namings {
    all: Vec<Naming>,
    /// What requests call the model; others are adapters, of whose names too little is known.
    pub(crate) model: Option<String>,
}

/// Ways to name blocks beyond this are not remembered: each costs a hash of every prompt.
const MOST: usize = 8;

impl Namings {
    /// The number of a way; one that is too many, or none, has a number with no names.
    pub(crate) fn number(&mut self, naming: Option<Naming>) -> usize {
        let Some(naming) = naming else {
            return usize::MAX;
        };
        if let Some(at) = self.all.iter().position(|other| *other == naming) {
            return at;
        }
        if self.all.len() >= MOST {
            return usize::MAX;
        }
        self.all.push(naming);
        self.all.len() - 1
    }

    /// Those of a request for `model`, if its blocks can be named.
    pub(crate) fn for_model(&self, model: Option<&str>) -> Vec<Naming> {
        let own = match (model, &self.model) {
            (Some(asked), Some(own)) => asked == own,
            _ => true,
        };
        if own { self.all.clone() } else { Vec::new() }
    }
}

/// The names of a prompt's full blocks, each way.
pub(crate) fn names_of(
    namings: &[Naming],
    tokens: &[TokenId],
    salt: Option<&str>,
) -> Vec<Arc<[BlockHash]>> {
    let names = namings.iter().map(|naming| naming.names(tokens, salt));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_of_the_cache() {
        let identity = "ab".repeat(32);
        let hash = json!({ "algorithm": "blake3", "identity": identity });
        let naming = Naming::of(&hash, 4).unwrap();
        let scope = CacheScope {
            identity: [0xab; 32],
            adapter: None,
            salt: Some("s".to_owned()),
        };
        let mut expected = HashedTokens::new(4, &scope);
        expected.extend(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let names = names_of(&[naming], &[1, 2, 3, 4, 5, 6, 7, 8, 9], Some("s"));
        assert_eq!(&names[0][..], expected.hashes());
        assert_eq!(names[0].len(), 2);
    }

    #[test]
    fn what_is_not_understood_names_nothing() {
        for hash in [
            json!(null),
            json!({ "algorithm": "md5", "identity": "00" }),
            json!({ "algorithm": "blake3" }),
            json!({ "algorithm": "blake3", "identity": "zz" }),
            json!({ "algorithm": "blake3", "identity": 3 }),
        ] {
            assert_eq!(Naming::of(&hash, 4), None, "{hash}");
        }
        let mut namings = Namings::default();
        let wide = |n: u8| Naming {
            kind: HashKind::Blake3,
            identity: [n; 32],
            block_size: 4,
        };
        assert_eq!(namings.number(None), usize::MAX);
        assert_eq!((0..8).map(|n| namings.number(Some(wide(n)))).max(), Some(7));
        assert_eq!(namings.number(Some(wide(3))), 3);
        assert_eq!(namings.number(Some(wide(9))), usize::MAX);
        namings.model = Some("m".to_owned());
        assert_eq!(namings.for_model(Some("m")).len(), 8);
        assert_eq!(namings.for_model(None).len(), 8);
        assert!(namings.for_model(Some("adapter")).is_empty());
    }
}
