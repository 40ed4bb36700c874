//! Re-exports a GGUF file with its matrices in bf16, or writes a generated model.
//!
//! `cargo run --release -p pb-model --example export_bf16 -- IN.gguf OUT.gguf`
//! `cargo run --release -p pb-model --example export_bf16 -- synth OUT_DIR`

use std::path::Path;

use pb_model::gguf::{GgufFile, export_bf16};
use pb_model::synth::{Kind, Size, write_dir};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [source, target] if source == "synth" => {
            write_dir(Path::new(target), Kind::Sharp, Size::Tiny, 1)?;
        }
        [source, target] => {
            let file = GgufFile::open(Path::new(source))?;
            let (_, weights) = file.weights()?;
            export_bf16(&weights, &file.header, Path::new(target))?;
        }
        _ => return Err("usage: export_bf16 IN.gguf OUT.gguf | synth OUT_DIR".into()),
    }
    Ok(())
}
