//! A peer that breaks the ZMTP protocol must not make the subscriber deaf: it dials again, for ever (field:25).

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use inferencecache_wire::subscriber::source::{EventSource, SourceEvent, ZmqOptions, ZmqSource};

const PATIENCE: Duration = Duration::from_secs(30);

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("an option");
    let until = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Err(why) => panic!("nobody dials: {why}"),
        }
    }
}

fn source(engine: SocketAddr) -> ZmqSource {
    let options = ZmqOptions {
        endpoint: format!("tcp://{engine}"),
        rcvhwm: 1000,
        backoff: Duration::from_millis(50),
        ..ZmqOptions::default()
    };
    ZmqSource::start(options).expect("a thread")
}

/// A greeting of the NULL mechanism, then what a publisher never says.
fn greeting(mechanism: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut name = [0; 20];
    name[..mechanism.len()].copy_from_slice(mechanism);
    [&b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0"[..], &name, &[0; 32], rest].concat()
}

#[test]
fn junk_in_the_handshake_is_followed_by_another_attempt() {
    let ready = b"\x04\x18\x05READY\x0bSocket-Type\0\0\0\x03PUB".as_slice();
    let huge = [ready, b"\x02\0\0\x40\0\0\0\0\0"].concat();
    for junk in [greeting(b"NULL", &[0xff; 64]), greeting(b"PLAIN", &[]), greeting(b"NULL", &huge), vec![0xff; 500]] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut source = source(listener.local_addr().expect("bound"));
        let mut first = accept(&listener);
        first.write_all(&junk).expect("sent");
        // The same peer, twice: once more than a lucky accident.
        let mut second = accept(&listener);
        second.write_all(&junk).expect("sent");
        let _third = accept(&listener);
        source.stop();
    }
}

#[test]
fn a_frame_that_is_too_large_costs_one_connection() {
    let context = zmq::Context::new();
    let engine = context.socket(zmq::XPUB).expect("a socket");
    engine.set_rcvtimeo(30_000).expect("an option");
    engine.set_xpub_verbose(true).expect("an option");
    engine.bind("tcp://127.0.0.1:*").expect("a free port");
    let endpoint = engine.get_last_endpoint().expect("bound").expect("text");
    let address = endpoint.trim_start_matches("tcp://").parse().expect("an address");
    let mut source = source(address);
    assert_eq!(engine.recv_bytes(0).expect("a subscription"), [1]);
    engine.send_multipart([&b""[..], &[0; 8], &vec![0; 17 << 20]], 0).expect("sent");
    // It goes, and comes back.
    while engine.recv_bytes(0).expect("another subscription") != [1] {}
    engine.send_multipart([&b""[..], &[0; 8], b"next"], 0).expect("sent");
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "nothing came");
        match source.try_next() {
            Some(SourceEvent::Message(message)) if message.payload == b"next" => return,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
