//! Methods of a device that pass to another.

/// Within `impl Device`: the methods of [`Device`](crate::Device) that a wrapper passes to the device in a field of its own, as they are.
///
/// ```
/// # use pumice_device::{Device, Operation, forward};
/// # use std::{io, ops::Range, sync::Arc};
/// struct ReadOnly<D>(D);
///
/// impl<D: Device> Device for ReadOnly<D> {
///     type Buf = D::Buf;
///     forward!(0: capacity, read, read_copy, read_log, is_hole, sync, tick, turn);
///
///     fn write(&self, _: u64, _: Arc<D::Buf>, _: Range<usize>) -> impl Operation<()> {
///         std::future::ready(Err(io::ErrorKind::ReadOnlyFilesystem.into()))
///     }
///
///     fn append_log(&self, _: u64, _: &[u8]) -> io::Result<()> {
///         Err(io::ErrorKind::ReadOnlyFilesystem.into())
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($to:tt: $($method:ident),+) => { $( $crate::forward!(@ $method $to); )+ };
    (@ capacity $to:tt) => {
        fn capacity(&self) -> u64 {
            $crate::Device::capacity(&self.$to)
        }
    };
    (@ read $to:tt) => {
        fn read(&self, offset: u64, len: usize) -> impl $crate::Operation<Self::Buf> {
            $crate::Device::read(&self.$to, offset, len)
        }
    };
    (@ read_copy $to:tt) => {
        fn read_copy<T: 'static>(
            &self,
            offset: u64,
            len: usize,
            check: impl Fn(Self::Buf) -> Option<T> + 'static,
        ) -> impl Future<Output = Option<T>> + 'static {
            $crate::Device::read_copy(&self.$to, offset, len, check)
        }
    };
    (@ write $to:tt) => {
        fn write(
            &self,
            offset: u64,
            data: std::sync::Arc<Self::Buf>,
            range: std::ops::Range<usize>,
        ) -> impl $crate::Operation<()> {
            $crate::Device::write(&self.$to, offset, data, range)
        }
    };
    (@ append_log $to:tt) => {
        fn append_log(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
            $crate::Device::append_log(&self.$to, offset, bytes)
        }
    };
    (@ read_log $to:tt) => {
        fn read_log(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            $crate::Device::read_log(&self.$to, offset, out)
        }
    };
    (@ is_hole $to:tt) => {
        fn is_hole(&self, offset: u64) -> bool {
            $crate::Device::is_hole(&self.$to, offset)
        }
    };
    (@ discard $to:tt) => {
        fn discard(&self, offset: u64, len: u64) {
            $crate::Device::discard(&self.$to, offset, len);
        }
    };
    (@ sync $to:tt) => {
        fn sync(&self) -> impl $crate::Operation<()> {
            $crate::Device::sync(&self.$to)
        }
    };
    (@ tick $to:tt) => {
        fn tick(&self, patience: u32) -> Vec<$crate::Overdue> {
            $crate::Device::tick(&self.$to, patience)
        }
    };
    (@ turn $to:tt) => {
        fn turn(&self, block: bool) -> std::io::Result<usize> {
            $crate::Device::turn(&self.$to, block)
        }
    };
}
