//! The course of a server: worker threads start, worker 0 opens what is served, all serve until a signal, all drain, worker 0 closes.

use super::line;
use anyhow::{Context, anyhow};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// How far a server is; its workers and the main thread share it. `O` is what worker 0 opens.
pub struct Course<O> {
    /// Number of workers.
    pub workers: usize,
    stop: watch::Sender<bool>,
    opened: watch::Sender<Option<O>>,
    drained: watch::Sender<usize>,
    closed: watch::Sender<bool>,
}

impl<O: Clone> Course<O> {
    /// A server that has not begun.
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            stop: watch::Sender::new(false),
            opened: watch::Sender::new(None),
            drained: watch::Sender::new(0),
            closed: watch::Sender::new(false),
        }
    }

    /// Turns true when the server is to stop.
    pub fn stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// What is served, once it is open.
    pub fn served(&self) -> Option<O> {
        self.opened.borrow().clone()
    }

    /// Whether clients are served.
    pub fn is_ready(&self) -> bool {
        self.opened.borrow().is_some() && !*self.stop.borrow()
    }

    /// Opens on worker 0 what is served; `None` where the server is to stop before that is done.
    ///
    /// # Errors
    /// Those of `opening`.
    pub async fn open(&self, opening: impl Future<Output = anyhow::Result<O>>) -> anyhow::Result<Option<O>> {
        let mut stop = self.stop();
        tokio::select! {
            result = opening => {
                let served = result?;
                self.opened.send_replace(Some(served.clone()));
                Ok(Some(served))
            }
            _ = stop.wait_for(|stop| *stop) => {
                self.closed.send_replace(true);
                Ok(None)
            }
        }
    }

    /// Waits on another worker for worker 0 to open it; `None` where that failed.
    pub async fn opened(&self) -> Option<O> {
        let mut opened = self.opened.subscribe();
        let mut closed = self.closed.subscribe();
        tokio::select! {
            opened = opened.wait_for(Option::is_some) => opened.ok().and_then(|opened| opened.clone()),
            _ = closed.wait_for(|closed| *closed) => None,
        }
    }

    /// Worker `index` serves no more. Worker 0 waits until that is so of all, and is to close; the others run what they have in the
    /// background until it has.
    pub async fn drain(&self, index: usize) {
        self.drained.send_modify(|drained| *drained += 1);
        if index > 0 {
            let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
        } else {
            let mut drained = self.drained.subscribe();
            let _ = drained.wait_for(|drained| *drained == self.workers).await;
        }
    }

    /// Worker 0 has closed what was served.
    pub fn note_closed(&self) {
        self.closed.send_replace(true);
    }

    /// A worker has failed. The others end too; where it cannot help to close, nobody can.
    fn give_up(&self) {
        self.stop.send_replace(true);
        self.closed.send_replace(true);
        self.drained.send_replace(self.workers);
    }

    /// Runs `work` on a thread for each worker, until a signal or a failure ends all. `ready` announces that all is open, `reload` is called on
    /// SIGHUP. Returns what worker 0 says of the end; `None` where the start had not ended.
    ///
    /// # Errors
    /// The first failure of a worker.
    pub async fn run<C: Send + 'static>(
        &self,
        work: impl Fn(usize) -> anyhow::Result<Option<C>> + Clone + Send + 'static,
        ready: impl Fn(),
        reload: impl Fn(),
    ) -> anyhow::Result<Option<C>> {
        let mut signals = Signals::new()?;
        let (sender, mut ended) = mpsc::unbounded_channel();
        let mut threads = Vec::new();
        for index in 0..self.workers {
            let (work, ended) = (work.clone(), sender.clone());
            let run = move || {
                let work = std::panic::AssertUnwindSafe(|| work(index));
                let result = std::panic::catch_unwind(work)
                    .unwrap_or_else(|_| Err(anyhow!("worker {index} panicked")));
                // The main thread outlives the workers.
                let _ = ended.send((index, result));
            };
            let named = std::thread::Builder::new().name(format!("pumice-worker-{index}"));
            threads.push(named.spawn(run).context("cannot start a worker thread")?);
        }
        drop(sender);
        let mut opened = self.opened.subscribe();
        let (mut is_ready, mut running) = (false, self.workers);
        let (mut failure, mut closing) = (None, None);
        let mut stops = Stops::default();
        while running > 0 {
            tokio::select! {
                Ok(_) = opened.wait_for(Option::is_some), if !is_ready && failure.is_none() => {
                    is_ready = true;
                    ready();
                }
                is_stop = signals.is_stop() => match is_stop.then(|| stops.ask(Instant::now())) {
                    None => reload(),
                    Some(Stop::Begin) => {
                        self.stop.send_replace(true);
                        line(format_args!("stopping"));
                    }
                    Some(Stop::Same) => line(format_args!(
                        "a second signal within a second is the same request; the next ends the server without closing the cache"
                    )),
                    Some(Stop::AtOnce) => {
                        tracing::error!("another signal to stop: ended without closing the cache");
                        std::process::exit(1);
                    }
                },
                Some((index, result)) = ended.recv() => {
                    running -= 1;
                    match result {
                        Ok(closed) => closing = closing.or(closed),
                        Err(error) => {
                            failure.get_or_insert(error.context(format!("worker {index}")));
                            self.give_up();
                        }
                    }
                }
            }
        }
        for thread in threads {
            // A panic was caught and reported already.
            let _ = thread.join();
        }
        failure.map_or(Ok(closing), Err)
    }
}

/// SIGTERM and SIGINT, which end the server, and SIGHUP.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Whether the next signal ends the server.
    async fn is_stop(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
            _ = self.hang_up.recv() => false,
        }
    }
}

/// Signals to stop so far.
#[derive(Default)]
struct Stops {
    first: Option<Instant>,
    is_repeated: bool,
}

/// What a signal to stop means.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Begin,
    Same,
    AtOnce,
}

impl Stops {
    /// The first begins an orderly end. Programs that end a process group (`timeout`, a terminal) send one more within a moment, which
    /// asks for nothing else.
    fn ask(&mut self, now: Instant) -> Stop {
        match self.first {
            None => {
                self.first = Some(now);
                Stop::Begin
            }
            Some(first) if !self.is_repeated && now - first <= Duration::from_secs(1) => {
                self.is_repeated = true;
                Stop::Same
            }
            Some(_) => Stop::AtOnce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_within_a_second_is_the_same_request() {
        let start = Instant::now();
        let asked = |milliseconds: &[u64]| -> Vec<Stop> {
            let mut stops = Stops::default();
            let times = milliseconds.iter().map(|ms| start + Duration::from_millis(*ms));
            times.map(|time| stops.ask(time)).collect()
        };
        assert_eq!(asked(&[0, 999]), [Stop::Begin, Stop::Same]);
        assert_eq!(asked(&[0, 1001]), [Stop::Begin, Stop::AtOnce]);
        assert_eq!(asked(&[0, 10, 20]), [Stop::Begin, Stop::Same, Stop::AtOnce]);
    }

    #[tokio::test]
    async fn a_start_ends_when_the_server_is_to_stop() {
        let course = Course::new(1);
        assert_eq!(course.open(async { Ok(1) }).await.unwrap(), Some(1));
        assert!(course.is_ready());
        let (opening, stopping) = (std::future::pending(), async { course.stop.send_replace(true) });
        let (ended, _) = tokio::join!(course.open(opening), stopping);
        assert_eq!(ended.unwrap(), None);
        assert!(!course.is_ready());
    }
}
