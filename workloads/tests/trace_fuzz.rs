//! Broken files of every format: an error or a reading, never a panic.

use std::path::{Path, PathBuf};

use pb_contract::Stream;
use pb_workloads::trace::{
    InspectOptions, TargetFormat, TraceFile, TraceFormat, TraceOptions, TraceWriter, inspect,
    validate,
};

const ROUNDS: usize = 150;

/// Bytes that mean something in these files.
const TELLING: &[u8] = b"{}[]\",:.0129eE+-\n\r \xff\x00";

fn mutate(bytes: &mut Vec<u8>, stream: &mut Stream) {
    for _ in 0..=stream.below(2) {
        let at = stream.below(bytes.len() as u64 + 1) as usize;
        let end = (at + stream.below(40) as usize).min(bytes.len());
        let telling = TELLING[stream.below(TELLING.len() as u64) as usize];
        match stream.below(10) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, telling),
            2 if at < bytes.len() => bytes[at] = telling,
            3 if at < bytes.len() => bytes[at] ^= 1 << stream.below(8),
            4 => {
                let copied = bytes[at..end].to_vec();
                bytes.splice(at..at, copied);
            }
            5 => {
                bytes.drain(at..end);
            }
            // Mild: another digit, so that many files stay readable.
            _ => {
                let digit = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit());
                digit
                    .into_iter()
                    .for_each(|byte| *byte = b'0' + stream.below(10) as u8);
            }
        }
    }
}

/// Everything that reads a trace; true when it could be read.
fn use_all(path: &Path, options: &TraceOptions) -> bool {
    let _ = validate(path, options).map_err(|error| error.to_string());
    let Ok(file) = TraceFile::open(path, options) else {
        return false;
    };
    let mut words = |text: &str| text.len() / 4;
    let counted = InspectOptions {
        max_model_len: Some(1 << 14),
        engine_block: Some(16),
        pool_blocks: Some(100),
    };
    let read = inspect(&file, &counted, Some(&mut words)).is_ok();
    let mut writer = TraceWriter::new(TargetFormat::AiPerf, true);
    let rows = file.rows().into_iter().flatten().map_while(Result::ok);
    rows.for_each(|row| drop(writer.line(&row)));
    read
}

#[test]
fn mutated_files_never_panic() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut names: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    names.sort();
    assert!(names.len() > 15);
    let scratch = tempfile::tempdir().unwrap();
    let mut stream = Stream::new(1, "trace fuzz");
    let (mut read, mut refused) = (0, 0);
    for name in names {
        let sound = std::fs::read(&name).unwrap();
        let path = scratch.path().join(name.file_name().unwrap());
        let format = TraceFile::open(&name, &TraceOptions::default())
            .unwrap()
            .format;
        for round in 0..ROUNDS {
            let mut bytes = sound.clone();
            mutate(&mut bytes, &mut stream);
            std::fs::write(&path, &bytes).unwrap();
            let other = TraceFormat::ALL[stream.below(12) as usize];
            let set = [None, Some(format), Some(other)][round % 3];
            let options = TraceOptions {
                format: set,
                ..TraceOptions::default()
            };
            match use_all(&path, &options) {
                true => read += 1,
                false => refused += 1,
            }
        }
    }
    // Both happen, or the mutations are too mild or too wild to mean anything.
    assert!(
        read > 500 && refused > 500,
        "{read} read, {refused} refused"
    );
}

#[test]
fn mutated_client_models_never_panic() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces/servegen");
    let names = ["chunk-3-trace.csv", "chunk-3-dataset.json"];
    let sound = names.map(|name| std::fs::read(directory.join(name)).unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let mut stream = Stream::new(2, "client model fuzz");
    for _ in 0..ROUNDS {
        for (name, sound) in names.iter().zip(&sound) {
            let mut bytes = sound.clone();
            mutate(&mut bytes, &mut stream);
            std::fs::write(scratch.path().join(name), &bytes).unwrap();
        }
        let _ = use_all(scratch.path(), &TraceOptions::default());
    }
}
