//! The `pumice` program; see the library.

mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    pumice_cli::main()
}
