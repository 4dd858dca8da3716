//! A device over a simulated drive.

use super::model::Ftl;
use super::options::FtlError;
use pumice_device::{Buffer, Device, Operation, check_range, forward};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A handle that passes everything on to another device and shows a model what is written.
///
/// All handles on one device share the model. A write counts when it is asked for, whether it succeeds or not, and
/// also if its future is dropped; one whose range is refused does not. Bytes that are appended to a log count by the
/// pages that they fill ([`Ftl::write`]); a sync does not write out the page that the log has reached.
#[derive(Debug, Clone)]
pub struct FtlDevice<D> {
    inner: D,
    ftl: Arc<Mutex<Ftl>>,
}

impl<D: Device> FtlDevice<D> {
    /// A handle on `inner` that shows `ftl` what is written.
    ///
    /// # Errors
    /// [`FtlError::Capacity`] where the model has not as many logical bytes as the device.
    pub fn new(inner: D, ftl: Arc<Mutex<Ftl>>) -> Result<Self, FtlError> {
        let logical_bytes = locked(&ftl).options().logical_bytes;
        if logical_bytes != inner.capacity() {
            return Err(FtlError::Capacity {
                capacity: inner.capacity(),
                logical_bytes,
            });
        }
        Ok(Self { inner, ftl })
    }
}

fn locked(ftl: &Mutex<Ftl>) -> MutexGuard<'_, Ftl> {
    ftl.lock()
        .expect("the model does not panic on ranges inside the device")
}

impl<D: Device> Device for FtlDevice<D> {
    type Buf = D::Buf;
    forward!(inner: capacity, read, read_log, is_hole, sync, tick, turn);

    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()> {
        let inside = range.start <= range.end && range.end <= data.len();
        if inside && check_range(self.capacity(), offset, range.len()).is_ok() {
            locked(&self.ftl).write(offset, range.len() as u64);
        }
        self.inner.write(offset, data, range)
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.append_log(offset, bytes)?;
        locked(&self.ftl).write(offset, bytes.len() as u64);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) {
        locked(&self.ftl).trim(offset, len);
        self.inner.discard(offset, len);
    }
}
