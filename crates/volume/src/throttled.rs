//! A backing device that is as slow as another kind of device.

use crate::{Backing, Extent};
use bytes::Bytes;
use futures_util::future::{OptionFuture, join};
use pumice_device::{Delays, Kind};
use std::io;

/// A handle that passes everything on to another backing device, and is done with it when the model of [`Delays`] is. A change to zeros passes no
/// bytes; a list of extents takes no time.
#[derive(Clone)]
pub struct ThrottledBacking<K> {
    inner: K,
    delays: Delays,
}

impl<K: Backing> ThrottledBacking<K> {
    /// A handle on `inner` that is as slow as `delays` say.
    pub fn new(inner: K, delays: Delays) -> Self {
        Self { inner, delays }
    }
}

impl<K: Backing> Backing for ThrottledBacking<K> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn modified(&self) -> io::Result<u64> {
        self.inner.modified()
    }

    fn may_change_later(&self, error: &io::Error) -> bool {
        self.inner.may_change_later(error)
    }

    fn can_stand_in(&self) -> bool {
        self.inner.can_stand_in()
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let delay = OptionFuture::from(self.delays.begin(Kind::Read, offset, len));
        join(self.inner.read_at(offset, len), delay).await.0
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let delay = OptionFuture::from(self.delays.begin(Kind::Write, offset, data.len()));
        join(self.inner.write_at(offset, data), delay).await.0
    }

    async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        let delay = OptionFuture::from(self.delays.begin(Kind::Write, offset, 0));
        join(self.inner.zero(offset, len, may_punch), delay).await.0
    }

    async fn flush(&self) -> io::Result<()> {
        let delay = OptionFuture::from(self.delays.writes_done());
        join(self.inner.flush(), delay).await.0
    }

    async fn extents(&self, offset: u64, len: u64, most: usize) -> io::Result<Vec<Extent>> {
        self.inner.extents(offset, len, most).await
    }
}
