//! Giving up root.

use anyhow::anyhow;
use pumice_console::usage;
use std::ffi::{CStr, CString};
use std::io;

/// Becomes `name` for good, where the process was started as root; otherwise does nothing. To be called while the process
/// has one thread.
///
/// # Errors
/// Where there is no such user, or the system refuses.
pub fn become_user(name: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let c_name = CString::new(name).map_err(|_| usage("option `-u`: the name has a zero byte"))?;
    let (uid, gid) = find(&c_name).ok_or_else(|| usage(format!("option `-u`: there is no user `{name}`")))?;
    if uid == 0 {
        return Ok(());
    }
    set(&c_name, uid, gid).map_err(|error| anyhow!(error).context(format!("cannot become user `{name}`")))
}

fn find(name: &CStr) -> Option<(libc::uid_t, libc::gid_t)> {
    // SAFETY: the name ends with a zero byte; the result is null or valid until the next call, and no other thread runs
    // that could make one.
    unsafe {
        let entry = libc::getpwnam(name.as_ptr());
        entry.as_ref().map(|entry| (entry.pw_uid, entry.pw_gid))
    }
}

fn set(name: &CStr, uid: libc::uid_t, gid: libc::gid_t) -> io::Result<()> {
    let done = |result: libc::c_int| {
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: no pointers but a name that ends with a zero byte. Groups go first, while they still may.
    unsafe {
        done(libc::initgroups(name.as_ptr(), gid))?;
        done(libc::setgid(gid))?;
        done(libc::setuid(uid))
    }
}
