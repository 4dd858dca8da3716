//! A device that hangs, that is, does not answer: it is taken out when an operation has waited for too long, what waits for it ends, DRAM
//! serves alone, the next start knows, and a stop ends.

use crate::common::dying::{KEYS, Run, calm, serve_from_dram};
use crate::common::{KINDS, Model, PATIENCE_SECS, Rig, key, of_kind, value};
use pumice::{CacheOptions, Durability, FlashWrite};
use pumice_device::Device;
use pumice_testkit::{FaultPlan, FaultyDevice};
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

fn hanging(at: u64) -> FaultPlan {
    FaultPlan {
        hangs_at: Some(at),
        ..calm()
    }
}

fn check_out(rig: &Rig<FaultyDevice>, is_remembered: bool) {
    let failure = rig.cache.flash_failure().expect("it is out");
    let (reason, said) = (&failure.reason, format!("no answer for {PATIENCE_SECS} s"));
    assert!(reason.contains(&said), "{reason}");
    assert_eq!(failure.remembered, is_remembered, "{reason}");
}

/// It hangs in any of its operations, and with everything that comes after.
#[test]
fn whenever_it_hangs_it_is_taken_out() {
    for kind in 0..KINDS {
        for point in (1..90).step_by(7) {
            let mut run = Run::new(kind * 1_000 + point, of_kind(kind));
            let rig = run.filled();
            run.die(&rig, hanging(point));
            serve_from_dram(&mut run, &rig);
            check_out(&rig, false);
            if point % 2 == 0 {
                let error = rig.run(rig.cache.close(&rig.cx)).unwrap_err();
                assert!(error.to_string().contains("--reformat"), "{error}");
            }
            // It goes on, and with it what was given up.
            run.options.reformat = true;
            run.options.random[0] += 1;
            let rig = run.kill_and_heal(rig);
            run.model = Model::default();
            run.steps(&rig, 200);
            rig.check();
        }
    }
}

/// As a file system that was frozen and is thawed: what it was to be told is told later.
#[test]
fn a_device_that_answers_again_is_told_that_it_was_taken_out() {
    for kind in 0..KINDS {
        let mut run = Run::new(kind, of_kind(kind));
        let rig = run.filled();
        run.die(&rig, hanging(5));
        serve_from_dram(&mut run, &rig);
        check_out(&rig, false);
        run.medium.set_plan(calm());
        // The longest pause between two tries, and the time for one.
        let is_told = (0..3_620).any(|_| {
            run.clock.advance_secs(1);
            rig.cache.tick(&rig.cx);
            rig.settle();
            rig.cache.flash_failure().expect("it is out").remembered
        });
        assert!(is_told, "kind {kind}");
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        let rig = run.kill_and_heal(rig);
        assert!(rig.recovered.discarded);
    }
}

