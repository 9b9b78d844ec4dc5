//! Replays the bytes of the corpus: seeds of each kind, and what once was a fault.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use tollgate_fuzz::TARGETS;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn no_bytes_of_the_corpus_break_a_property() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        let corpus = folder("corpus").join(name);
        for file in names(&corpus) {
            let bytes = fs::read(corpus.join(&file)).unwrap();
            if catch_unwind(|| target(&bytes)).is_err() {
                broken.push(format!("{name}/{file}"));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn each_target_has_a_binary_and_a_small_corpus() {
    let targets: BTreeSet<_> = TARGETS.map(|(name, _)| name.to_owned()).into();
    assert_eq!(names(&folder("corpus")), targets);
    let binaries: BTreeSet<_> = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&folder("targets/fuzz_targets")), binaries);
    for name in &targets {
        let corpus = folder("corpus").join(name);
        let files = names(&corpus);
        assert!((1..=60).contains(&files.len()), "{name} has {} files", files.len());
        for file in files {
            let size = fs::metadata(corpus.join(&file)).unwrap().len();
            assert!(size <= 1_000, "{name}/{file} has {size} bytes");
        }
    }
}
