//! Accepting connections: bounded, and not to be stopped by what a peer or the system does meanwhile.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServeError;
use super::places::{Activity, Places};
use crate::metrics::{Closed, Metrics};

/// How long to wait when the system has no room for one more connection.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that has to leave may take to say so to its peer.
const PARTING: Duration = Duration::from_millis(250);

/// When connections are to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Ending {
    /// No new connections; those that are open finish what they are at.
    pub(super) stop: CancellationToken,
    /// Whatever is still open is dropped.
    pub(super) kill: CancellationToken,
    /// Open connections.
    pub(super) open: TaskTracker,
}

/// One listener and its limits.
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) name: &'static str,
    pub(super) listener: TcpListener,
    pub(super) max_connections: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ending: Ending,
}

impl Accepting {
    /// Hands each connection to `serve`, each in a task of its own, until it is time to stop.
    ///
    /// # Errors
    /// When the listener itself is broken.
    pub(super) async fn run<F>(self, serve: impl Fn(TcpStream, &Arc<Activity>) -> F) -> Result<(), ServeError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { name, listener, max_connections, metrics, ending } = self;
        let places = Places::new(max_connections);
        loop {
            let accepted = tokio::select! {
                biased;
                () = ending.stop.cancelled() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(why) => match blame(&why) {
                    Blame::Peer => continue,
                    Blame::System => {
                        if places.dismiss() {
                            metrics.connection_closed(name, Closed::MadeRoom);
                        }
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    Blame::Listener => return Err(ServeError { listener: name, source: why }),
                },
            };
            let Some((place, full)) = places.take() else {
                metrics.connection_refused(name);
                continue; // closed by being dropped
            };
            if full {
                metrics.connection_closed(name, Closed::MadeRoom);
            }
            let _ = stream.set_nodelay(true);
            let connection = serve(stream, &place.activity);
            let kill = ending.kill.clone();
            ending.open.spawn(async move {
                let gone = async {
                    place.activity.leave.cancelled().await;
                    tokio::time::sleep(PARTING).await;
                };
                tokio::select! {
                    biased;
                    () = kill.cancelled() => {}
                    () = gone => {}
                    () = connection => {}
                }
            });
        }
    }
}

/// Who is at fault when accepting fails.
enum Blame {
    /// It has gone away again.
    Peer,
    /// It has no room; that passes.
    System,
    /// It will not work again.
    Listener,
}

fn blame(why: &io::Error) -> Blame {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, InvalidInput, NotConnected, TimedOut,
    };
    const BAD_DESCRIPTOR: i32 = 9;
    match why.kind() {
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut => Blame::Peer,
        InvalidInput | NotConnected => Blame::Listener,
        _ if why.raw_os_error() == Some(BAD_DESCRIPTOR) => Blame::Listener,
        _ => Blame::System,
    }
}
