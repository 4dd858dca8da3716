//! Machines that refuse O_DIRECT or io_uring, made by a seccomp filter on the test's own thread: the device works
//! on, and says why once.

use pumice_device::{Engine, FileDevice, FileOptions, FileShared};
use pumice_testkit::conformance::{MIN_CAPACITY, check};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span;

/// Keeps the text of every warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A condition on the low half of an argument of a system call.
enum Argument {
    /// Whichever it is.
    Any,
    /// The argument of that index has the bit.
    HasBit(u32, u32),
    /// The argument of that index is the value.
    Is(u32, u32),
}

/// From now on, on this thread and those it starts, `syscall` fails with `errno` where its argument is as described.
fn refuse(syscall: libc::c_long, argument: Argument, errno: i32) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (index, test) = match argument {
        Argument::Any => (0, step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 0)),
        Argument::HasBit(index, bit) => (index, step(libc::BPF_JMP | libc::BPF_JSET, 0, 1, bit)),
        Argument::Is(index, value) => (index, step(libc::BPF_JMP | libc::BPF_JEQ, 0, 1, value)),
    };
    // Offsets in struct seccomp_data: the call's number at 0, the arguments from 16, 8 bytes each.
    let mut steps = [
        step(load, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ,
            0,
            3,
            u32::try_from(syscall).unwrap(),
        ),
        step(load, 0, 0, 16 + 8 * index),
        test,
        step(
            libc::BPF_RET,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        ),
        step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 6,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a call without pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0);
    // SAFETY: the program and its steps live until the call returns; the kernel copies them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Opens a file and runs the suite on it, on a thread of its own after `prepare`; returns the warnings.
fn opened(prepare: impl FnOnce() + Send, expected: (bool, Engine)) -> Vec<String> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("flash");
    let warnings = Warnings::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            prepare();
            tracing::subscriber::with_default(warnings.clone(), || {
                let options = FileOptions {
                    size: Some(MIN_CAPACITY),
                    io_threads: 4,
                    ..FileOptions::default()
                };
                let shared = Arc::new(FileShared::open(&path, &options).unwrap());
                assert_eq!((shared.is_direct(), shared.engine()), expected);
                check(|| FileDevice::new(Arc::clone(&shared), 16).unwrap());
            });
        });
    });
    let warnings = warnings.0.lock().unwrap();
    assert!(
        warnings.iter().all(|text| text.contains(path.to_str().unwrap())),
        "{warnings:?}"
    );
    warnings.clone()
}

#[test]
fn a_machine_that_refuses_nothing_gets_no_warning() {
    let warnings = opened(|| {}, (true, Engine::IoUring));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_kernel_without_io_uring_gets_threads_and_one_warning() {
    let warnings = opened(
        || refuse(libc::SYS_io_uring_setup, Argument::Any, libc::EPERM),
        (true, Engine::Threads),
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("io_uring") && warnings[0].contains("not permitted"),
        "{warnings:?}"
    );
}

#[test]
fn a_file_system_without_o_direct_gets_the_page_cache_and_one_warning() {
    let warnings = opened(
        || {
            let direct = libc::O_DIRECT.unsigned_abs();
            refuse(libc::SYS_openat, Argument::HasBit(2, direct), libc::EINVAL);
            #[cfg(target_arch = "x86_64")]
            refuse(libc::SYS_open, Argument::HasBit(1, direct), libc::EINVAL);
        },
        (false, Engine::IoUring),
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("O_DIRECT") && warnings[0].contains("EINVAL"),
        "{warnings:?}"
    );
}

#[test]
fn a_file_system_that_refuses_o_direct_only_when_it_is_used_is_found_out_too() {
    let warnings = opened(
        // The trial read is of one sector.
        || refuse(libc::SYS_pread64, Argument::Is(2, 4096), libc::EINVAL),
        (false, Engine::IoUring),
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}
