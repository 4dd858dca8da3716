//! The disk that a client sees: it has a write cache, and FLUSH makes durable. By sector, each content as a hash.

use pumice_world::mix64;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// A hash of a sector's bytes.
fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(padded)
    });
    words.fold(1, |hash, word| mix64(hash ^ word))
}

#[derive(Clone)]
struct Sector {
    /// What the last FLUSH that covers the sector has made durable.
    durable: u64,
    /// Contents of the changes since then, the newest last.
    since: Vec<u64>,
    /// Contents before `durable`, the newest last; few.
    before: Vec<u64>,
    /// Of a change that failed the sector may have the old or the new content.
    is_sure: bool,
}

impl Sector {
    fn newest(&self) -> u64 {
        *self.since.last().unwrap_or(&self.durable)
    }

    fn made_durable(&mut self, content: u64) {
        if self.durable != content {
            self.before.push(self.durable);
            if self.before.len() > 8 {
                self.before.remove(0);
            }
        }
        self.durable = content;
    }
}

/// What each sector of a disk may have.
#[derive(Clone)]
pub struct Disk(Vec<Sector>);

impl Disk {
    /// A disk of zeros.
    pub fn new(bytes: usize) -> Self {
        let zero = hash(&[0; SECTOR]);
        let sector = Sector {
            durable: zero,
            since: Vec::new(),
            before: Vec::new(),
            is_sure: true,
        };
        Self(vec![sector; bytes / SECTOR])
    }

    /// A change of whole sectors from `offset` on; one that was not done may be done in part.
    pub fn change(&mut self, offset: usize, bytes: &[u8], is_done: bool, is_durable: bool) {
        for (sector, bytes) in self.0[offset / SECTOR..].iter_mut().zip(bytes.chunks(SECTOR)) {
            let content = hash(bytes);
            sector.since.push(content);
            sector.is_sure = is_done;
            if is_done && is_durable {
                sector.since.clear();
                sector.made_durable(content);
            }
        }
    }

    /// A FLUSH was answered that began when the disk was as `before`, and no change has been noted since.
    pub fn flushed(&mut self, before: &Self) {
        for (sector, before) in self.0.iter_mut().zip(&before.0) {
            if before.is_sure {
                sector.made_durable(before.newest());
                sector.since.clear();
            }
        }
    }

    /// A clean stop.
    pub fn stopped(&mut self) {
        let before = self.clone();
        self.flushed(&before);
    }

    /// While it runs a read finds the newest content.
    ///
    /// # Errors
    /// The sector that has another, and how old that is.
    pub fn read(&self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        for (number, bytes) in (offset / SECTOR..).zip(bytes.chunks(SECTOR)) {
            let sector = &self.0[number];
            let found = hash(bytes);
            let is_right = match sector.is_sure {
                true => found == sector.newest(),
                false => sector.since.contains(&found) || sector.durable == found,
            };
            if !is_right {
                return Err(format!("sector {number} is {}", sector.name(found)));
            }
        }
        Ok(())
    }

    /// After an end that was not clean a read finds the content of the last FLUSH, or of a change since then. It is there to stay.
    ///
    /// # Errors
    /// The sector that has another, and how old that is.
    pub fn found(&mut self, offset: usize, bytes: &[u8]) -> Result<(), String> {
        for (number, bytes) in (offset / SECTOR..).zip(bytes.chunks(SECTOR)) {
            let sector = &mut self.0[number];
            let found = hash(bytes);
            if found != sector.durable && !sector.since.contains(&found) {
                return Err(format!("sector {number} is {}", sector.name(found)));
            }
            sector.made_durable(found);
            (sector.since, sector.is_sure) = (Vec::new(), true);
        }
        Ok(())
    }
}

impl Sector {
    fn name(&self, found: u64) -> String {
        match self.before.iter().rev().position(|before| *before == found) {
            Some(age) => format!("older than what was flushed, by {}", age + 1),
            None if self.durable == found => "what was flushed last, not the newest".to_owned(),
            None if self.since.contains(&found) => "older than the newest".to_owned(),
            None => "of unknown content".to_owned(),
        }
    }
}
