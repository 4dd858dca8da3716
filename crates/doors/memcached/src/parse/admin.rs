//! flush_all, verbosity, lru_crawler metadump.

use super::command::{Command, Exptime, LineResult, Refused, Request, replies};
use super::line::Arguments;
use super::number;

pub(super) fn flush_all<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let noreply = arguments.noreply();
    let delay = match arguments.as_slice() {
        [] | [b"noreply"] => None,
        [delay] | [delay, _] => {
            let delay = number::exptime(delay);
            Some(delay.ok_or_else(|| Refused::unless(noreply, replies::BAD_EXPTIME))?)
        }
        _ => return Err(Refused::new(replies::ERROR)),
    };
    Ok(Request::Whole(Command::FlushAll {
        delay: delay.map(Exptime),
        noreply,
        frame: None,
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

/// Numbers of memcached's slab classes.
const CLASSES: std::ops::RangeInclusive<u64> = 1..=63;

/// lru_crawler: of its subcommands there is metadump; the others steer what is not here.
pub(super) fn lru_crawler<'a>(arguments: &Arguments<'a>) -> LineResult<'a> {
    let [b"metadump", what] = arguments.as_slice() else {
        return Err(Refused::new(replies::ERROR));
    };
    let class_1 = match *what {
        b"all" | b"hash" => true,
        classes => {
            let mut found = false;
            for class in classes
                .split(|byte| *byte == b',')
                .filter(|class| !class.is_empty())
            {
                let class = number::unsigned(class).filter(|class| CLASSES.contains(class));
                found |= class.ok_or_else(|| Refused::new(replies::BAD_CLASS))? == 1;
            }
            found
        }
    };
    Ok(Request::Whole(Command::MetaDump { class_1 }))
}
