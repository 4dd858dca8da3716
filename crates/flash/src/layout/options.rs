//! The layouts by name, what steers them, and what they need.

use super::ground::NotePlace;
use super::ripq::note;
use locks::Mutex;
use pumice_index::IndexKind;
use pumice_policy::Policy;
use pumice_record::codec::value_checksum;
use std::fmt;
use std::str::FromStr;

/// Bytes that are read, or were read and are being moved, of all victims at once. The share of each is enough for the longest
/// record, but for the two sectors at its ends.
pub const RECLAIM_READ_BYTES: u64 = 2 << 20;

/// How objects are arranged in blocks, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum LayoutName {
    /// The oldest block goes first, and all that is in it.
    #[default]
    Fifo = 1,
    /// SIPQ: the oldest block is the victim. Objects whose keys are in an exact queue in DRAM are written again.
    Sipq = 2,
    /// RIPQ: several active blocks, each at its priority; the lowest block goes first, and what was raised moves to where
    /// it belongs.
    Ripq = 3,
    /// The oldest block of new or of kept objects goes first, and what was asked for since it was written is kept.
    Clock = 4,
}

impl LayoutName {
    /// All that are built.
    pub const ALL: [LayoutName; 4] = [
        LayoutName::Fifo,
        LayoutName::Clock,
        LayoutName::Sipq,
        LayoutName::Ripq,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LayoutName::Fifo => "fifo",
            LayoutName::Clock => "clock",
            LayoutName::Sipq => "sipq",
            LayoutName::Ripq => "ripq",
        }
    }

    /// All names, for a message.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| *layout as u16 == number)
    }

    /// Whether checkpoints have an exact queue of keys.
    pub(crate) fn has_keys(self) -> bool {
        self == LayoutName::Sipq
    }

    /// Bits that an index that knows all mappings keeps for this layout beside each location.
    pub fn note_bits(self) -> u32 {
        match self {
            LayoutName::Fifo | LayoutName::Sipq => 0,
            LayoutName::Clock => 1,
            LayoutName::Ripq => note::WIDE_BITS,
        }
    }
}

impl fmt::Display for LayoutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What steers a layout makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No layout has this name.
    #[error("no layout `{0}` (layouts: {names})", names = LayoutName::names())]
    Layout(String),
    /// No policy has this name.
    #[error("no policy `{name}` for layout {layout} (policies: {known})")]
    Policy {
        /// What was given.
        name: String,
        /// For this layout.
        layout: LayoutName,
        /// What there is.
        known: String,
    },
    /// α is out of range.
    #[error("alpha {0} is not a number from 0.015625 (1/64) to 0.5")]
    Alpha(f64),
    /// θ is out of range.
    #[error("theta {0} is not a number from 0 to 1")]
    Theta(f64),
}

impl FromStr for LayoutName {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let mut all = Self::ALL.into_iter();
        all.find(|layout| layout.name() == text)
            .ok_or_else(|| LayoutError::Layout(text.to_owned()))
    }
}

/// The layout of a cache and what steers it.
#[derive(Clone, Copy, Debug)]
pub struct LayoutOptions {
    /// The layout; an existing cache must agree.
    pub layout: LayoutName,
    /// Gives objects their priorities; `fifo` and `clock` have no use for it.
    pub policy: &'static dyn Policy,
    /// RIPQ's α: sections are of α to 2α of the queue. From 1/64 to 1/2.
    pub alpha: f64,
    /// Logical occupancy θ: what stands in the last 1 - θ of the queue is not kept at a reclaim. In [0, 1].
    /// Under `sipq` the queue of keys may have this share of what the blocks can hold of objects.
    pub theta: f64,
    /// Under `sipq` the most keys in DRAM, [`VIRTUAL_KEY_BYTES`](crate::VIRTUAL_KEY_BYTES) each.
    pub virtual_keys_max: usize,
}

