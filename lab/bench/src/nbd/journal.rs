//! The file that keeps what is known from one run to the next.
//!
//! `PumiceJ1`, number of the run, time, sectors, open sectors; the settled content of each sector; of each open one its number, a
//! count, and so many contents; last the XXH3 of all before. Words of eight bytes, little-endian.

use super::content::Content;
use super::model::Model;
use std::io;
use std::path::Path;
use twox_hash::XxHash3_64;

const MAGIC: u64 = u64::from_le_bytes(*b"PumiceJ1");
/// More changes than any run makes; a content names the change in 62 bits.
const CLOCK_BITS: u32 = 61;

/// Writes what is known as if the server had stopped, in place of what the file had.
///
/// # Errors
/// Those of the file.
pub fn save(path: &Path, run: u64, model: &mut Model) -> io::Result<()> {
    let (settled, clock, open) = model.save();
    let mut out = Vec::with_capacity(8 * settled.len() + 48);
    let mut put = |word: u64| out.extend(word.to_le_bytes());
    let head = [MAGIC, run, clock, settled.len() as u64, open.len() as u64];
    head.into_iter().for_each(&mut put);
    settled.iter().for_each(|content| put(content.0));
    for (sector, contents) in open {
        put(sector);
        put(contents.len() as u64);
        contents.iter().for_each(|content| put(content.0));
    }
    out.extend(XxHash3_64::oneshot(&out).to_le_bytes());
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    std::fs::write(&fresh, out)?;
    std::fs::rename(fresh, path)
}

/// Reads a file of [`save`], of at most `sectors_max` sectors: the number of its run, and what it knew.
///
/// # Errors
/// Those of the file; it is damaged, or has more sectors.
pub fn load(path: &Path, sectors_max: u64) -> io::Result<(u64, Model)> {
    let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let bytes = std::fs::read(path)?;
    let (bytes, sum) = bytes
        .split_last_chunk()
        .ok_or_else(|| bad("it is no journal of `pumice-bench nbd`"))?;
    if !bytes.starts_with(&MAGIC.to_le_bytes()) {
        return Err(bad("it is no journal of `pumice-bench nbd`"));
    }
    if XxHash3_64::oneshot(bytes) != u64::from_le_bytes(*sum) {
        return Err(bad("it is damaged"));
    }
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let mut take = || words.next().ok_or_else(|| bad("it is cut short"));
    let [_, run, clock, sectors, open] = [take()?, take()?, take()?, take()?, take()?];
    if sectors > sectors_max {
        return Err(bad("it is of a larger export"));
    }
    if clock >> CLOCK_BITS != 0 {
        return Err(bad("it is damaged"));
    }
    let mut contents = |len| {
        (0..len)
            .map(|_| take().map(Content))
            .collect::<io::Result<Vec<_>>>()
    };
    let settled = contents(sectors)?;
    let mut lists = Vec::new();
    for _ in 0..open {
        let [sector, len] = contents(2)?[..] else {
            return Err(bad("it is cut short"));
        };
        if sector.0 >= sectors || len.0 == 0 {
            return Err(bad("it is damaged"));
        }
        lists.push((sector.0, contents(len.0)?));
    }
    Ok((run, Model::load(settled, clock, lists)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_says_what_was_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut model = Model::new(4);
        let number = model.send_change(1..3, Content::version);
        model.end_change(number, 1..3, true, false);
        let flush = model.send_flush();
        model.end_flush(flush);
        model.send_change(2..4, Content::version);
        save(&path, 9, &mut model).unwrap();
        let (run, mut again) = load(&path, 4).unwrap();
        let known = again.save();
        let expected = model.save();
        assert_eq!((run, known.0, known.2), (9, expected.0, expected.2));
        assert!(known.1 >= expected.1);
        assert!(load(&path, 3).is_err());
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x81;
            std::fs::write(&path, &bytes).unwrap();
            assert!(load(&path, 1 << 40).is_err(), "{at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(load(&path, 4).is_err(), "{at}");
        }
    }

    /// A checksum that fits does not make it true.
    #[test]
    fn any_words_are_a_journal_that_can_be_used_or_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut model = Model::new(4);
        model.send_change(1..4, Content::version);
        save(&path, 9, &mut model).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut loaded = 0;
        for at in (8..whole.len() - 8).step_by(8) {
            for word in [
                0,
                1,
                2,
                3,
                4,
                5,
                1 << 32,
                1 << 61,
                1 << 62,
                u64::MAX >> 1,
                u64::MAX,
            ] {
                let mut bytes = whole[..whole.len() - 8].to_vec();
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
                bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
                std::fs::write(&path, &bytes).unwrap();
                let Ok((run, mut model)) = load(&path, 4) else {
                    continue;
                };
                loaded += 1;
                let number = model.send_change(0..model.sectors(), Content::version);
                model.end_change(number, 0..model.sectors(), true, true);
                save(&path, run, &mut model).unwrap();
                load(&path, 4).unwrap();
            }
        }
        assert!(loaded > 20, "{loaded}");
    }
}
