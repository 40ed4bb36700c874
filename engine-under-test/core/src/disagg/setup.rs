//! What an engine brings to its transfers: room for copies, what it says of itself, and options.

use pb_contract::BlockId;
use pb_transfer::service::{Dial, ExportOptions, ImportOptions};
use pb_transfer::{Defect, Peer, SinkOptions};

use super::{
    KvOptions, KvShape, PEERS, RETRIES, Staging, TRANSFER_BLOCKS, TRANSFERS, WINDOW_CELLS,
};
use crate::engine::Engine;

/// Room for copies of the executor's blocks.
pub(super) fn staging(engine: &Engine, me: &Peer, shape: KvShape) -> Result<Staging, String> {
    let image = engine.block_image(BlockId(0));
    let segment = me.geometry().segment(me.kv_heads).bytes();
    let (found, expected) = (image.len(), shape.header_bytes + shape.layers * segment);
    if found != expected {
        return Err(format!(
            "block images of {found} bytes, expected {expected}"
        ));
    }
    Ok(Staging::new(found, image[..shape.header_bytes].to_vec()))
}

/// What an engine says about itself.
pub(super) fn peer(engine: &Engine, shape: KvShape) -> Peer {
    Peer {
        identity: engine.spec().cache_identity(engine.config()),
        layers: shape.layers,
        kv_heads: shape.kv_heads,
        d_head: shape.d_head,
        tp_degree: 1,
        tp_rank: 0,
    }
}

pub(super) fn export_options(options: &KvOptions) -> ExportOptions {
    ExportOptions {
        allow: options.allow,
        lease: options.lease,
        mode: options.mode,
        granularity: options.granularity,
        handshake: options.patience.to_duration(),
    }
}

pub(super) fn import_options(options: &KvOptions, dial: Dial) -> ImportOptions {
    ImportOptions {
        sink: SinkOptions {
            allow: options.allow,
            blocks: TRANSFER_BLOCKS,
            transfers: TRANSFERS,
            window_cells: WINDOW_CELLS,
            stall: options.patience,
            retries: RETRIES,
            handshake: options.patience.to_duration(),
            defect: Defect::None,
        },
        dial,
        claim: options.patience,
        peers: PEERS,
    }
}
