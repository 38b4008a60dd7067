//! Two signals: the first asks for a graceful end, the second ends at once.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The process was told twice to end; what was left undone stays undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// SIGINT and SIGTERM, caught from the moment of installation on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to catch both. Call it inside the runtime, before anything is announced as ready.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    pub fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next of either.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Resolves when the end was asked for. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Waits until the end is asked for; at once if it already was, or if nobody can ask any more.
    pub async fn wait(mut self) {
        let _ = self.0.wait_for(|asked| *asked).await;
    }

    /// What `work` comes to; `None`, and `work` dropped, if the end is asked for first.
    pub async fn unless_asked<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = work => Some(output),
            () = self.clone().wait() => None,
        }
    }
}

/// Runs `work`, which is handed a [`Shutdown`] that the first signal fires.
///
/// # Errors
/// [`Interrupted`] when a second signal arrives before `work` has ended.
pub async fn run<F: Future>(mut signals: Signals, work: impl FnOnce(Shutdown) -> F) -> Result<F::Output, Interrupted> {
    let (ask, asked) = watch::channel(false);
    let watcher = async {
        signals.recv().await;
        let _ = ask.send(true);
        signals.recv().await;
    };
    tokio::select! {
        biased;
        output = work(Shutdown(asked)) => Ok(output),
        () = watcher => Err(Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn work_that_takes_for_ever_ends_when_the_end_is_asked_for() {
        let (ask, asked) = watch::channel(false);
        let shutdown = Shutdown(asked);
        let (output, ()) = tokio::join!(shutdown.unless_asked(pending::<u8>()), async {
            tokio::task::yield_now().await;
            ask.send_replace(true);
        });
        assert_eq!(output, None);
        assert_eq!(shutdown.unless_asked(ready(7)).await, Some(7), "what is done is done");
    }
}
