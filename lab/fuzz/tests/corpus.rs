//! Every kept input is handed to its target. What the fuzzer found stays found.

use std::fs;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target, by name.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = corpus().join(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut inputs: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

/// Says which input it was before the panic goes on.
struct Current<'a>(&'a str, &'a str);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is lab/fuzz/corpus/{}/{}", self.0, self.1);
        }
    }
}

fn replay(target: &str) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 20, "{target} has {} inputs", inputs.len());
    for (name, bytes) in &inputs {
        let _current = Current(target, name);
        pumice_fuzz::run(target, bytes);
    }
    println!("{target}: {} inputs", inputs.len());
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test] fn $name() { replay(stringify!($name)); })*

        #[test]
        fn every_target_has_a_corpus_a_dictionary_and_a_program_of_its_own() {
            let names: Vec<&str> = pumice_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer");
            let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
            for name in names {
                assert!(fuzz.join(format!("dictionaries/{name}.dict")).exists(), "{name}");
                let program = fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).unwrap();
                assert!(program.contains(&format!("{name:?}")), "{name}");
                assert!(manifest.contains(&format!("name = {name:?}")), "{name}");
            }
        }
    };
}

replays!(classic meta binary connection records recovery_full recovery_cascade chunks traces config nbd http_request http_answer http_stored http_directives);

#[test]
fn the_corpus_is_small() {
    let bytes: usize = pumice_fuzz::TARGETS
        .iter()
        .flat_map(|target| inputs(target.name))
        .map(|(_, bytes)| bytes.len())
        .sum();
    assert!(bytes < 500 << 10, "{bytes} bytes");
}
