//! Storage commands whose value comes in pieces, because it is large, or is joined to a large one.

use super::store::{Verdict, is_plain};
use super::{Executor, Output};
use crate::parse::{Mode, Store};
use pumice::{Meta, NewObject, Object, ObjectWriter, Outcome};
use pumice_device::{Device, Payload};

/// Times that a value is joined to a large one anew, because another change came between.
const JOINS_MAX: usize = 8;

/// A storage command whose value is on its way.
pub(crate) struct Incoming<'a, D: Device + Clone> {
    store: Store<'a>,
    value_len: usize,
    expiry: u32,
    /// Where the value goes, or why it is not wanted.
    writer: Result<ObjectWriter<D>, Verdict>,
    /// What append and prepend join it to.
    joined: Option<Object<D::Buf>>,
}

impl<D: Device + Clone> Incoming<'_, D> {
    /// Takes the next bytes of the value.
    pub(crate) async fn append(&mut self, bytes: &[u8]) {
        if let Ok(writer) = &mut self.writer
            && writer.append(bytes).await.is_err()
        {
            self.writer = Err(Verdict::Rejected);
        }
    }
}

impl<D: Device + Clone> Executor<D> {
    /// Whether a value of this length is received in pieces.
    pub(crate) fn is_in_pieces(&self, store: &Store<'_>, value_len: usize) -> bool {
        let mut scratch = super::scratch();
        self.cache
            .is_large(store.key.bytes(&mut scratch), value_len as u64)
    }

    /// Memory that receiving it takes, in bytes.
    pub(crate) fn pieces_bytes(&self, store: &Store<'_>, value_len: usize) -> usize {
        let mut scratch = super::scratch();
        let key = store.key.bytes(&mut scratch);
        match joins(store) {
            true => self.cache.transfer_bytes(key),
            false => self.cache.writer_bytes(key, Some(value_len as u64)),
        }
    }

    /// Begins to store a value that comes in pieces.
    pub(crate) async fn begin<'a>(&self, store: Store<'a>, value_len: usize) -> Incoming<'a, D> {
        let mut incoming = Incoming {
            store,
            value_len,
            expiry: self.expiry(store.exptime),
            writer: Err(Verdict::NotStored),
            joined: None,
        };
        let mut scratch = super::scratch();
        let key = store.key.bytes(&mut scratch);
        let mut meta = Meta {
            flags: store.flags,
            expiry: incoming.expiry,
            marks: 0,
        };
        let mut len = value_len;
        if !is_plain(&store) {
            // What is refused in the end, too, is not to be written to flash before.
            let seen = self.cache.get_head(&self.cx, key).await;
            match self.decide_meta(&store, value_len, seen.as_ref(), incoming.expiry) {
                Ok(decided) => meta = decided,
                Err(why) => {
                    incoming.writer = Err(why);
                    return incoming;
                }
            }
            incoming.joined = seen.filter(|_| joins(&store));
            if let Some(joined) = &mut incoming.joined {
                len += joined.value_len();
                // Whoever waits for the peer, or for room, must not pin what is waited for.
                joined.detach();
            }
        }
        let new = NewObject {
            meta,
            len: Some(len as u64),
            ..NewObject::default()
        };
        incoming.writer = (self.cache.begin(&self.cx, key, new)).map_err(|_| Verdict::Rejected);
        if store.mode == Mode::Append {
            self.copy_joined(&mut incoming).await;
        }
        incoming
    }

    /// Appends what the value is joined to.
    async fn copy_joined(&self, incoming: &mut Incoming<'_, D>) {
        let Some(joined) = &incoming.joined else {
            return;
        };
        let mut reader = self.cache.reader(&self.cx, joined.key(), joined);
        while incoming.writer.is_ok() {
            match reader.read().await {
                Ok(None) => return,
                // It has been evicted: there is nothing to join it to.
                Err(_) => return incoming.writer = Err(Verdict::NotStored),
                Ok(Some(mut pieces)) => {
                    pieces.detach();
                    for part in pieces.parts() {
                        match part {
                            Payload::Bytes(bytes) => incoming.append(bytes).await,
                            Payload::Void(len) => incoming.append(&vec![0; len]).await,
                        }
                    }
                }
            }
        }
    }

    /// The value is whole: what becomes of it.
    async fn settle(&self, mut incoming: Incoming<'_, D>) -> Verdict {
        if incoming.store.mode == Mode::Prepend {
            self.copy_joined(&mut incoming).await;
        }
        let Incoming {
            store,
            value_len,
            expiry,
            writer,
            joined,
        } = incoming;
        let mut scratch = super::scratch();
        let key = store.key.bytes(&mut scratch);
        let mut writer = match writer {
            Ok(writer) => writer,
            Err(why) => {
                if why == Verdict::Rejected && is_plain(&store) {
                    // What it would have replaced is stale.
                    self.cache.delete(&self.cx, key).await;
                }
                return why;
            }
        };
        let mut told = (value_len, expiry);
        let verdict = if is_plain(&store) {
            Verdict::of(writer.finish().await)
        } else {
            let mut refused = Verdict::NotStored;
            let seen = joined.as_ref().map(Object::version);
            let outcome = writer.finish_if(|now| {
                if seen.is_some_and(|seen| now.map(Object::version) != Some(seen)) {
                    refused = Verdict::Busy;
                    return None;
                }
                let decided = self.decide_meta(&store, value_len, now, expiry);
                let meta = decided.map_err(|why| refused = why).ok()?;
                told = (
                    value_len + joined.as_ref().map_or(0, Object::value_len),
                    meta.expiry,
                );
                Some(meta)
            });
            match outcome.await {
                Outcome::Stored { version } => Verdict::Done { version },
                Outcome::Rejected(_) => Verdict::Rejected,
                Outcome::Busy => Verdict::Busy,
                Outcome::Kept | Outcome::Deleted => refused,
            }
        };
        if let Verdict::Done { .. } = verdict {
            self.tell_set(key, told.0, told.1);
        }
        verdict
    }

    /// The value is whole: stores it and answers.
    pub(crate) async fn end(&self, incoming: Incoming<'_, D>, output: &mut Output<D::Buf>) {
        let store = incoming.store;
        let verdict = self.settle(incoming).await;
        self.reply(&store, verdict, output);
    }

    /// Joins a value that is there to a large one. The caller holds no share.
    pub(super) async fn join(&self, store: &Store<'_>) -> Verdict {
        let bytes = self.pieces_bytes(store, store.value.len());
        let _share = self.shared.budgets.output.take(bytes).await;
        let mut verdict = Verdict::Busy;
        for _ in 0..JOINS_MAX {
            let mut incoming = self.begin(*store, store.value.len()).await;
            incoming.append(store.value).await;
            verdict = self.settle(incoming).await;
            if verdict != Verdict::Busy {
                break;
            }
        }
        verdict
    }
}

/// Whether the value is joined to one that is there.
fn joins(store: &Store<'_>) -> bool {
    matches!(store.mode, Mode::Append | Mode::Prepend)
}
