//! Worker threads: each a current-thread event loop, on which a service has its handle, its tasks and its connections.

use super::Running;
use crate::service::Service;
use anyhow::{Context, anyhow};
use pumice_device::{Device, FileDevice};
use pumice_world::{Spawner, Task};
use std::cell::{Cell, OnceCell};
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;

/// Requests that one worker may have under way on a device; more wait in memory.
pub const RING_ENTRIES: u32 = 256;

/// Most threads of a worker that block.
const BLOCKING_THREADS: usize = 32;

/// What a service knows of the worker that it runs on.
pub struct Worker {
    /// Its number. Worker 0 opens and closes.
    pub index: usize,
    /// What runs in the background on its event loop.
    pub tasks: Tasks,
    stop: watch::Receiver<bool>,
    failed: mpsc::UnboundedSender<anyhow::Error>,
}

impl Worker {
    /// Turns true when the server is to stop.
    pub fn stop(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Has the event loop drive a handle on a device. Where that fails, nothing would ever complete, and the server ends.
    ///
    /// # Errors
    /// It cannot be registered with the event loop.
    pub fn drive(&self, device: FileDevice, named: String) -> anyhow::Result<()> {
        let driver = drive(device).with_context(|| named.clone())?;
        let failed = self.failed.clone();
        tokio::task::spawn_local(async move {
            let Err(error) = driver.await;
            // The worker has ended otherwise.
            let _ = failed.send(anyhow!(error).context(named));
        });
        Ok(())
    }
}

/// Runs background work on the worker's event loop, and waits for its end.
#[derive(Clone, Default)]
pub struct Tasks(Rc<TasksState>);

#[derive(Default)]
struct TasksState {
    count: Cell<usize>,
    ended: Notify,
}

impl Spawner for Tasks {
    fn spawn(&self, task: Task) {
        let state = Rc::clone(&self.0);
        state.count.set(state.count.get() + 1);
        tokio::task::spawn_local(async move {
            task.await;
            state.count.set(state.count.get() - 1);
            state.ended.notify_one();
        });
    }
}

impl Tasks {
    /// Waits until none runs.
    pub async fn ended(&self) {
        while self.0.count.get() > 0 {
            self.0.ended.notified().await;
        }
    }
}

/// Registers a device with the event loop. The future that comes back starts and completes its operations: after its
/// eventfd was signalled, and at the end of a turn of the loop in which operations were queued, so that they start
/// together. It sleeps otherwise.
pub fn drive(device: FileDevice) -> anyhow::Result<impl Future<Output = io::Result<Infallible>>> {
    let event = device.event_fd()?.try_clone_to_owned()?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe, and newer than the oldest tokio that serves us"
    )]
    let event = AsyncFd::with_interest(event, Interest::READABLE)?;
    let queued = Rc::new(Notify::new());
    let hook = Rc::clone(&queued);
    device.set_submit_hook(Rc::new(move || hook.notify_one()));
    Ok(async move {
        loop {
            tokio::select! {
                // The eventfd is signalled anew for later results, and the loop is edge-triggered: it need not be read.
                ready = event.readable() => ready?.clear_ready(),
                () = queued.notified() => {}
            }
            device.turn(false)?;
        }
    })
}

/// Does something each second, as long as the event loop runs. After a second in which it did not run the next is a whole one: a process
/// that was stopped does not take that for the device's delay.
pub fn each_second(mut act: impl FnMut() + 'static) {
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            act();
        }
    });
}

/// Runs worker `index` to its end. Returns how long closing took, on worker 0; `None` where nothing was open.
///
/// # Errors
/// What the service says, or an event loop that cannot be had.
pub(super) fn run<S: Service>(index: usize, server: &Arc<Running<S>>) -> anyhow::Result<Option<Duration>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(BLOCKING_THREADS);
    if let Some(jobs) = &server.jobs {
        let [waking, parking] = [Arc::clone(jobs), Arc::clone(jobs)];
        jobs.wake();
        builder
            .on_thread_park(move || parking.park())
            .on_thread_unpark(move || waking.wake());
    }
    let runtime = builder.build().context("cannot start an event loop")?;
    LocalSet::new().block_on(&runtime, async {
        let (sender, mut failed) = mpsc::unbounded_channel();
        let worker = Worker {
            index,
            tasks: Tasks::default(),
            stop: server.course.stop(),
            failed: sender,
        };
        tokio::select! {
            result = serve(server, &worker) => result,
            Some(error) = failed.recv() => Err(error),
        }
    })
}

async fn serve<S: Service>(server: &Arc<Running<S>>, worker: &Worker) -> anyhow::Result<Option<Duration>> {
    let (service, course) = (&server.service, &server.course);
    let handle = Rc::new(service.handle(worker)?);
    let known = Rc::new(OnceCell::new());
    let (ticked, ticks, of) = (Arc::clone(server), Rc::clone(&handle), Rc::clone(&known));
    each_second(move || ticked.service.tick(&ticks, of.get()));
    let opened = match worker.index {
        0 => course.open(open(server, &handle)).await?,
        _ => course.opened().await,
    };
    let Some(opened) = opened else { return Ok(None) };
    let opened = known.get_or_init(|| opened);
    let served = service.run(worker, &handle, opened).await;
    course.drain(worker.index).await;
    if worker.index > 0 {
        return served.map(|()| None);
    }
    let started = Instant::now();
    let closed = service.close(&handle, opened).await;
    course.note_closed();
    closed?;
    let took = started.elapsed();
    served.map(|()| Some(took))
}

/// Opens what is served, and then lets clients connect. Where the server is to stop before that is done, devices are as a crash would
/// find them: as they were, since a start writes only at its end.
async fn open<S: Service>(server: &Running<S>, handle: &S::Handle) -> anyhow::Result<S::Opened> {
    let opened = server.service.open(handle).await?;
    server.doors.iter().try_for_each(|door| door.listen())?;
    Ok(opened)
}
