//! An adapter's digest: equal exactly when the adapter computes the same.

use sha2::{Digest, Sha256};

use super::{LayerDeltas, Projection};

/// sha256 over a version line and, for every delta, its layer, module, shape, scale and values.
///
/// The name is left out and so is how the file spelled its config: only what enters the
/// arithmetic counts. Lengths come before values, so no two adapters give the same bytes.
pub(super) fn of(layers: &[LayerDeltas]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"lora 1\n");
    for (layer, deltas) in layers.iter().enumerate() {
        for (projection, delta) in Projection::ALL.into_iter().zip(deltas) {
            let Some(delta) = delta else { continue };
            let head = [
                layer,
                projection as usize,
                delta.rank,
                delta.a.len(),
                delta.b.len(),
            ];
            for number in head {
                hasher.update((number as u64).to_le_bytes());
            }
            hasher.update(delta.scale.to_bits().to_le_bytes());
            for value in delta.a.iter().chain(&delta.b) {
                hasher.update(value.to_bits().to_le_bytes());
            }
        }
    }
    hasher.finalize().into()
}
