//! Lists keys to one client, with other connections' turns between the pieces.

use super::sender::Sender;
use crate::execute::{Executor, key_dump_line};
use pumice::Listing;
use pumice_device::Device;
use std::io;

/// What a step holds: some 400 objects, and their lines.
const STEP_BYTES: usize = 256 << 10;

/// Answers `lru_crawler metadump`. A client that does not take the lines is waited for, and nothing is read ahead of it.
pub(super) async fn run<D: Device + Clone>(
    executor: &Executor<D>,
    class_1: bool,
    sender: &mut Sender<'_, D>,
) -> io::Result<()> {
    let (mut listing, mut found) = (Listing::default(), Vec::new());
    let mut goes_on = class_1;
    while goes_on {
        // Whoever waits for a share holds none.
        sender.flush_before_waiting().await?;
        let share = executor.shared.budgets.output.take(STEP_BYTES).await;
        goes_on = executor.cache.list(&executor.cx, &mut listing, &mut found);
        for listed in found.drain(..) {
            key_dump_line(&listed, sender.output);
        }
        drop(share);
        tokio::task::yield_now().await;
    }
    sender.output.text("END\r\n");
    Ok(())
}
