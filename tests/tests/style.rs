//! House rules as a test: a rule that is not checked is not kept.

use std::path::{Path, PathBuf};

/// Longest file and longest line.
const FILE_LINES: usize = 500;
const LINE_CHARS: usize = 100;
const FUNCTION_LINES: usize = 70;

/// Tokens that bypass the injected clock and random streams, or hide unfinished work, with the
/// files that may use them.
const BANNED: [(&str, &[&str]); 8] = [
    ("Instant::now", &[]),
    ("SystemTime", &[]),
    ("thread_rng", &[]),
    ("rand::rng", &[]),
    ("todo!(", &[]),
    ("unimplemented!(", &[]),
    ("dbg!(", &[]),
    // Looked up only, never walked.
    ("HashMap", &["synth/files.rs"]),
];

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a readable directory")
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    entries.sort();
    for path in entries {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_string();
        if path.is_dir() {
            let skipped = [".git", "results", "corpus"].contains(&name.as_str());
            // Build output, but not the crate `harness/target`.
            let built = name == "target" && !path.join("Cargo.toml").exists();
            if !skipped && !built {
                rust_files(&path, out);
            }
        } else if name.ends_with(".rs") {
            out.push(path);
        }
    }
}

/// Lines of each function that starts in `text`, by the indentation of its closing brace.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let is_fn = trimmed.starts_with("fn ")
            || (trimmed.starts_with("pub")
                || trimmed.starts_with("unsafe ")
                || trimmed.starts_with("async ")
                || trimmed.starts_with("const fn"))
                && trimmed.contains("fn ")
                && trimmed.contains('(');
        let end_of_signature = |l: &&&str| l.ends_with('{') || l.ends_with(';') || l.ends_with('}');
        let signature = lines[start..].iter().find(end_of_signature);
        // What ends in a brace at once has its body on that line.
        if !is_fn || signature.is_none_or(|l| l.ends_with([';', '}'])) {
            continue;
        }
        let close = format!("{}}}", " ".repeat(line.len() - trimmed.len()));
        let length = lines[start..]
            .iter()
            .position(|l| *l == close)
            .map(|end| end + 1);
        found.extend(
            length
                .filter(|&n| n > FUNCTION_LINES)
                .map(|n| (start + 1, n)),
        );
    }
    found
}

fn problems(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.lines().count() > FILE_LINES {
        problems.push(format!("{name}: {} lines", text.lines().count()));
    }
    for (n, line) in text.lines().enumerate() {
        if line.chars().count() > LINE_CHARS {
            problems.push(format!(
                "{name}:{}: longer than {LINE_CHARS} characters",
                n + 1
            ));
        }
        let code = line.split("//").next().unwrap_or("");
        for (token, allowed) in BANNED {
            if code.contains(token) && !allowed.iter().any(|file| name.ends_with(file)) {
                problems.push(format!("{name}:{}: {token}", n + 1));
            }
        }
    }
    for (line, length) in long_functions(text) {
        problems.push(format!("{name}:{line}: a function of {length} lines"));
    }
    problems
}

#[test]
fn every_source_file_keeps_the_house_rules() {
    let root = pb_tests::repository();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    assert!(files.len() > 50, "found only {} files", files.len());
    let this = Path::new("tests/tests/style.rs");
    let mut all = Vec::new();
    for file in files.iter().filter(|f| !f.ends_with(this)) {
        let text = std::fs::read_to_string(file).expect("a readable file");
        all.extend(problems(&file.to_string_lossy(), &text));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_rules_catch_what_they_name() {
    let long_line = "x".repeat(101);
    let long_function = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(70));
    let long_file = "\n".repeat(501);
    for bad in [
        "let t = Instant::now();",
        &long_line,
        &long_function,
        &long_file,
    ] {
        assert_eq!(
            problems("bad.rs", bad).len(),
            1,
            "{}",
            &bad[..bad.len().min(40)]
        );
    }
    assert!(problems("good.rs", "// Instant::now is banned\nfn f() {\n}\n").is_empty());
}
