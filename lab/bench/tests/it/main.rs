//! The integration tests of this crate, one program.

mod device;
mod memcached;
mod usage;

use std::process::{Command, Output};

/// Runs the program with these words, and `paths` behind them.
fn bench(words: &str, paths: &[&std::path::Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pumice-bench"))
        .args(words.split_whitespace())
        .args(paths)
        .output()
        .expect("the program was built with this test")
}
