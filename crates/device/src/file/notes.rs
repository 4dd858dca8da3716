//! Notes beside a device: that it has failed, in files on other drives.
//!
//! A note of `id` is a file `pumice-<id in 16 hexadecimal digits>.failed` in some directory. Each is written by a thread of its
//! own, which ends with it: a file system that fails may not answer for minutes, and nobody is to wait for it if another does.

use super::aside::{Job, Place, any_of};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// See the module's text.
pub(super) struct Notes {
    device: PathBuf,
    directories: Vec<(PathBuf, Place)>,
}

impl Notes {
    /// Notes about `device`.
    pub(super) fn new(device: &Path, directories: Vec<PathBuf>) -> Self {
        let with_place = |directory| (directory, Place::default());
        Self {
            device: device.into(),
            directories: directories.into_iter().map(with_place).collect(),
        }
    }

    fn paths(&self, id: u64) -> impl Iterator<Item = PathBuf> {
        let name = format!("pumice-{id:016x}.failed");
        let directories = self.directories.iter();
        directories.map(move |(directory, _)| directory.join(&name))
    }

    /// Writes the note everywhere; done as soon as it stands in one place.
    pub(super) fn write(&self, id: u64) -> impl Future<Output = io::Result<()>> + 'static + use<> {
        let paths: Vec<PathBuf> = self.paths(id).collect();
        let places = self.directories.iter().map(|(_, place)| place.clone());
        let jobs = paths.into_iter().zip(places).map(|(path, place)| {
            let device = self.device.clone();
            let job: Job = Box::new(move || write(&path, &device));
            (place, job)
        });
        any_of("pumice-note", jobs)
    }

    /// Whether the note stands in any place.
    pub(super) fn has(&self, id: u64) -> io::Result<bool> {
        let mut unknown = None;
        for path in self.paths(id) {
            match path.symlink_metadata() {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unknown = Some(failed("look for", &path, &error)),
            }
        }
        unknown.map_or(Ok(false), Err)
    }

    /// Removes the note from all places.
    pub(super) fn remove(&self, id: u64) {
        for path in self.paths(id) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(
                        "cannot remove {}, which means nothing any more: {error}",
                        path.display()
                    );
                }
                _ => {}
            }
        }
    }
}

fn write(path: &Path, device: &Path) -> io::Result<()> {
    let noted = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            // Other users may be able to write to the directory.
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)?;
        writeln!(
            file,
            "The flash device {} failed while it was served, and missed changes. The next start makes an empty cache of it and \
             removes this file.",
            device.display()
        )?;
        file.sync_all()?;
        // The name, too.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    noted().map_err(|error| failed("write", path, &error))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Executor;
    use std::convert::Infallible;
    use tempfile::tempdir;

    fn note(notes: &Notes, id: u64) -> io::Result<()> {
        let wait = || -> Result<(), Infallible> {
            std::thread::yield_now();
            Ok(())
        };
        let Ok(result) = Executor::new().block_on(notes.write(id), wait);
        result
    }

    #[test]
    fn a_note_stands_where_one_directory_takes_it_and_is_removed() {
        let good = tempdir().unwrap();
        let missing = good.path().join("missing");
        let notes = Notes::new(Path::new("flash"), vec![missing.clone(), good.path().into()]);
        assert!(!notes.has(7).unwrap());
        note(&notes, 7).unwrap();
        note(&notes, 7).unwrap();
        assert!(notes.has(7).unwrap() && !notes.has(8).unwrap());
        let text = std::fs::read_to_string(good.path().join("pumice-0000000000000007.failed")).unwrap();
        assert!(text.contains("device flash failed"), "{text}");
        notes.remove(7);
        assert!(!notes.has(7).unwrap());
        let nowhere = Notes::new(Path::new("flash"), vec![missing]);
        let error = note(&nowhere, 7).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        let none = Notes::new(Path::new("flash"), Vec::new());
        assert_eq!(note(&none, 7).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_link_is_not_followed() {
        let place = tempdir().unwrap();
        let target = place.path().join("precious");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, place.path().join("pumice-0000000000000009.failed")).unwrap();
        let notes = Notes::new(Path::new("flash"), vec![place.path().into()]);
        note(&notes, 9).unwrap_err();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
}
