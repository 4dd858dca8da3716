//! Users and their passwords, from a file of lines `user:password`.

use pumice_net::{FileError, read_bounded};
use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The largest auth file, in bytes.
const MAX_FILE_BYTES: usize = 64 << 10;

/// The most users. Each attempt is compared with all of them, so this bounds what one costs.
const MAX_USERS: usize = 256;

/// The longest user, and the longest password, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// One user with a password: lengths and bytes of both at fixed places, so that a comparison always looks at as many bytes.
struct Entry([u8; 2 * (MAX_NAME_BYTES + 1)]);

impl Entry {
    /// `None` where one of them is too long.
    fn new(user: &[u8], password: &[u8]) -> Option<Self> {
        let mut entry = [0; 2 * (MAX_NAME_BYTES + 1)];
        for (text, place) in [user, password]
            .into_iter()
            .zip(entry.chunks_exact_mut(MAX_NAME_BYTES + 1))
        {
            place[0] = u8::try_from(text.len()).ok()?;
            place[1..=text.len()].copy_from_slice(text);
        }
        Some(Self(entry))
    }

    /// Whether both are the same; the time it takes says nothing about where they differ.
    fn is_same(&self, other: &Self) -> bool {
        let bytes = self.0.iter().zip(&other.0);
        black_box(bytes.fold(0, |differs, (one, two)| differs | (one ^ two))) == 0
    }
}

/// A file with who may use the server: lines `user:password`, at most 256 of them, each part of 1 to 255 bytes without spaces and
/// control characters. The first colon separates; the same user may stand there twice. Shared by all workers.
pub struct AuthFile {
    path: PathBuf,
    entries: RwLock<Arc<[Entry]>>,
}

impl fmt::Debug for AuthFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl AuthFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError`], which names the file and the line.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Ok(Self {
            path: path.to_owned(),
            entries: RwLock::new(read(path)?),
        })
    }

    /// Reads the file again. Who is connected stays so; where it fails, the old users stay.
    ///
    /// # Errors
    /// As [`AuthFile::load`].
    pub fn reload(&self) -> Result<(), FileError> {
        let entries = read(&self.path)?;
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many users with a password there are.
    pub fn users(&self) -> usize {
        self.entries().len()
    }

    /// Whether there is such a user with this password. Cost: 512 bytes are compared for each user in the file, whatever is
    /// asked.
    pub fn is_allowed(&self, user: &[u8], password: &[u8]) -> bool {
        let Some(asked) = Entry::new(user, password) else {
            return false;
        };
        let same = self
            .entries()
            .iter()
            .fold(0, |same, entry| same | u8::from(entry.is_same(&asked)));
        same == 1
    }

    fn entries(&self) -> Arc<[Entry]> {
        Arc::clone(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn read(path: &Path) -> Result<Arc<[Entry]>, FileError> {
    let wrong = |what: String| FileError(format!("auth file {}{what}", path.display()));
    let text = read_bounded(path, MAX_FILE_BYTES).map_err(|what| wrong(format!(": {what}")))?;
    // The last line may lack its end.
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    if text.is_empty() {
        return Err(wrong(": it has no line `user:password`".to_owned()));
    }
    let entries = text
        .split(|byte| *byte == b'\n')
        .enumerate()
        .map(|(number, line)| {
            let entry = match number < MAX_USERS {
                true => entry(line.strip_suffix(b"\r").unwrap_or(line)),
                false => Err("more users than can be kept (256)"),
            };
            entry.map_err(|what| wrong(format!(", line {}: {what}", number + 1)))
        });
    entries.collect()
}

fn entry(line: &[u8]) -> Result<Entry, &'static str> {
    let colon = memchr::memchr(b':', line).ok_or("expected user:password")?;
    let (user, password) = (&line[..colon], &line[colon + 1..]);
    if user.is_empty() {
        return Err("the user is empty");
    }
    if password.is_empty() {
        return Err("the password is empty");
    }
    if line.iter().any(|byte| *byte == b' ' || byte.is_ascii_control()) {
        return Err("spaces and control characters cannot be sent in a user or password");
    }
    Entry::new(user, password).ok_or("a user or password is longer than 255 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> (tempfile::NamedTempFile, Result<AuthFile, String>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let loaded = AuthFile::load(file.path()).map_err(|error| error.to_string());
        (file, loaded)
    }

    #[test]
    fn users_are_known_by_their_passwords() {
        let (_file, auth) = file(b"foo:bar\nbaz:qux:more\r\nfoo:next\n\xff:\xfe");
        let auth = auth.unwrap();
        assert_eq!(auth.users(), 4);
        for (user, password) in [("foo", "bar"), ("foo", "next"), ("baz", "qux:more")] {
            assert!(auth.is_allowed(user.as_bytes(), password.as_bytes()), "{user}");
        }
        assert!(auth.is_allowed(b"\xff", b"\xfe"));
        let long = "x".repeat(300);
        for (user, password) in [
            ("foo", "ba"),
            ("foo", "barx"),
            ("fo", "bar"),
            ("foo", "bar\0"),
            ("", ""),
            ("foo", ""),
            ("foo:bar", ""),
            ("baz", "qux"),
            ("baz", "bar"),
            ("foo", &long),
        ] {
            assert!(
                !auth.is_allowed(user.as_bytes(), password.as_bytes()),
                "{user} {password}"
            );
        }
    }

    #[test]
    fn errors_name_the_line_and_no_password() {
        let many = "user:secret\n".repeat(257);
        let long = format!("a:secret\nb:secret{}", "x".repeat(250));
        for (text, expected) in [
            (&b""[..], "it has no line `user:password`"),
            (b"a:secret\n\nb:secret\n", "line 2: expected user:password"),
            (b"secret\n", "line 1: expected user:password"),
            (b":secret", "line 1: the user is empty"),
            (b"a:secret\na:\n", "line 2: the password is empty"),
            (b"a:a secret\n", "line 1: spaces and control"),
            (b"a:a\0secret\n", "line 1: spaces and control"),
            (many.as_bytes(), "line 257: more users"),
            (long.as_bytes(), "line 2: a user or password is longer"),
            (&[b'x'; (64 << 10) + 1], "larger than 65536 bytes"),
        ] {
            let (file, result) = file(text);
            let error = result.expect_err(expected);
            assert!(error.contains(expected), "{error}");
            assert!(error.contains(&file.path().display().to_string()), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let missing = AuthFile::load(Path::new("/no/such/file"))
            .unwrap_err()
            .to_string();
        assert!(missing.starts_with("auth file /no/such/file: "), "{missing}");
    }

    #[test]
    fn a_file_that_cannot_be_read_again_changes_nothing() {
        let (file, auth) = file(b"foo:bar\n");
        let auth = auth.unwrap();
        std::fs::write(file.path(), b"foo:new\nother:one\n").unwrap();
        auth.reload().unwrap();
        assert!(auth.is_allowed(b"foo", b"new") && !auth.is_allowed(b"foo", b"bar"));
        std::fs::write(file.path(), b"broken\n").unwrap();
        assert!(auth.reload().is_err());
        assert!(auth.is_allowed(b"foo", b"new") && auth.users() == 2);
    }
}
