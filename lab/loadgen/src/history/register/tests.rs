//! Histories made by hand, right ones and wrong in each way; and all orders of a register that is right.

use super::*;
use crate::history::state::{STALE, Ttl, WON, joined};
use pumice_world::Random;

const SET: fn(u64) -> Outcome = |content| put(content, None);
const CLEAR: Outcome = Outcome::certain("delete", Guard::None, Effect::Clear);

fn put(content: u64, ttl: Ttl) -> Outcome {
    Outcome::certain("set", Guard::None, Effect::Put(content, ttl))
}

fn get(content: u64) -> Outcome {
    Outcome::certain("get", Guard::Is(content), Effect::None)
}

fn miss() -> Outcome {
    Outcome::nothing("get")
}

fn cas(from: u64, to: u64) -> Outcome {
    Outcome::certain("cas", Guard::Is(from), Effect::Put(to, None))
}

fn maybe(content: u64) -> Outcome {
    Outcome::possible("set", Guard::None, Effect::Put(content, None))
}

/// Operations as (begin, end, outcome); times order them, and each is a second.
fn check(operations: &[(u32, u32, Outcome)]) -> Result<(), Violation> {
    let mut register = Register::default();
    let mut handles = vec![None; operations.len()];
    let last = operations.iter().map(|operation| operation.1).max().unwrap();
    let mut result = Ok(());
    for now in 0..=last {
        // What ends at a time ends before what begins then.
        for (operation, handle) in operations.iter().zip(&mut handles) {
            if operation.1 == now
                && let Some(handle) = handle.take()
            {
                result = result.and(register.end(handle, now * 1000, operation.2));
            }
        }
        for (operation, handle) in operations.iter().zip(&mut handles) {
            if operation.0 == now {
                let is_change = operation.2.effect != Effect::None;
                *handle = Some(register.begin(now * 1000, is_change).expect("few are under way"));
            }
        }
    }
    assert_eq!(register.pending, 0);
    assert!(register.active.is_empty() && register.events.is_empty());
    result
}

#[track_caller]
fn right(operations: &[(u32, u32, Outcome)]) {
    if let Err(Violation(what)) = check(operations) {
        panic!("{what}");
    }
}

#[track_caller]
fn wrong(operations: &[(u32, u32, Outcome)], named: &str) {
    let Err(Violation(what)) = check(operations) else {
        panic!("passed");
    };
    assert!(what.contains(named), "{what}");
}

/// Operations one after the other.
fn in_turn<const N: usize>(outcomes: [Outcome; N]) -> [(u32, u32, Outcome); N] {
    let mut at = 0;
    outcomes.map(|outcome| {
        at += 2;
        (at - 2, at - 1, outcome)
    })
}

#[test]
fn one_after_the_other() {
    right(&in_turn([SET(1), get(1), SET(2), get(2), miss(), get(2)]));
    wrong(&in_turn([SET(1), SET(2), get(1)]), "found 0x1");
    wrong(&in_turn([SET(1), CLEAR, get(1)]), "held nothing");
    wrong(&in_turn([get(9)]), "found 0x9");
}

#[test]
fn what_overlaps_takes_effect_in_either_order() {
    right(&[
        (0, 1, SET(1)),
        (2, 9, SET(2)),
        (3, 4, get(1)),
        (5, 6, get(2)),
        (7, 8, get(2)),
    ]);
    right(&[(0, 5, SET(1)), (0, 5, SET(2)), (6, 7, get(1))]);
    right(&[(0, 5, SET(1)), (0, 5, SET(2)), (6, 7, get(2))]);
    // A read may be from before a set that was answered while it was under way.
    right(&[(0, 1, SET(1)), (2, 9, get(1)), (3, 4, SET(2)), (5, 6, get(2))]);
    right(&[(0, 9, get(1)), (1, 2, SET(1)), (3, 4, CLEAR)]);
    let both = [(0, 9, SET(1)), (0, 9, SET(2)), (1, 2, get(1)), (3, 4, get(2))];
    // Everything takes effect once: what was seen replaced does not come back.
    wrong(&[&both[..], &[(5, 6, get(1))]].concat(), "found 0x1");
    // Two readers do not see two orders.
    wrong(&[&both[..], &[(10, 11, get(1))]].concat(), "found 0x1");
}

#[test]
fn reads_of_a_key_never_go_back() {
    let back = [(0, 1, SET(1)), (2, 9, SET(2)), (3, 4, get(2)), (5, 6, get(1))];
    wrong(&back, "found 0x1");
}

