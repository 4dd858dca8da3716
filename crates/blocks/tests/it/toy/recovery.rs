//! A start: what the device has, and what that means for a store of copies, and for one of the only copy.

use super::piece::{Place, read_piece};
use super::{Died, Index, Maps, NOW, STORE, Toy};
use locks::Mutex;
use pumice_blocks::chain::StreamReader;
use pumice_blocks::footer::{Entry, OWN_BYTES, Trailer};
use pumice_blocks::inspect::{Inspection, inspect};
use pumice_blocks::log::LogRecord;
use pumice_blocks::open::read_superblock;
use pumice_blocks::recovery::{LogEnd, PieceBegin, Recovery, Restore, Restored, StartClock};
use pumice_blocks::{Blocks, Durability, Geometry, Maker, Old, OpenError, Start, Superblock};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_record::codec::Fields;
use pumice_testkit::FaultyDevice;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::AtomicBool;

const BLOCK_BYTES: u64 = 64 << 10;
/// A block takes four steps.
const STEP_BYTES: usize = 16 << 10;

/// What a start finds.
#[derive(Default)]
pub struct Found {
    cache_id: u64,
    /// Whether a start that misses anything is refused.
    keeps: bool,
    index: Index,
    /// Log position at the dump of the index.
    dumped: u64,
    /// Whether there was something, and all of it had to be forgotten.
    pub has_forgotten: bool,
    /// Blocks that must be there and are not.
    pub lost: Vec<u32>,
    /// Blocks that were made of the beginnings of such as were being filled.
    pub prefixes: u64,
}

impl Restore for Found {
    type Kind = Died;
    type Entry = Place;
    type Own = ();

    async fn restore<B, R>(&mut self, stream: &mut StreamReader<'_, R>) -> Result<(), OpenError>
    where
        B: Buffer,
        R: AsyncFn(u64, usize) -> io::Result<B>,
    {
        let bytes = stream.take(8).await?;
        self.dumped = Fields(&bytes).u64().expect("eight bytes were taken");
        // Checksums are seen at the stream's end only, and places are believed from here on.
        let Geometry {
            blocks, block_bytes, ..
        } = *stream.geometry();
        let mapping = |fields: &mut Fields<'_>| {
            let (block, place) = (fields.u32()?, Place::decode(fields, None, 0)?);
            (block < blocks && place.range().end <= block_bytes).then_some((block, place))
        };
        for (block, place) in stream.list("mapping", 4 + Place::BYTES, mapping).await? {
            self.index.insert(place.key, (block, place));
        }
        Ok(())
    }

    fn forget(&mut self) {
        (self.index, self.dumped) = (Index::new(), 0);
    }

    fn piece<B: Buffer>(&self, buffer: &B, begin: PieceBegin) -> Option<Place> {
        let (place, _) = read_piece(buffer, begin.at, self.cache_id, begin.sequence)?;
        Some(Place {
            offset: begin.offset,
            ..place
        })
    }

    // No piece is torn, and with the only copy of a value its later version counts.
    fn finds_ends(&self) -> bool {
        self.keeps
    }

    fn trailer(&self, _: &[Place], _: u16) -> [u8; OWN_BYTES] {
        [0; OWN_BYTES]
    }
}

