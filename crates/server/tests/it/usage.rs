//! Errors as users see them.

use anyhow::Context;
use pumice_server::usage::causes;

#[test]
fn a_cause_is_said_once() {
    let named = anyhow::Error::msg("b").context("a: b").context("c");
    assert_eq!(causes(&named), "c: a: b");
    let silent: anyhow::Result<()> = Err(anyhow::Error::msg("b"));
    assert_eq!(causes(&silent.context("a").unwrap_err()), "a: b");
}