#[test]
fn a_change_without_an_answer_happens_until_its_server_is_gone_or_never() {
    right(&in_turn([SET(1), maybe(2), get(1), get(1)]));
    right(&in_turn([SET(1), maybe(2), get(2), get(2)]));
    right(&[(0, 1, SET(1)), (2, 9, maybe(2)), (3, 4, SET(3)), (10, 11, get(2))]);
    wrong(&in_turn([SET(1), maybe(2), get(1), get(2)]), "found 0x2");
    wrong(&in_turn([SET(1), maybe(2), get(2), get(1)]), "found 0x1");
    wrong(&in_turn([SET(1), maybe(2), SET(3), get(2)]), "found 0x2");
    // It was done before the server went, so the next one cannot show what was before it and then it.
    let later = [
        (0, 9, maybe(1)),
        (1, 2, CLEAR),
        (3, 4, get(1)),
        (5, 6, CLEAR),
        (10, 11, get(1)),
    ];
    wrong(&later, "held nothing");
    // An optional change of something that is not there is none.
    let touch = Outcome::possible("touch", Guard::Exists, Effect::Touch(None));
    right(&in_turn([touch, SET(1), get(1)]));
}

#[test]
fn a_cas_that_was_stored_replaced_what_it_named() {
    right(&in_turn([SET(1), cas(1, 2), get(2)]));
    wrong(&in_turn([SET(1), SET(2), cas(1, 3)]), "cas found 0x1");
    let two = |second| [(0, 1, SET(1)), (2, 9, cas(1, 2)), (2, 9, second)];
    wrong(&two(cas(1, 3)), "cas found 0x1");
    right(&[&two(cas(2, 3))[..], &[(10, 11, get(3))]].concat());
}

#[test]
fn what_needs_an_object_found_one() {
    let found = |effect| Outcome::certain("replace", Guard::Exists, effect);
    let put = found(Effect::Put(2, None));
    right(&in_turn([SET(1), put, get(2)]));
    wrong(&in_turn([SET(1), CLEAR, put]), "found something");
    let clear = (2, 9, found(Effect::Clear));
    wrong(&[(0, 1, SET(1)), clear, clear], "found something");
    // NOT_STORED of an add, too.
    wrong(&in_turn([CLEAR, found(Effect::None)]), "found something");
}

#[test]
fn pieces_are_joined_once_and_in_their_order() {
    let join = |piece| Outcome::certain("append", Guard::Exists, Effect::Join(piece));
    let once = joined(1, 7);
    let both = joined(once, 8);
    right(&in_turn([SET(1), join(7), join(8), get(both)]));
    wrong(&in_turn([SET(1), join(8), join(7), get(both)]), "get found");
    wrong(&in_turn([SET(1), join(7), get(joined(once, 7))]), "get found");
    wrong(&in_turn([SET(1), join(7), get(1)]), "found 0x1");
    // Without an answer it may be there or not, but not come later.
    let maybe = Outcome::possible("append", Guard::Exists, Effect::Join(7));
    right(&in_turn([SET(1), maybe, get(once)]));
    wrong(&in_turn([SET(1), maybe, get(1), get(once)]), "get found");
}

#[test]
fn numbers_grow_by_what_was_added() {
    let incr = |to: u64, delta| Outcome::certain("incr", Guard::Is(to - delta), Effect::Add(delta));
    let two = |one, other| [(0, 1, SET(10)), (2, 9, one), (2, 9, other)];
    right(&[&two(incr(13, 1), incr(12, 2))[..], &[(10, 11, get(13))]].concat());
    // A lost update, a doubled one.
    wrong(&two(incr(11, 1), incr(11, 1)), "incr found");
    wrong(&in_turn([SET(10), incr(11, 1), get(12)]), "found 0xc");
}

#[test]
fn what_expired_is_not_served_a_second_later() {
    right(&[(0, 1, put(1, Some(5))), (7, 8, get(1))]);
    wrong(&[(0, 1, put(1, Some(5))), (8, 9, get(1))], "until 7.000 s");
    let touch = |ttl| Outcome::certain("touch", Guard::Exists, Effect::Touch(ttl));
    right(&[(0, 1, put(1, Some(5))), (2, 3, touch(Some(10))), (14, 15, get(1))]);
    right(&[(0, 1, put(1, Some(5))), (2, 3, touch(None)), (30, 31, get(1))]);
    let shortened = [(0, 1, SET(1)), (2, 3, touch(Some(1))), (6, 7, get(1))];
    wrong(&shortened, "until 5.000 s");
    let short = (0, 1, put(1, Some(2)));
    wrong(&[short, (9, 10, touch(None))], "found something");
    // A touch without an answer may have made it live longer.
    let maybe = Outcome::possible("touch", Guard::Exists, Effect::Touch(None));
    right(&[short, (2, 3, maybe), (9, 10, get(1)), (11, 12, get(1))]);
}

#[test]
fn one_client_wins_what_is_stale() {
    let invalidate = Outcome::certain("md I", Guard::Exists, Effect::Invalidate(None));
    let win = Outcome::certain("mg", Guard::Marked(1, STALE), Effect::Win);
    let seen = |marks| Outcome::certain("mg", Guard::Marked(1, marks), Effect::None);
    right(&in_turn([SET(1), seen(0), invalidate, win, seen(STALE | WON)]));
    wrong(&in_turn([SET(1), win]), "with marks 1");
    let stale = [(0, 1, SET(1)), (2, 3, invalidate), (4, 9, win)];
    wrong(&[&stale[..], &[(4, 9, win)]].concat(), "with marks 1");
    wrong(&in_turn([SET(1), invalidate, seen(0)]), "with marks 0");
    right(&[&stale[..], &[(5, 8, seen(STALE)), (5, 8, get(1))]].concat());
    // A new value is not stale.
    wrong(
        &in_turn([SET(2), invalidate, SET(1), seen(STALE)]),
        "with marks 1",
    );
}

