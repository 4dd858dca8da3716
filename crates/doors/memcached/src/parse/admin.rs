//! flush_all, verbosity.

use super::line::Arguments;
use super::{Command, Exptime, LineResult, Refused, Request, number, replies};

pub(super) fn flush_all<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let noreply = arguments.noreply();
    let delay = match arguments.as_slice() {
        [] | [b"noreply"] => None,
        [delay] | [delay, _] => {
            let delay = number::signed(delay);
            Some(delay.ok_or_else(|| Refused::unless(noreply, replies::BAD_EXPTIME))?)
        }
        _ => return Err(Refused::new(replies::ERROR)),
    };
    Ok(Request::Whole(Command::FlushAll {
        delay: delay.map(Exptime),
        noreply,
    }))
}

pub(super) fn verbosity<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let noreply = arguments.noreply();
    let ([level] | [level, _]) = arguments.as_slice() else {
        return Err(Refused::new(replies::ERROR));
    };
    if number::flags(level).is_none() {
        return Err(Refused::unless(noreply, replies::BAD_FORMAT));
    }
    Ok(Request::Whole(Command::Verbosity { noreply }))
}