impl Found {
    /// Brings what the checkpoint had up to date, or says why it cannot be trusted.
    async fn find(&mut self, recovery: &mut Recovery<'_, FaultyDevice>) -> Result<Old, &'static str> {
        if recovery.superblock.discard && !recovery.superblock.clean {
            return Err("a record was lost");
        }
        let snapshot = match recovery.snapshot(self).await {
            Restored::Whole(snapshot) => Some(snapshot),
            Restored::None => None,
            Restored::Lost => return Err("no checkpoint is whole"),
        };
        let (mut void, mut since) = (HashMap::new(), Vec::new());
        let dumped = self.dumped;
        let end = recovery.log(snapshot.as_ref(), |Died, record: &LogRecord<Died>| {
            let highest = void.entry(record.a).or_insert(0);
            *highest = record.b.max(*highest);
            if record.position >= dumped {
                since.push((record.a, record.b));
            }
        });
        let summary = match end {
            LogEnd::Whole(summary) => summary,
            LogEnd::Gap(_) => return Err("the log has a gap"),
            LogEnd::Missing => return Err("the log is missing"),
            LogEnd::Failed(_) => return Err("the log cannot be read"),
        };
        let blocks = recovery.blocks(snapshot.as_ref(), &summary, self).await;
        (self.lost, self.prefixes) = (blocks.lost, blocks.prefixes);
        if self.keeps && !(self.lost.is_empty() && recovery.unread_blocks.is_empty()) {
            return Err("a block is not there, or cannot be read");
        }
        self.index.retain(|_, (block, _)| blocks.covered[*block as usize]);
        let version = |index: &Index, key| index.get(&key).map(|(_, place)| place.version);
        for (key, died) in since {
            if version(&self.index, key).is_some_and(|version| version < died) {
                self.index.remove(&key);
            }
        }
        let mut sealed: BTreeMap<u64, (u32, u32)> = (blocks.sealed.iter())
            .map(|(id, row, _)| (row.sequence, (*id, row.footer_len)))
            .collect();
        for (block, trailer) in blocks.new {
            let Some(entries) = recovery.entries::<Place>(block, &trailer).await else {
                match self.keeps {
                    true => return Err("a footer cannot be read"),
                    false => continue,
                }
            };
            sealed.insert(trailer.sequence, (block, footer_len(&trailer)));
            for place in entries {
                let is_void = void.get(&place.key).is_some_and(|died| place.version < *died);
                let is_newer = version(&self.index, place.key).is_none_or(|version| version < place.version);
                if !is_void && is_newer {
                    self.index.insert(place.key, (block, place));
                }
            }
        }
        Ok(Old {
            log_next: summary.scan.next,
            next_sequence: blocks.next_sequence,
            checkpoint_blocks: snapshot.map_or(Vec::new(), |snapshot| snapshot.blocks),
            sealed: (sealed.into_iter())
                .map(|(sequence, (id, footer_len))| (id, sequence, footer_len))
                .collect(),
        })
    }
}

fn footer_len(trailer: &Trailer) -> u32 {
    u32::try_from(trailer.footer_len()).expect("shorter than a block")
}

/// The superblock of an empty device.
fn format(device: &FaultyDevice) -> Result<Superblock, OpenError> {
    Ok(Superblock {
        cache_id: 77,
        store: STORE,
        geometry: Geometry::plan(device.capacity(), BLOCK_BYTES)?,
        maker: Maker::Serve,
        time: NOW,
        ..Superblock::default()
    })
}

impl Toy {
    /// Opens what is on a device, formats an empty one.
    pub async fn open(
        device: &FaultyDevice,
        keeps: bool,
        durability: Durability,
    ) -> Result<(Self, Found), OpenError> {
        let superblock = read_superblock(device, STORE)?;
        let formatted = superblock.is_none();
        let superblock = superblock.map_or_else(|| format(device), Ok)?;
        let mut recovery = Recovery::new(device, superblock);
        let mut found = Found {
            cache_id: superblock.cache_id,
            keeps,
            ..Found::default()
        };
        let old = match formatted {
            true => None,
            false => match found.find(&mut recovery).await {
                Err(why) if keeps => {
                    let (what, source) = ("the only copy", io::Error::other(why));
                    return Err(OpenError::Device { what, source });
                }
                old => old.ok(),
            },
        };
        let (was_clean, mut superblock) = (recovery.clean && old.is_some(), recovery.superblock);
        let is_new = old.is_none();
        found.has_forgotten = is_new && !formatted;
        let old = old.unwrap_or_else(|| {
            found.forget();
            superblock.begin_anew(5);
            Old::default()
        });
        let clock = StartClock {
            now: NOW,
            accept_clock: false,
        };
        superblock.begin_start(0, 0, clock, formatted);
        superblock.discard = false;
        let maps = Maps {
            index: std::mem::take(&mut found.index),
            active: None,
        };
        let own = old.sealed.iter().map(|(id, ..)| *id).collect();
        let toy = Self {
            base: Blocks::new(Start {
                superblock,
                old,
                durability,
                flush_interval_secs: 2,
                buffers_max: 3,
                step_bytes: STEP_BYTES,
                now: NOW,
                own,
            }),
            device: device.clone(),
            keeps,
            maps: Mutex::new(maps),
            distrusts: AtomicBool::new(false),
        };
        toy.base.record_start(device, is_new.then_some(Died)).await?;
        if !is_new && !was_clean {
            let is_only = match toy.checkpoint(false).await {
                Ok(_) => toy.base.forget_previous_checkpoint(device),
                Err(_) => false,
            };
            match is_only {
                true => {}
                false if keeps => return Err(OpenError::Unwritable(1)),
                false => toy.base.journal.mark_discard(device),
            }
        }
        Ok((toy, found))
    }

    /// What is wrong on a device; `None` where it is empty.
    pub async fn inspect(device: &FaultyDevice) -> Result<Option<Inspection>, OpenError> {
        let Some(superblock) = read_superblock(device, STORE)? else {
            return Ok(None);
        };
        let mut found = Found {
            cache_id: superblock.cache_id,
            ..Found::default()
        };
        Ok(Some(inspect(device, &superblock, &mut found).await))
    }
}
