//! Probes and metrics of a subscriber whose engine never pauses.
#![cfg(feature = "testkit")]

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use inferencecache_wire::subscriber::config::Config;
use inferencecache_wire::subscriber::source::{EngineMessage, EventSource, SourceEvent};
use inferencecache_wire::subscriber::{Drained, Subscriber};
use inferencecache_wire::testkit::event;
use inferencecache_wire::testkit::flood::Flood;
use inferencecache_wire::testkit::script::Shape;
use tokio::sync::oneshot;

/// More than a probe may ever wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// There is always one more message.
struct Endless {
    payload: Vec<u8>,
    sequence: u64,
    stop: Arc<AtomicBool>,
}

impl EventSource for Endless {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<SourceEvent>> + Send + '_>> {
        match self.try_next() {
            Some(event) => Box::pin(std::future::ready(Some(event))),
            None => Box::pin(std::future::pending()),
        }
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        self.sequence += 1;
        Some(SourceEvent::Message(EngineMessage {
            connection: 0,
            sequence: Some(self.sequence - 1),
            payload: self.payload.clone(),
            received: SystemTime::now(),
        }))
    }

    fn stop(&mut self) {}
}

/// Lets the flood run dry, however the test ends: otherwise nothing could end it.
struct Valve(Arc<AtomicBool>);

impl Drop for Valve {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// One thread for everything, as in a container with one CPU.
#[test]
fn probes_and_metrics_are_answered_while_the_engine_never_pauses() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let _valve = Valve(Arc::clone(&stop));
    let events = Flood::new(1, NonZeroU32::MIN).batch(2000, 0);
    let source = Endless { payload: event::batch(5.0, None, Shape::Map, &events), sequence: 0, stop };
    let (end, ended) = oneshot::channel::<()>();
    let (address, task) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody listens there, so whatever is reported is kept.
        let nowhere = Config { server: "127.0.0.1:1".to_owned(), ..Config::default() };
        let subscriber = Subscriber::builder(nowhere).source(source).health_listener(listener).build().unwrap();
        let shutdown = async {
            let _ = ended.await;
        };
        (address, tokio::spawn(subscriber.run(shutdown)))
    });
    let batches = |page: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix("inferencecache_subscriber_batches_total "));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no count in {page}"))
    };
    let mut counts = Vec::new();
    for _ in 0..3 {
        for path in ["/healthz", "/readyz"] {
            let answer = get(address, path).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        counts.push(batches(&get(address, "/metrics").expect("an answer")));
    }
    assert!(counts[2] > counts[0], "it took in what came meanwhile: {counts:?}");
    drop((end, _valve));
    let drained = runtime.block_on(task).expect("no panic");
    assert_eq!(drained, Drained::Partly);
}
