//! What may stand under a key, and what one operation makes of it.

use pumice_world::mix64;

/// No bound: the object does not expire.
pub const NEVER: u32 = u32::MAX;
/// Servers count seconds: an object may be served for so long after the moment that its time to live names.
pub const EXPIRY_SLACK_MS: u32 = 1000;

/// Marked as stale, by `md` with `I`.
pub const STALE: u8 = 1;
/// Some client was told that it is its turn to set a new value.
pub const WON: u8 = 2;

/// What stands under a key at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The value, by a number that no other value of the key has; 0: nothing.
    pub content: u64,
    /// Until when it may be served: milliseconds of the run's clock.
    pub deadline: u32,
    /// [`STALE`] and [`WON`].
    pub marks: u8,
}

impl State {
    /// Nothing stands there.
    pub const ABSENT: Self = State {
        content: 0,
        deadline: NEVER,
        marks: 0,
    };
}

/// The content that appending or prepending the piece of a version makes of another.
pub fn joined(content: u64, piece: u32) -> u64 {
    mix64(content ^ mix64(u64::from(piece))) | 1
}

/// What the answer says about the moment at which the operation took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: a miss is legal at any time.
    None,
    /// Some live object was there.
    Exists,
    /// This was there.
    Is(u64),
    /// This was there, with these marks.
    Marked(u64, u8),
}

/// What the operation does to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A new value.
    Put(u64, Ttl),
    /// The object goes.
    Clear,
    /// Another time to live.
    Touch(Ttl),
    /// The piece of this version is appended or prepended.
    Join(u32),
    /// The number grows.
    Add(u64),
    /// The object is marked as stale, with another time to live if there is one.
    Invalidate(Option<Ttl>),
    /// Who reads a stale object first is told to set it anew.
    Win,
}

/// How long an object lives: seconds from the operation on, or for ever.
pub type Ttl = Option<u32>;

/// An operation whose end is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it is called in messages.
    pub name: &'static str,
    /// What its answer says.
    pub guard: Guard,
    /// What it does.
    pub effect: Effect,
    /// Whether it surely took effect. Otherwise no answer came, and it may have been carried out or not.
    pub is_certain: bool,
}

impl Outcome {
    /// Says nothing and does nothing.
    pub const fn nothing(name: &'static str) -> Self {
        Self::certain(name, Guard::None, Effect::None)
    }

    /// An answer came.
    pub const fn certain(name: &'static str, guard: Guard, effect: Effect) -> Self {
        Outcome {
            name,
            guard,
            effect,
            is_certain: true,
        }
    }

    /// No answer came.
    pub const fn possible(name: &'static str, guard: Guard, effect: Effect) -> Self {
        Outcome {
            name,
            guard,
            effect,
            is_certain: false,
        }
    }

    /// Whether it neither says nor does anything.
    pub fn is_nothing(&self) -> bool {
        self.guard == Guard::None && self.effect == Effect::None
    }
}

/// An operation with its outcome and the times between which it took effect.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub outcome: Outcome,
    pub began: u32,
    pub ended: u32,
}

impl Operation {
    /// What `state` becomes if the operation takes effect now; `None` if its answer would have been another.
    pub fn apply(&self, state: State) -> Option<State> {
        // What has expired before the operation was sent is nothing that it can have seen.
        let is_live = state.content != 0 && self.began <= state.deadline;
        let fits = match self.outcome.guard {
            Guard::None => true,
            Guard::Exists => is_live,
            Guard::Is(content) => is_live && state.content == content,
            Guard::Marked(content, marks) => is_live && state.content == content && state.marks == marks,
        };
        fits.then(|| self.changed(state))
    }

    /// What `state` becomes whatever the answer was.
    pub fn changed(&self, state: State) -> State {
        if state.content == 0 && !matches!(self.outcome.effect, Effect::Put(..)) {
            return State::ABSENT;
        }
        match self.outcome.effect {
            Effect::None => state,
            Effect::Put(content, ttl) => State {
                content,
                deadline: self.deadline(ttl),
                marks: 0,
            },
            Effect::Clear => State::ABSENT,
            Effect::Touch(ttl) => State {
                deadline: self.deadline(ttl),
                ..state
            },
            Effect::Join(piece) => State {
                content: joined(state.content, piece),
                marks: 0,
                ..state
            },
            Effect::Add(delta) => State {
                content: state.content.wrapping_add(delta),
                ..state
            },
            Effect::Invalidate(ttl) => State {
                deadline: ttl.map_or(state.deadline, |ttl| self.deadline(ttl)),
                marks: STALE,
                ..state
            },
            Effect::Win if state.marks & STALE != 0 => State {
                marks: state.marks | WON,
                ..state
            },
            Effect::Win => state,
        }
    }

    fn deadline(&self, ttl: Ttl) -> u32 {
        ttl.map_or(NEVER, |ttl| {
            self.ended
                .saturating_add(ttl.saturating_mul(1000))
                .saturating_add(EXPIRY_SLACK_MS)
        })
    }
}
