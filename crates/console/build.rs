//! Tells the program which commit it is built from, as `COMMIT_OF_PUMICE`; outside of a checkout it is not set. `VERSION_OF_PUMICE` is the version
//! with the commit behind it.

use std::process::Command;

fn main() {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    // A commit, a checkout and a merge all add a line here.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => {
            println!("cargo:rustc-env=COMMIT_OF_PUMICE={commit}");
            println!("cargo:rustc-env=VERSION_OF_PUMICE={version} ({commit})");
        }
        None => println!("cargo:rustc-env=VERSION_OF_PUMICE={version}"),
    }
}
