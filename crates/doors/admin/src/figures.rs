//! What the door is given to show.

use pumice_world::Figure;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Where figures come from.
pub trait Source: Send + Sync + 'static {
    /// Whether requests are served.
    fn is_ready(&self) -> bool;

    /// What is missing, on one line: although requests are served, or how far the start is. `None` where all is as it should be.
    fn limitation(&self) -> Option<String> {
        None
    }

    /// All figures at this moment. Called for each scrape; may take some milliseconds.
    fn figures(&self) -> Figures;

    /// Counts what is resident and compares it with the books.
    ///
    /// # Errors
    /// What does not balance, or why that cannot be said now.
    fn check_books(&self) -> Result<(), BooksFault>;

    /// Begins to tell of the requests for one key in `one_in`.
    ///
    /// # Errors
    /// Why nothing is told.
    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        let _ = one_in;
        Err(NotRecorded::Never)
    }
}

/// Requests that are told until it is dropped.
pub trait Requests: Send {
    /// Appends lines of what happened since the last call. May take some milliseconds; whoever is late misses some.
    fn take(&mut self, lines: &mut Vec<u8>);
}

/// Why requests are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRecorded {
    /// They never are here. Status 404.
    Never,
    /// Somebody else is told of them. Status 409.
    Busy,
}

/// Why the books are not said to balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BooksFault {
    /// Nothing can be said now: there is no cache yet, or something came or went while it was counted. Status 503.
    NotNow(String),
    /// They do not. Status 500.
    Unbalanced(String),
}

/// The figures of one room. A metric is named `pumice_<room>_<name>`, and `process_<name>` of room `process`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The room's name in metrics, and the group's in JSON.
    pub room: &'static str,
    /// Its figures.
    pub figures: Vec<Figure>,
}

/// The figures of a room: kind, name, meaning and value of each, and lists of others after them.
#[macro_export]
macro_rules! group {
    ($room:expr $(, $more:expr)*; $($kind:ident $name:ident $help:literal = $value:expr;)*) => {{
        let figures = vec![$($crate::Figure {
            name: stringify!($name),
            help: $help,
            kind: $crate::Kind::$kind,
            value: $value as f64,
        }),*];
        let others: Vec<Vec<$crate::Figure>> = vec![$($more),*];
        let figures = figures.into_iter().chain(others.into_iter().flatten()).collect();
        $crate::Group { room: $room, figures }
    }};
}

/// One line of the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BookLine {
    /// Its name.
    #[serde(skip)]
    pub name: &'static str,
    /// Entries on it.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How long one kind of operation took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The door, as names of metrics have it.
    #[serde(skip)]
    pub door: &'static str,
    /// The volume, where it is one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The operation.
    pub operation: &'static str,
    /// The tier that answered, or `miss`; empty where that means nothing.
    pub tier: &'static str,
    /// Operations.
    pub count: u64,
    /// Their nanoseconds in all.
    pub sum_ns: u64,
    /// Half took no longer, in nanoseconds.
    pub p50_ns: u64,
    /// 99 % took no longer, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9 % took no longer, in nanoseconds.
    pub p999_ns: u64,
    /// Upper bounds in nanoseconds, each with the number of operations below it.
    #[serde(skip)]
    pub cumulative: Vec<(u64, u64)>,
}

/// All figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The program's version.
    pub version: &'static str,
    /// The commit that it is built from, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<&'static str>,
    /// Whether requests are served.
    pub ready: bool,
    /// What is missing; see [`Source::limitation`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// The books, line by line.
    #[serde(serialize_with = "books_by_name")]
    pub books: Vec<BookLine>,
    /// Latency by operation, and by tier or volume.
    pub latency: Vec<Latency>,
    /// Lookups that went to flash, by the reads of each that had to wait for each other; the last are of that many and more.
    pub index_rounds: Vec<u64>,
    /// Everything else, by room.
    #[serde(flatten, serialize_with = "groups_by_room")]
    pub groups: Vec<Group>,
    /// The figures of each volume by its name, where volumes are served.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "volumes_by_name")]
    pub volumes: Vec<(String, Vec<Group>)>,
}

fn books_by_name<S: Serializer>(books: &[BookLine], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(books.iter().map(|line| (line.name, line)))
}

fn groups_by_room<S: Serializer>(groups: &[Group], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(groups.len()))?;
    for group in groups {
        map.serialize_entry(group.room, group)?;
    }
    map.end()
}

fn volumes_by_name<S: Serializer>(
    volumes: &[(String, Vec<Group>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    struct ByRoom<'a>(&'a [Group]);

    impl Serialize for ByRoom<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            groups_by_room(self.0, serializer)
        }
    }

    serializer.collect_map(volumes.iter().map(|(name, groups)| (name, ByRoom(groups))))
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.figures.len()))?;
        for figure in &self.figures {
            match whole(figure.value) {
                Some(value) => map.serialize_entry(figure.name, &value)?,
                None => map.serialize_entry(figure.name, &figure.value)?,
            }
        }
        map.end()
    }
}

/// A value without decimals, which is written as such.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number in range"
)]
pub(crate) fn whole(value: f64) -> Option<u64> {
    ((0.0..1.8e19).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}
