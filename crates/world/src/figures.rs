//! Figures: what is counted or measured, each declared once, with its meaning.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a figure moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, from 0 at the start of the process.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// One figure at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its name, the unit last: `written_bytes`.
    pub name: &'static str,
    /// What it means, without a full stop.
    pub help: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// Its value.
    pub value: f64,
}

impl Figure {
    /// A figure whose meaning is a doc comment.
    #[expect(clippy::cast_precision_loss, reason = "figures are exact to 2^53")]
    pub fn documented(name: &'static str, doc: &'static str, kind: Kind, value: u64) -> Self {
        let help = doc.trim().trim_end_matches('.');
        let value = value as f64;
        Self {
            name,
            help,
            kind,
            value,
        }
    }
}

/// What a running total is kept in.
pub trait Cell: Default {
    /// The total so far.
    fn total(&self) -> u64;
}

impl Cell for AtomicU64 {
    fn total(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

/// Declares a struct of figures: `/// What it means.` and `Counter name` or `Gauge name` for each. They can be added up, and listed with
/// their meanings. After `of struct Cells: Cell` there is also the struct of cells that running totals are kept in.
#[macro_export]
macro_rules! figures {
    (
        $(#[$meta:meta])* pub struct $Name:ident;
        $(of $(#[$cells_meta:meta])* $vis:vis struct $Cells:ident: $Cell:ty;)?
        $($(#[doc = $doc:literal])+ $kind:ident $name:ident,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Name { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl $Name {
            /// Every figure with its meaning.
            pub fn figures(&self) -> Vec<$crate::Figure> {
                vec![$($crate::Figure::documented(
                    stringify!($name),
                    concat!($($doc),+),
                    $crate::Kind::$kind,
                    self.$name,
                ),)*]
            }

            /// What was added since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }

        impl std::ops::AddAssign for $Name {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }

        $crate::figures!(@cells $Name; $($(#[$cells_meta])* $vis struct $Cells: $Cell)?; $($(#[doc = $doc])+ $name,)*);
    };
    (@cells $Name:ident; ; $($rest:tt)*) => {};
    (
        @cells $Name:ident; $(#[$meta:meta])* $vis:vis struct $Cells:ident: $Cell:ty;
        $($(#[doc = $doc:literal])+ $name:ident,)*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $Cells { $($(#[doc = $doc])+ pub $name: $Cell,)* }

        impl $Cells {
            /// The totals now; each is exact, together they may be of slightly different moments.
            pub fn snapshot(&self) -> $Name {
                $Name { $($name: $crate::Cell::total(&self.$name),)* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    figures! {
        /// Some.
        pub struct Some;
        of
        /// Theirs.
        struct Cells: AtomicU64;
        /// Reads,
        /// all of them.
        Counter reads,
        /// Bytes held.
        Gauge held_bytes,
    }

    #[test]
    fn figures_are_counted_summed_and_listed_with_their_meanings() {
        let cells = Cells::default();
        cells.reads.fetch_add(3, Ordering::Relaxed);
        let mut sum = cells.snapshot();
        sum += Some {
            reads: 1,
            held_bytes: 5,
        };
        assert_eq!(sum.since(&cells.snapshot()).held_bytes, 5);
        let (kind, value) = (Kind::Counter, 4.0);
        let reads = Figure {
            name: "reads",
            help: "Reads, all of them",
            kind,
            value,
        };
        assert_eq!(sum.figures()[0], reads);
        let (kind, value) = (Kind::Gauge, 5.0);
        let held = Figure {
            name: "held_bytes",
            help: "Bytes held",
            kind,
            value,
        };
        assert_eq!(sum.figures()[1], held);
    }
}