impl LayoutOptions {
    /// Checks what a user asked for; what is `None` is left to the layout.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(
        layout: LayoutName,
        policy_name: Option<&str>,
        alpha: Option<f64>,
        theta: Option<f64>,
    ) -> Result<Self, LayoutError> {
        let (by_default, has_policies) = match layout {
            LayoutName::Fifo => ("fifo", false),
            LayoutName::Clock => ("clock", false),
            LayoutName::Sipq | LayoutName::Ripq => ("slru-3", true),
        };
        let name = policy_name.unwrap_or(by_default);
        let wrong = |known: &str| LayoutError::Policy {
            name: name.to_owned(),
            layout,
            known: known.to_owned(),
        };
        if !has_policies && name != by_default {
            return Err(wrong(by_default));
        }
        let named = policy(if has_policies { name } else { "fifo" });
        let policy = named.ok_or_else(|| wrong(&pumice_policy::POLICY_NAMES.join(", ")))?;
        let theta_by_default = match layout {
            LayoutName::Fifo | LayoutName::Clock => 1.0,
            LayoutName::Sipq => 0.5,
            LayoutName::Ripq => policy.theta(),
        };
        let options = Self {
            layout,
            policy,
            alpha: alpha.unwrap_or(0.125),
            theta: theta.unwrap_or(theta_by_default),
            virtual_keys_max: usize::MAX,
        };
        if !(1.0 / 64.0..=0.5).contains(&options.alpha) {
            return Err(LayoutError::Alpha(options.alpha));
        }
        if !(0.0..=1.0).contains(&options.theta) {
            return Err(LayoutError::Theta(options.theta));
        }
        Ok(options)
    }

    /// What this layout needs of DRAM.
    pub fn needs(&self) -> LayoutNeeds {
        let fifo = LayoutNeeds {
            open_blocks: 1,
            buffers_max: 16,
            order_bytes: 0,
            order_share: 0.0,
            slot_bits: 0,
            moving_bytes: 0,
        };
        let moving_bytes = RECLAIM_READ_BYTES;
        match self.layout {
            LayoutName::Fifo => fifo,
            LayoutName::Clock => LayoutNeeds {
                open_blocks: 2,
                slot_bits: 1,
                moving_bytes,
                ..fifo
            },
            LayoutName::Sipq => LayoutNeeds {
                order_share: 0.2,
                moving_bytes,
                ..fifo
            },
            LayoutName::Ripq => LayoutNeeds {
                // Sections are of alpha to 2 alpha, so there are seldom more than 1.25 / alpha.
                buffers_max: ((1.25 / self.alpha).ceil() as usize + 4).max(fifo.buffers_max),
                // The queue's tables, and the sample of keys whose priorities are kept.
                order_bytes: if self.policy.is_absolute() {
                    8 << 20
                } else {
                    1 << 20
                },
                slot_bits: note::SLOT_BITS,
                moving_bytes,
                ..fifo
            },
        }
    }

    /// Tells policies apart on flash.
    pub(crate) fn policy_checksum(&self) -> u32 {
        value_checksum(self.policy.name().as_bytes())
    }
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self::new(LayoutName::Fifo, None, None, None).expect("these go together")
    }
}

/// What a layout needs of DRAM, beside the index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayoutNeeds {
    /// Blocks that are open at the same time, at least.
    pub open_blocks: usize,
    /// Buffers of blocks that are being filled and written beyond which more are of no use.
    pub buffers_max: usize,
    /// Bytes of its own tables.
    pub order_bytes: u64,
    /// Or the share of the budget that they may have.
    pub order_share: f64,
    /// Bits for each object on flash, where mappings have no room for them.
    pub slot_bits: u32,
    /// Bytes of objects that reclaims have read and not moved yet, at most.
    pub moving_bytes: u64,
}

/// Bits of DRAM that such a cache keeps for each object on flash beside its index, and three eighths of a bit more where that is not 0.
pub fn slot_bits(layout: &LayoutOptions, index: IndexKind) -> u32 {
    if index.is_authoritative() {
        0
    } else {
        layout.needs().slot_bits
    }
}

/// Where the notes of objects are.
pub(crate) fn note_place(layout: LayoutName, index: IndexKind) -> NotePlace {
    match (layout.note_bits(), index.is_authoritative()) {
        (0, _) => NotePlace::Nowhere,
        (_, true) => NotePlace::Mapping,
        (_, false) => NotePlace::Slot,
    }
}

/// The policy of a name. Policies have no state: each is made once and lives as long as the process.
pub fn policy(name: &str) -> Option<&'static dyn Policy> {
    static MADE: Mutex<Vec<&'static dyn Policy>> = Mutex::new(Vec::new());
    let mut made = MADE.lock();
    if let Some(policy) = made.iter().find(|policy| policy.name() == name) {
        return Some(*policy);
    }
    let policy: &'static dyn Policy = Box::leak(pumice_policy::policy_named(name)?);
    made.push(policy);
    Some(policy)
}
