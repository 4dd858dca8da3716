//! delete, incr, decr, touch.

use super::command::{Command, Delete, Delta, Exptime, LineResult, Refused, Request, Touch, replies};
use super::keys::Key;
use super::line::Arguments;
use super::number;

pub(super) fn delete<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let noreply = arguments.noreply();
    // Old clients send a time of 0 after the key.
    let (key, noreply) = match arguments.as_slice() {
        [key] => (key, false),
        [key, b"0"] => (key, false),
        [key, b"noreply"] | [key, b"0", b"noreply"] => (key, true),
        [_, _] | [_, _, _] => return Err(Refused::unless(noreply, replies::BAD_DELETE)),
        _ => return Err(Refused::new(replies::ERROR)),
    };
    let key = Key::plain(key).ok_or_else(|| Refused::unless(noreply, replies::BAD_FORMAT))?;
    Ok(Request::Whole(Command::Delete(Delete { key, noreply })))
}

pub(super) fn delta<'a>(arguments: &Arguments<'a>, up: bool) -> LineResult<'a> {
    let noreply = arguments.noreply();
    let ([key, by] | [key, by, _]) = arguments.as_slice() else {
        return Err(Refused::new(replies::ERROR));
    };
    let key = Key::plain(key).ok_or_else(|| Refused::unless(noreply, replies::BAD_FORMAT))?;
    let by = number::unsigned(by).ok_or_else(|| Refused::unless(noreply, replies::BAD_DELTA))?;
    Ok(Request::Whole(Command::Delta(Delta { key, by, up, noreply })))
}

pub(super) fn touch<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let noreply = arguments.noreply();
    let ([key, exptime] | [key, exptime, _]) = arguments.as_slice() else {
        return Err(Refused::new(replies::ERROR));
    };
    let key = Key::plain(key).ok_or_else(|| Refused::unless(noreply, replies::BAD_FORMAT))?;
    let exptime = number::exptime(exptime).ok_or_else(|| Refused::unless(noreply, replies::BAD_EXPTIME))?;
    Ok(Request::Whole(Command::Touch(Touch {
        key,
        exptime: Exptime(exptime),
        noreply,
        frame: None,
    })))
}
