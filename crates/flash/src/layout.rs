//! Layouts: how objects are arranged in blocks, and which objects a reclaim keeps.

use parking_lot::Mutex;
use pumice_index::Mapping;
use pumice_policy::Policy;
use pumice_record::codec::value_checksum;
use std::fmt;
use std::str::FromStr;

/// How objects are arranged in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum Layout {
    /// One active block; the oldest block goes first, and all that is in it.
    #[default]
    Fifo = 1,
    /// SIPQ: one active block; the oldest block goes first, and the objects whose keys are in an exact queue in DRAM are written
    /// again.
    Sipq = 2,
    /// RIPQ: several active blocks, each at its priority; the lowest block goes first, and what was raised moves to where
    /// it belongs.
    Ripq = 3,
}

impl Layout {
    /// All that are built.
    pub const ALL: [Layout; 3] = [Layout::Fifo, Layout::Sipq, Layout::Ripq];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Fifo => "fifo",
            Layout::Sipq => "sipq",
            Layout::Ripq => "ripq",
        }
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| *layout as u16 == number)
    }

    /// Bits that the index keeps for this layout beside each location.
    pub fn note_bits(self) -> u32 {
        match self {
            Layout::Fifo | Layout::Sipq => 0,
            Layout::Ripq => MARK_BITS + ACCESS_BITS,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What steers a layout makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No layout has this name.
    #[error("no layout `{0}` (layouts: fifo, sipq, ripq)")]
    Layout(String),
    /// No policy has this name.
    #[error("no policy `{name}` for layout {layout} (policies: {known})")]
    Policy {
        /// What was given.
        name: String,
        /// For this layout.
        layout: Layout,
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

impl FromStr for Layout {
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
    pub layout: Layout,
    /// Gives objects their priorities; `fifo` has no use for it.
    pub policy: &'static dyn Policy,
    /// RIPQ's α: sections are of α to 2α of the queue. From 1/64 to 1/2.
    pub alpha: f64,
    /// Logical occupancy θ: what stands in the last 1 - θ of the queue is not kept at a reclaim. In [0, 1].
    /// Under `sipq` the queue of keys may have this share of what the blocks can hold of objects.
    pub theta: f64,
    /// Under `fifo` with a cascade index: whether a reclaim writes the objects again that were asked for since they were written.
    pub keeps_hot: bool,
    /// Under `sipq` the most keys in DRAM, [`VIRTUAL_KEY_BYTES`](crate::VIRTUAL_KEY_BYTES) each.
    pub virtual_keys_max: usize,
}

impl LayoutOptions {
    /// Checks what a user asked for; what is `None` is left to the layout.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(
        layout: Layout,
        policy_name: Option<&str>,
        alpha: Option<f64>,
        theta: Option<f64>,
    ) -> Result<Self, LayoutError> {
        let by_default = match layout {
            Layout::Fifo => "fifo",
            Layout::Sipq | Layout::Ripq => "slru-3",
        };
        let name = policy_name.unwrap_or(by_default);
        let wrong = |known: &str| LayoutError::Policy {
            name: name.to_owned(),
            layout,
            known: known.to_owned(),
        };
        if layout == Layout::Fifo && name != "fifo" {
            return Err(wrong("fifo"));
        }
        let policy = policy(name).ok_or_else(|| wrong(&pumice_policy::POLICY_NAMES.join(", ")))?;
        let theta_by_default = match layout {
            Layout::Fifo => 1.0,
            Layout::Sipq => 0.5,
            Layout::Ripq => policy.theta(),
        };
        let options = Self {
            layout,
            policy,
            alpha: alpha.unwrap_or(0.125),
            theta: theta.unwrap_or(theta_by_default),
            keeps_hot: true,
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

    /// Tells policies apart on flash.
    pub(crate) fn policy_checksum(&self) -> u32 {
        value_checksum(self.policy.name().as_bytes())
    }
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self::new(Layout::Fifo, None, None, None).expect("these go together")
    }
}

/// Buffers of blocks that are being filled and written under `ripq`: sections are of alpha to 2 alpha, so there are seldom more than
/// 1.25 / alpha.
pub fn open_buffers(alpha: f64) -> usize {
    (1.25 / alpha).ceil() as usize + 4
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

const MARK_BITS: u32 = 9;
const ACCESS_BITS: u32 = 2;
/// Marks are below this.
pub(crate) const MARKS: u32 = 1 << MARK_BITS;

/// What a mapping's note says: the virtual place, and how often the object was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// 0: the object counts where it is.
    pub(crate) mark: u32,
    /// Accesses since it was inserted, from 1 to 4.
    pub(crate) accesses: u32,
}

impl Note {
    /// Of an object that was just written.
    pub(crate) const NEW: Note = Note { mark: 0, accesses: 1 };

    pub(crate) fn of(mapping: Mapping) -> Self {
        Self {
            mark: mapping.note & (MARKS - 1),
            accesses: (mapping.note >> MARK_BITS) + 1,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        (self.accesses - 1) << MARK_BITS | self.mark
    }
}
