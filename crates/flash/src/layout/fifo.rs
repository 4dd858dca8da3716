//! `fifo`: one open block, and the oldest block goes with all that is in it. Amplification is 1, whatever is asked for.

use super::seam::{Choice, Fate, Layout};

#[derive(Default)]
pub(super) struct Fifo {
    open: Option<u32>,
}

impl Layout for Fifo {
    fn open_block(&self, _point: usize) -> Option<u32> {
        self.open
    }

    fn opened(&mut self, _point: usize, block: u32, _is_full: bool) {
        self.open = Some(block);
    }

    fn closed(&mut self, _block: u32, _fill: Option<(usize, &dyn Fn() -> usize)>) {
        self.open = None;
    }

    fn victim(&mut self, choice: &Choice<'_>) -> Option<(u32, Fate)> {
        Some((choice.oldest()?, Fate::Drop))
    }
}
