//! Who keeps a file or block device from being opened, as far as /proc and /sys tell.

use rustix::fs::{Stat, major, minor, stat};
use std::path::{Path, PathBuf};

/// The process that holds the lock (`flock`) of what has this `stat`, such as `process 1234 (pumice)`; `another process` where that
/// cannot be told, as of one in another container.
pub fn holder(held: &Stat) -> String {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let Some(pid) = lock_of(&locks, held.st_dev, held.st_ino) else {
        return "another process".to_owned();
    };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end().escape_default()),
        Err(_) => format!("process {pid}"),
    }
}

/// The process that has a lock by /proc/locks, whose lines are `1: FLOCK  ADVISORY  WRITE 1234 fd:00:131 0 EOF`. Who waits for a lock has
/// an arrow behind the number.
fn lock_of(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().skip(1).take(5).collect();
        let ["FLOCK", _, _, pid, at] = words[..] else {
            return None;
        };
        pid.parse().ok().filter(|pid| *pid > 0 && at == place)
    })
}

/// Where a block device with this number, or a partition of it, is mounted.
pub fn mounted_at(device: u64) -> Option<PathBuf> {
    let is_mounted = |number: &str, source: &str| {
        let whole = std::fs::read_to_string(format!("/sys/dev/block/{number}/../dev"));
        let of = format!("{}:{}", major(device), minor(device));
        // btrfs has a number of its own for each mount.
        number == of
            || whole.is_ok_and(|whole| whole.trim_end() == of)
            || stat(source).is_ok_and(|source| source.st_rdev == device)
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        // A line: `36 35 8:1 / /srv rw - ext4 /dev/sda1 rw`. The device number is its third word, the place its fifth, the source the second
        // word behind the lone `-`.
        let (head, tail) = line.split_once(" - ")?;
        let (mut head, source) = (head.split(' ').skip(2), tail.split(' ').nth(1)?);
        let (number, point) = (head.next()?, head.nth(1)?);
        is_mounted(number, source).then(|| Path::new(&unescaped(point)).to_owned())
    })
}

/// A path of /proc/self/mountinfo, where a blank is `\040`.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_device_and_inode_and_who_waits_has_none() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fd:00:131 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fd:00:131 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 fd:01:131 0 EOF\n\
                     4: FLOCK  ADVISORY  READ  10 fd:00:131 0 EOF\n";
        let device = rustix::fs::makedev(0xfd, 0);
        assert_eq!(lock_of(locks, device, 131), Some(10));
        assert_eq!(lock_of(locks, device, 132), None);
    }
}
