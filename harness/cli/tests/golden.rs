//! The expected values in the repository are those that were blessed.

mod common;

use common::{run, stderr, stdout};

#[test]
fn the_golden_files_are_as_their_index_says() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden");
    let output = run(&["golden", "verify", "--dir", dir]);
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", stderr(&output));
    assert!(said.contains(" files listed, 0 findings"), "{said}");
}

#[test]
fn a_changed_byte_fails_and_a_blessing_wants_a_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let set = dir.path().join("numbers");
    std::fs::create_dir(&set).expect("a set");
    std::fs::write(set.join("a.json"), "[1]").expect("written");
    let at = dir.path().to_str().expect("UTF-8");
    let new = ["--generator", "by hand", "--tolerance", "none: integers"];
    let bless = ["golden", "bless", "numbers", "--dir", at];
    let refused = run(&[&bless[..], &new].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("--reason"));
    assert!(!dir.path().join("index.toml").exists());
    let blessed = run(&[&bless[..], &new, &["--reason", "the first"]].concat());
    assert_eq!(blessed.status.code(), Some(0), "{}", stderr(&blessed));
    let verify = || run(&["golden", "verify", "--dir", at]);
    assert_eq!(verify().status.code(), Some(0));
    std::fs::write(set.join("a.json"), "[2]").expect("written");
    let output = verify();
    let said = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // sha256 of `[1]` and of `[2]`, by coreutils.
    for part in [
        "changed   numbers/a.json",
        "080a9ed428559ef602668b4c00f114f1a11c3f6b02a435f0bdc154578e4d7f22",
        "038966de9f6b9a901b20b4c6ca8b2a46009feebe031babc842d43690c0bc222b",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let nowhere = run(&["golden", "verify", "--dir", "no-such-folder"]);
    assert_eq!(nowhere.status.code(), Some(2));
}
