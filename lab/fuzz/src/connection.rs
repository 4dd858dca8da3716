//! The whole memcached door over a unix socket: whatever a client sends is answered in the protocol's forms, and the same however
//! it was cut into packets.

use crate::commands::narrow;
use crate::frames;
use crate::replies::Replies;
use pumice::{CacheOptions, Cx, ObjectCache};
use pumice_device::{MemDevice, MemMedium};
use pumice_door_memcached::parse::{Command, Limits, Parsed, parse};
use pumice_door_memcached::{Door, DoorConfig, Listen};
use pumice_world::{Clock, ManualClock, Spawner, Task};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

const START_SECS: u32 = 1_800_000_000;
const FLASH_BYTES: u64 = 1 << 20;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(data: &[u8]) {
    let limits = Limits {
        max_value_bytes: 100_000,
        ..narrow()
    };
    let limits = match data.first() {
        Some(first) if first & 1 == 1 => limits,
        _ => Limits {
            max_value_bytes: 100_000,
            ..Limits::default()
        },
    };
    let data = data.get(1..).unwrap_or_default();
    let whole = serve(&[data], limits);
    // In pieces of 1 to 8 bytes, as the bytes themselves say.
    let mut pieces = Vec::new();
    let mut rest = data;
    while let Some(first) = rest.first() {
        let (piece, after) = rest.split_at(usize::from(first % 8 + 1).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    let in_pieces = serve(&pieces, limits);
    assert!(
        without_stats(&whole) == without_stats(&in_pieces),
        "whole:\n{}\nin pieces:\n{}",
        whole.escape_ascii(),
        in_pieces.escape_ascii()
    );
    // In frames, which another target looks at one by one; or not in the protocol's forms, or too long to be one item.
    if matches!(data.first(), Some(0x80 | 0x16)) {
        return;
    }
    let items = items(data, &limits);
    if items
        .iter()
        .any(|item| matches!(item.parsed, Parsed::Keys { .. }))
    {
        return;
    }
    // With a no-op behind each command it is known which answer is whose.
    let mut with_noops: Vec<&[u8]> = Vec::new();
    for item in &items {
        with_noops.push(item.bytes);
        if item.is_whole() {
            with_noops.push(b"mn\r\n");
        }
    }
    let answers = serve(&with_noops, limits);
    let mut replies = Replies::new(&answers);
    let mut without_noops = Vec::new();
    for item in &items {
        let before = replies.rest();
        replies.answers(&item.parsed);
        without_noops.extend_from_slice(&before[..before.len() - replies.rest().len()]);
        if item.is_over() {
            break;
        }
        if item.is_whole() {
            replies.line_is(b"MN");
        }
    }
    assert!(
        replies.rest().is_empty(),
        "too much: {}",
        replies.rest().escape_ascii()
    );
    assert!(without_stats(&without_noops) == without_stats(&whole));
}

/// What stands in the input, with a refused value that is to be passed over.
struct Item<'a> {
    parsed: Parsed<'a>,
    bytes: &'a [u8],
    skip_left: u64,
}

impl Item<'_> {
    /// Whether what follows is read as a command.
    fn is_whole(&self) -> bool {
        !matches!(self.parsed, Parsed::Incomplete(_)) && self.skip_left == 0
    }

    /// Whether the connection ends here.
    fn is_over(&self) -> bool {
        match self.parsed {
            Parsed::TooLong => true,
            Parsed::Command { command, .. } => matches!(command, Command::Quit(_) | Command::Http),
            _ => false,
        }
    }
}

fn items<'a>(mut input: &'a [u8], limits: &Limits) -> Vec<Item<'a>> {
    let mut items: Vec<Item<'a>> = Vec::new();
    while !input.is_empty() {
        let parsed = parse(input, limits);
        let (consumed, skip) = match parsed {
            Parsed::Incomplete(_) | Parsed::TooLong | Parsed::Keys { .. } | Parsed::BadFrame { .. } => {
                (input.len(), 0)
            }
            Parsed::Command { command, consumed } => match command {
                Command::TooLarge(large) => (consumed, large.skip),
                _ => (consumed, 0),
            },
            Parsed::Malformed { consumed, skip, .. } => (consumed, skip),
        };
        let here = usize::try_from(skip)
            .unwrap_or(usize::MAX)
            .min(input.len() - consumed);
        let (bytes, rest) = input.split_at(consumed + here);
        items.push(Item {
            parsed,
            bytes,
            skip_left: skip - here as u64,
        });
        input = rest;
        if items.last().is_some_and(Item::is_over) {
            break;
        }
    }
    items
}

/// Figures of `stats` depend on how many packets there were.
fn without_stats(answers: &[u8]) -> Vec<u8> {
    if answers.first() == Some(&frames::REPLY) {
        return frames::without_stats(answers);
    }
    let lines = answers.split_inclusive(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.starts_with(b"STAT "))
        .flatten()
        .copied()
        .collect()
}

struct LocalSpawner;

impl Spawner for LocalSpawner {
    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }
}

thread_local! {
    static DIRECTORY: tempfile::TempDir = tempfile::tempdir().expect("a directory for the socket");
}

/// What a fresh server answers to these packets, sent one after the other, and then the end.
fn serve(packets: &[&[u8]], limits: Limits) -> Vec<u8> {
    DIRECTORY.with(|directory| serve_at(&directory.path().join("door"), packets, limits))
}

fn serve_at(socket: &Path, packets: &[&[u8]], limits: Limits) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build()
        .expect("a runtime");
    let config = DoorConfig {
        listen: vec![Listen::Unix {
            path: socket.to_owned(),
            mode: None,
        }],
        limits,
        // Small, so that values are received in both ways.
        inline_value_bytes: 16,
        ..DoorConfig::default()
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let door = Rc::new(Door::bind(config).expect("the socket can be made"));
        door.listen().expect("it listens");
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(START_SECS));
        let device = MemDevice::new(Arc::new(MemMedium::new(FLASH_BYTES)));
        let cx = Rc::new(Cx::new(device, clock, Rc::new(LocalSpawner)));
        let options = CacheOptions {
            dram_bytes: 1 << 20,
            buffers_max: 3,
            block_bytes: Some(64 << 10),
            ..CacheOptions::default()
        };
        let (cache, _) = ObjectCache::open(&cx, options)
            .await
            .expect("an empty device opens");
        let cache = Arc::new(cache);
        let (shutdown, stop) = watch::channel(false);
        let worker = {
            let (door, cache) = (Rc::clone(&door), Arc::clone(&cache));
            tokio::task::spawn_local(async move { door.run_worker(0, cx, cache, stop).await })
        };
        let answers = tokio::time::timeout(PATIENCE, talk(socket, packets))
            .await
            .expect("the server answers in time");
        shutdown.send_replace(true);
        worker
            .await
            .expect("the worker does not panic")
            .expect("it ends well");
        cache.check_books().expect("the books balance");
        answers
    })
}

/// Sends the packets and the end, and reads until the server has closed.
async fn talk(socket: &Path, packets: &[&[u8]]) -> Vec<u8> {
    let stream = UnixStream::connect(socket).await.expect("it listens");
    let (mut reads, mut writes) = stream.into_split();
    let mut answers = Vec::new();
    let send = async {
        for packet in packets {
            // The server may have closed: after quit, or where nothing after can be understood.
            if writes.write_all(packet).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = writes.shutdown().await;
    };
    let receive = async {
        // Closing with unread input is a reset; what was answered before counts.
        let _ = reads.read_to_end(&mut answers).await;
    };
    tokio::join!(send, receive);
    answers
}