#[test]
fn too_many_at_once_are_refused_and_the_search_is_bounded() {
    let mut register = Register::default();
    let changes: Vec<Handle> = std::iter::from_fn(|| register.begin(0, true)).collect();
    assert_eq!(changes.len(), CHANGES_MAX);
    let reads: Vec<Handle> = std::iter::from_fn(|| register.begin(0, false)).collect();
    assert_eq!(reads.len() + changes.len(), PENDING_MAX);
    for (at, read) in reads.into_iter().enumerate() {
        register
            .end(read, 1, get(1 + at as u64 % 6))
            .unwrap_or_else(|_| panic!("{at}"));
        if at == 5 {
            break;
        }
    }
    assert_eq!(
        register.recent.len(),
        0,
        "nothing is judged before what it overlaps has ended"
    );
    for (at, change) in changes.into_iter().enumerate() {
        let _ = register.end(change, 2, maybe(1 + at as u64));
    }
    assert!(register.widest() <= 512, "{}", register.widest());
}

#[test]
fn after_a_wrong_answer_the_search_goes_on_with_what_it_said() {
    let mut register = Register::default();
    let mut step = |outcome: Outcome| {
        let handle = register.begin(0, true).unwrap();
        register.end(handle, 0, outcome)
    };
    step(SET(1)).unwrap();
    step(SET(2)).unwrap();
    step(get(1)).unwrap_err();
    step(get(1)).unwrap();
    step(get(2)).unwrap_err();
}

/// Random operations that overlap, some of which get no answer, against a cache that is right; then with one rule broken. The cache is
/// an object, its changes applied at a moment between begin and end, lost now and then.
fn run(seed: u64, steps: u32, broken: Option<u64>) -> Result<(), Violation> {
    let mut random = Random(seed);
    let mut register = Register::default();
    let mut state = State::ABSENT;
    let mut former = State::ABSENT;
    // Handle, what is asked, and its outcome once it took effect.
    let mut under_way: Vec<(Handle, u32, u64, Option<Outcome>)> = Vec::new();
    for step in 0..steps {
        let now = step * 10;
        match random.below(3) {
            0 if under_way.len() < 5 => {
                let kind = random.below(7);
                if let Some(handle) = register.begin(now, kind > 1) {
                    under_way.push((handle, now, kind, None));
                }
            }
            1 if !under_way.is_empty() => {
                let at = random.below(under_way.len() as u64) as usize;
                let (_, began, kind, outcome) = &mut under_way[at];
                if outcome.is_none() {
                    if random.below(12) == 0 {
                        state = State::ABSENT;
                    }
                    let is_missed = random.below(8) == 0;
                    let mut shown = state;
                    if broken == Some(0) && random.below(8) == 0 {
                        shown = former;
                    }
                    let is_there = shown.content != 0 && !is_missed && now <= shown.deadline;
                    let version = u64::from(register.next_version());
                    let answer = match (*kind, is_there) {
                        (0 | 1, true) => get(shown.content),
                        (2, _) => put(version, (random.below(3) == 0).then_some(1)),
                        (3, _) => CLEAR,
                        (4, true) => cas(shown.content, version),
                        (5, true) => Outcome::certain("touch", Guard::Exists, Effect::Touch(Some(1))),
                        (6, true) => Outcome::certain("append", Guard::Exists, Effect::Join(version as u32)),
                        _ => miss(),
                    };
                    let took = Operation {
                        outcome: answer,
                        began: *began,
                        ended: now,
                    };
                    if answer.effect != Effect::None {
                        former = state;
                    }
                    if broken != Some(1) || random.below(4) != 0 {
                        state = took.changed(state);
                    }
                    *outcome = Some(answer);
                }
            }
            _ if !under_way.is_empty() => {
                let at = random.below(under_way.len() as u64) as usize;
                if under_way[at].3.is_some() || random.below(4) == 0 {
                    let (handle, _, _, outcome) = under_way.swap_remove(at);
                    let outcome = match outcome {
                        Some(outcome) if random.below(6) == 0 => Outcome {
                            is_certain: false,
                            ..outcome
                        },
                        Some(outcome) => outcome,
                        None => Outcome::possible("set", Guard::None, Effect::Put(1 << 40, None)),
                    };
                    register.end(handle, now, outcome)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn a_cache_that_is_right_raises_no_alarm_and_one_that_is_not_does() {
    for seed in 0..400 {
        if let Err(Violation(what)) = run(seed, 400, None) {
            panic!("seed {seed}: {what}");
        }
    }
    // 0: shows what was there before the last change; 1: forgets a quarter of all changes.
    for rule in [0, 1] {
        let found = (0..100)
            .filter(|seed| run(*seed, 4000, Some(rule)).is_err())
            .count();
        assert!(found > 95, "rule {rule}: {found} of 100");
    }
}
