//! A budget of bytes that connections share for what they receive.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes that may be under way at once. First come, first served, so a large request is not starved by small ones.
#[derive(Debug)]
pub struct ReceiveBudget {
    semaphore: Semaphore,
    total: u32,
}

/// A share of the budget, given back when dropped.
#[derive(Debug)]
pub struct BudgetShare<'b> {
    _permit: Option<SemaphorePermit<'b>>,
}

impl ReceiveBudget {
    /// A budget of `bytes`, at most 4 GiB.
    pub fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self {
            semaphore: Semaphore::new(total as usize),
            total,
        }
    }

    /// Waits until `bytes` are free, and takes them. A request above the whole budget waits until nothing else is under
    /// way, and takes all of it.
    pub async fn take(&self, bytes: usize) -> BudgetShare<'_> {
        let share = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total);
        BudgetShare {
            // The semaphore is never closed, so this never fails.
            _permit: self.semaphore.acquire_many(share).await.ok(),
        }
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> usize {
        self.semaphore.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_does_not_fit_waits_until_a_share_is_given_back() {
        let budget = ReceiveBudget::new(100);
        let first = budget.take(60).now_or_never().expect("fits");
        assert!(budget.take(50).now_or_never().is_none());
        assert_eq!(budget.free_bytes(), 40);
        drop(first);
        assert!(budget.take(50).now_or_never().is_some());
    }

    #[test]
    fn a_request_above_the_budget_takes_all_of_it() {
        let budget = ReceiveBudget::new(100);
        let all = budget
            .take(1000)
            .now_or_never()
            .expect("nothing else is under way");
        assert_eq!(budget.free_bytes(), 0);
        assert!(budget.take(1).now_or_never().is_none());
        drop(all);
        assert_eq!(budget.free_bytes(), 100);
    }
}
