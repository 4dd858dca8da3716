//! SASL: user and password in frames, by the mechanism PLAIN, of the users of the auth file.

use crate::execute::{Executor, Output};
use crate::parse::{Sasl, Status};
use pumice_device::Device;

/// What the right user and password are answered, as memcached has it.
const GRANTED: &[u8] = b"Authenticated";

/// Answers an attempt to authenticate; returns whether the connection is authenticated after it.
pub(super) fn answer<D: Device + Clone>(
    executor: &Executor<D>,
    sasl: &Sasl<'_>,
    output: &mut Output<D::Buf>,
) -> bool {
    let Some(auth) = &executor.shared.config.auth else {
        output.status(sasl.frame, Status::Unknown);
        return true;
    };
    let is_plain = sasl.mechanism.eq_ignore_ascii_case(b"PLAIN");
    if is_plain && sasl.answer.is_empty() && !sasl.is_step {
        output.status(sasl.frame, Status::AuthGoesOn);
        return false;
    }
    let credentials = plain(sasl.answer).filter(|_| is_plain);
    let is_allowed = credentials.is_some_and(|(user, password)| auth.is_allowed(user, password));
    let counters = &executor.stats().counters;
    counters.auth_cmds.add(1);
    match is_allowed {
        true => output.told(sasl.frame, 0, "", GRANTED),
        false => {
            counters.auth_errors.add(1);
            output.status(sasl.frame, Status::AuthFailed);
        }
    }
    is_allowed
}

/// User and password: they stand behind the name that the user wants to have, which is empty or his own, with NULs between.
fn plain(answer: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = answer.split(|byte| *byte == 0);
    let (name, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && (name.is_empty() || name == user);
    is_whole.then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_has_three_parts_and_no_other_name() {
        let read = |text: &'static str| plain(text.as_bytes());
        assert_eq!(read("\0foo\0bar"), Some((&b"foo"[..], &b"bar"[..])));
        assert_eq!(read("foo\0foo\0bar"), Some((&b"foo"[..], &b"bar"[..])));
        for bad in [
            "",
            "foo",
            "foo\0bar",
            "root\0foo\0bar",
            "\0foo\0bar\0",
            "\0foo\0ba\0r",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
