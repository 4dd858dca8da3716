//! How large the objects of a generated workload are. A size depends on the key alone.

use std::path::Path;
use std::sync::Arc;

use super::parts::Parts;
use crate::error::TraceError;
use crate::size::bytes;
use crate::sizes::SizeDistribution;
use pumice_world::mix64;

#[derive(Debug, Clone)]
pub(super) enum ValueSizes {
    None,
    /// `first` to `first + more`, all alike.
    Range {
        first: u64,
        more: u64,
    },
    Drawn(Arc<SizeDistribution>),
}

impl ValueSizes {
    /// What the parts `size` and `sizes` say; `wrong` makes an error of what is wrong with them.
    pub(super) fn from_parts(
        parts: &Parts<'_>,
        wrong: impl Fn(String) -> TraceError,
    ) -> Result<Self, TraceError> {
        match (parts.text("size"), parts.text("sizes")) {
            (Some(_), Some(_)) => Err(wrong("give `size` or `sizes`, not both".into())),
            (None, None) => Ok(ValueSizes::None),
            (None, Some(path)) => {
                let distribution = SizeDistribution::open(Path::new(path))?;
                Ok(ValueSizes::Drawn(Arc::new(distribution)))
            }
            (Some(size), None) => Self::range(size).map_err(wrong),
        }
    }

    fn range(size: &str) -> Result<Self, String> {
        let (first, last) = size.split_once('-').unwrap_or((size, size));
        let (Ok(first), Ok(last)) = (bytes::<u64>(first), bytes::<u64>(last)) else {
            return Err(format!(
                "`size={size}` is neither a size such as `4KiB` nor a range such as `600-4096`"
            ));
        };
        match last.checked_sub(first) {
            Some(more) => Ok(ValueSizes::Range { first, more }),
            None => Err(format!("`size={size}`: the range ends before it starts")),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, ValueSizes::None)
    }

    /// The size of an object.
    #[inline]
    pub(super) fn of(&self, key: u64) -> Option<u64> {
        match self {
            ValueSizes::None => None,
            ValueSizes::Range { first, more } => {
                let product = u128::from(mix64(key)) * (u128::from(*more) + 1);
                Some(first + (product >> 64) as u64)
            }
            ValueSizes::Drawn(distribution) => Some(distribution.size_of(key)),
        }
    }
}