/// One operation that is never answered, among others that are, is enough.
#[test]
fn a_single_operation_that_hangs_is_found_out() {
    let mut marked = 0;
    for seed in 0..24 {
        let mut run = Run::new(seed, of_kind(seed));
        let rig = run.filled();
        run.die(&rig, FaultPlan { hang: 0.02, ..calm() });
        serve_from_dram(&mut run, &rig);
        // The others go on, so that the device is marked, unless that hangs too.
        let remembered = rig.cache.flash_failure().expect("it is out").remembered;
        check_out(&rig, remembered);
        marked += u64::from(remembered);
        let rig = run.kill_and_heal(rig);
        assert!(rig.recovered.discarded || !remembered);
    }
    assert!(marked > 18, "{marked} of 24");
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Until the time is over gets of what flash has wait, and nobody else does; then they are misses.
#[test]
fn while_gets_wait_dram_answers_and_then_they_are_misses() {
    let mut run = Run::new(1, of_kind(0));
    let rig = run.filled();
    rig.settle();
    run.medium.set_plan(hanging(1));
    let names: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let mut gets: Vec<_> = names
        .iter()
        .map(|name| Box::pin(rig.cache.get(&rig.cx, name)))
        .collect();
    gets.retain_mut(|get| poll(get.as_mut()).is_pending());
    assert!(gets.len() > 10, "{} wait for the device", gets.len());
    for n in 1_000..1_020 {
        assert!(rig.set(&key(n), &value(n, 0, 100)));
        let found = rig
            .poll_once(rig.cache.get(&rig.cx, &key(n)))
            .expect("it need not wait");
        assert!(found.is_some(), "DRAM answers");
    }
    for _ in 0..PATIENCE_SECS {
        rig.cx.device.tick(PATIENCE_SECS);
        rig.cache.tick(&rig.cx);
        gets.iter_mut()
            .for_each(|get| assert!(poll(get.as_mut()).is_pending()));
        assert_eq!(rig.cache.flash_failure(), None);
    }
    rig.cx.device.tick(PATIENCE_SECS);
    for mut get in gets {
        match poll(get.as_mut()) {
            Poll::Ready(found) => assert!(found.is_none()),
            Poll::Pending => panic!("it still waits"),
        }
    }
    rig.run_background();
    check_out(&rig, false);
    rig.check();
}

/// The direct path: neither a miss nor the set that follows waits for a write, and no write begins before both are answered. That goes on
/// when all buffers are full.
#[test]
fn misses_and_sets_are_answered_while_no_write_ends() {
    for (kind, flash_write) in [
        (0, FlashWrite::Insertion),
        (0, FlashWrite::Eviction),
        (3, FlashWrite::Insertion),
    ] {
        let options = CacheOptions {
            flash_write,
            ..of_kind(kind)
        };
        let mut run = Run::new(kind, options);
        let rig = run.filled();
        rig.settle();
        let dropped = |rig: &Rig<FaultyDevice>| rig.cache.stats().flash.dropped_no_block;
        let appended = |rig: &Rig<FaultyDevice>| rig.cache.stats().flash.appended_bytes;
        let (dropped_before, appended_before) = (dropped(&rig), appended(&rig));
        let mut appended_first = None;
        run.medium.set_plan(hanging(1));
        let begun = || run.medium.counts().hung;
        for n in 1_000..4_000 {
            let before = begun();
            let found = rig.poll_once(rig.cache.get(&rig.cx, &key(n)));
            assert!(found.expect("a miss does not wait").is_none());
            assert!(rig.set(&key(n), &value(n, 0, 1_000)));
            assert_eq!(begun(), before, "a write began before the answer");
            rig.run(pumice_blocks::give_turn());
            if appended_first.is_none() && dropped(&rig) > dropped_before {
                appended_first = Some(appended(&rig) - appended_before);
            }
        }
        assert!(begun() > 0);
        let whole = options.block_bytes.unwrap() * (options.buffers_max as u64 - 1);
        assert!(appended_first.unwrap() > whole, "{appended_first:?} of {whole}");
        assert_eq!(rig.cache.flash_failure(), None);
    }
}

/// What began to wait later ends when the device is out, and not in its own time.
#[test]
fn what_waits_when_the_device_is_taken_out_ends_with_it() {
    let mut run = Run::new(2, of_kind(0));
    let rig = run.filled();
    rig.settle();
    run.medium.set_plan(hanging(1));
    let device = &rig.cx.device;
    let mut first = pin!(device.sync());
    assert!(poll(first.as_mut()).is_pending());
    let names: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let mut early: Vec<_> = names[..150]
        .iter()
        .map(|name| Box::pin(rig.cache.get(&rig.cx, name)))
        .collect();
    early.retain_mut(|get| poll(get.as_mut()).is_pending());
    for _ in 0..PATIENCE_SECS {
        device.tick(PATIENCE_SECS);
    }
    let mut late: Vec<_> = names[150..]
        .iter()
        .map(|name| Box::pin(rig.cache.get(&rig.cx, name)))
        .collect();
    late.retain_mut(|get| poll(get.as_mut()).is_pending());
    assert!(early.len() > 5 && late.len() > 5);
    device.tick(PATIENCE_SECS);
    assert!(early.iter_mut().all(|get| poll(get.as_mut()).is_ready()));
    assert!(late.iter_mut().all(|get| poll(get.as_mut()).is_pending()));
    rig.cache.tick(&rig.cx);
    assert!(late.iter_mut().all(|get| poll(get.as_mut()).is_ready()));
}

/// The superblocks hang with the rest: that is said, and with `power` changes are refused.
#[test]
fn superblocks_that_hang_are_not_waited_for() {
    for durability in [Durability::Process, Durability::Power] {
        let options = CacheOptions {
            durability,
            ..of_kind(0)
        };
        let mut run = Run::new(3, options);
        let rig = run.filled();
        run.medium.set_plan(hanging(1));
        for n in 0..2_000 {
            rig.set(&key(n), &[7; 300]);
        }
        rig.settle();
        check_out(&rig, false);
        let committed = rig.run(rig.cache.commit(&rig.cx));
        assert_eq!(committed.is_ok(), durability == Durability::Process);
        let error = rig.run(rig.cache.close(&rig.cx)).unwrap_err();
        assert!(error.to_string().contains("--reformat"), "{error}");
    }
}

/// The client is gone that waited for the only request that the device owes an answer.
#[test]
fn what_nobody_waits_for_any_more_is_found_out_too() {
    let mut run = Run::new(6, of_kind(0));
    let rig = run.filled();
    rig.settle();
    run.medium.set_plan(hanging(1));
    let waits = |n: &u64| poll(Box::pin(rig.cache.get(&rig.cx, &key(*n))).as_mut()).is_pending();
    assert!((0..KEYS).any(|n| waits(&n)), "one that is dropped at once");
    assert_eq!(run.medium.counts().hung, 1);
    for _ in 0..PATIENCE_SECS {
        assert!(rig.cx.device.tick(PATIENCE_SECS).is_empty());
    }
    let ended = rig.cx.device.tick(PATIENCE_SECS);
    assert_eq!(ended.len(), 1);
    rig.cache.flash_is_overdue(&rig.cx, ended[0]);
    rig.run_background();
    check_out(&rig, false);
}

/// Changes wait for the superblocks for a while and go on.
#[test]
fn changes_wait_ten_seconds_for_superblocks_that_hang() {
    let mut run = Run::new(5, of_kind(0));
    let rig = run.filled();
    run.medium.set_plan(hanging(1));
    let waits = |n: &u64| poll(Box::pin(rig.cache.get(&rig.cx, &key(*n))).as_mut()).is_pending();
    assert!((0..KEYS).any(|n| waits(&n)));
    let ended = (0..=PATIENCE_SECS).flat_map(|_| rig.cx.device.tick(PATIENCE_SECS));
    rig.cache.flash_is_overdue(&rig.cx, ended.last().expect("one"));
    let mut seconds = 0;
    let second = || -> Result<(), Infallible> {
        seconds += 1;
        assert!(seconds < 100, "it is waited for");
        rig.cache.tick(&rig.cx);
        Ok(())
    };
    let Ok(committed) = rig.executor.block_on(rig.cache.commit(&rig.cx), second);
    committed.expect("with durability process it goes on");
    assert!((9..12).contains(&seconds), "{seconds} s");
    check_out(&rig, false);
}

/// A stop of a server whose device hangs just then, with objects that only DRAM and buffers hold.
#[test]
fn a_stop_ends_although_the_device_hangs() {
    let mut outs = 0;
    for kind in 0..KINDS {
        // In each of its operations, the last flush too, and then in none.
        for at in 1.. {
            let mut run = Run::new(kind, of_kind(kind));
            let rig = run.filled();
            run.steps(&rig, 100);
            run.medium.set_plan(hanging(at));
            // Nobody but whoever waits hears of what is overdue.
            let wait = || -> Result<(), Infallible> {
                if rig.cx.device.turn(true).expect("the device turns") == 0 {
                    rig.cx.device.tick(PATIENCE_SECS);
                    rig.cache.tick(&rig.cx);
                }
                Ok(())
            };
            let Ok(closed) = rig.executor.block_on(rig.cache.close(&rig.cx), wait);
            let is_out = rig.cache.flash_failure().is_some();
            let hung = run.medium.counts().hung;
            assert_eq!(is_out, hung > 0, "{hung} hung");
            assert_eq!(closed.is_err(), is_out, "{closed:?}");
            outs += u64::from(is_out);
            let rig = run.kill_and_heal(rig);
            run.compare(&rig);
            if hung == 0 {
                break;
            }
        }
    }
    assert!(outs > KINDS, "{outs}");
}
