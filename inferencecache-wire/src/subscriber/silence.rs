//! Everything is configured, nothing arrives: when that is worth a warning, and what it should name.
//!
//! An engine may be silent because nobody asks it anything. Its own metrics tell whether it works; if they are not read, the
//! silence is told with all its possible reasons.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long connections may be silent before that is worth a warning, and how long until the next one.
pub const SILENCE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// What the warning should name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspect {
    /// The engine works and says that prefix caching is off.
    PrefixCaching,
    /// The engine works: its publisher, the topic or the port is another one.
    Publisher,
    /// Nothing is known of the engine.
    Anything,
}

/// What is known of the connections to the publishers of one engine.
#[derive(Debug)]
pub struct Silence {
    start: Instant,
    connections: BTreeMap<u16, Connection>,
    messages: u64,
    /// Whether the engine has processed prompts while a connection stood; `None` when its metrics do not tell.
    working: Option<bool>,
    prefix_caching: Option<bool>,
    warned: Option<Instant>,
}

#[derive(Debug, Default)]
struct Connection {
    since: Option<Instant>,
    made: u64,
    endpoint: String,
}

impl Silence {
    /// Nothing is known at the start.
    #[must_use]
    pub fn new(start: Instant) -> Self {
        Self { start, connections: BTreeMap::new(), messages: 0, working: None, prefix_caching: None, warned: None }
    }

    /// Messages of all connections so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// A message came.
    pub fn heard(&mut self) {
        self.messages += 1;
    }

    /// Where a connection leads.
    pub fn endpoint(&mut self, connection: u16, endpoint: &str) {
        endpoint.clone_into(&mut self.connections.entry(connection).or_default().endpoint);
    }

    /// Where a connection leads; empty when that was never said.
    #[must_use]
    pub fn endpoint_of(&self, connection: u16) -> &str {
        self.connections.get(&connection).map_or("", |connection| &connection.endpoint)
    }

    /// A connection was made; returns whether it is not the first.
    pub fn connected(&mut self, connection: u16, now: Instant) -> bool {
        let state = self.connections.entry(connection).or_default();
        state.since = Some(now);
        state.made += 1;
        self.working = self.working.map(|_| false);
        state.made > 1
    }

    /// A connection was lost.
    pub fn lost(&mut self, connection: u16) {
        self.connections.entry(connection).or_default().since = None;
    }

    /// What a page of the engine's metrics says: whether prompts were processed since the page before.
    pub fn page(&mut self, working: Option<bool>, prefix_caching: Option<bool>) {
        if let Some(working) = working {
            *self.working.get_or_insert(false) |= working;
        }
        self.prefix_caching = prefix_caching;
    }

    /// Whether to warn now, of what, and where nothing came from.
    pub fn due(&mut self, now: Instant) -> Option<(Suspect, String)> {
        let long = |since: Instant| now.saturating_duration_since(since) >= SILENCE.0;
        let connected = self.connections.values().any(|c| c.since.is_some_and(long));
        // An engine that works and that nobody can be connected to has its publisher somewhere else.
        let missed = self.working == Some(true) && long(self.start) && self.connections.values().all(|c| c.made == 0);
        let silent = self.messages == 0 && (connected || missed);
        if !silent || self.warned.is_some_and(|at| now.saturating_duration_since(at) < SILENCE.1) {
            return None;
        }
        let suspect = match (self.working, self.prefix_caching) {
            (Some(false), _) => return None,
            (Some(true), Some(false)) => Suspect::PrefixCaching,
            (Some(true), _) => Suspect::Publisher,
            (None, _) => Suspect::Anything,
        };
        self.warned = Some(now);
        let endpoints: Vec<&str> = self.connections.values().map(|connection| &*connection.endpoint).collect();
        Some((suspect, endpoints.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> (Silence, Instant) {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.endpoint(0, "tcp://127.0.0.1:5557");
        silence.endpoint(1, "tcp://127.0.0.1:5558");
        assert!(!silence.connected(0, start));
        (silence, start)
    }

    // field:28
    #[test]
    fn a_working_engine_that_says_nothing_is_told_by_its_likely_reason() {
        for (working, caching, expected) in [
            (Some(true), Some(false), Some(Suspect::PrefixCaching)),
            (Some(true), Some(true), Some(Suspect::Publisher)),
            (Some(true), None, Some(Suspect::Publisher)),
            (Some(false), Some(false), None),
            (Some(false), Some(true), None),
            (None, None, Some(Suspect::Anything)),
        ] {
            let (mut silence, start) = connected();
            silence.page(working, caching);
            // Later pages without new prompts take nothing back.
            silence.page(working.map(|_| false), caching);
            assert_eq!(silence.due(start + Duration::from_secs(59)), None);
            let told = silence.due(start + Duration::from_secs(60));
            let endpoints = "tcp://127.0.0.1:5557 tcp://127.0.0.1:5558".to_owned();
            assert_eq!(told, expected.map(|suspect| (suspect, endpoints)), "{working:?} {caching:?}");
            assert_eq!(silence.due(start + Duration::from_secs(3600)), None);
            assert_eq!(silence.due(start + Duration::from_secs(3660)).is_some(), expected.is_some());
        }
    }

    // field:27
    #[test]
    fn a_working_engine_whose_ports_are_others_is_told_with_the_ports_tried() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.endpoint(0, "tcp://127.0.0.1:5557");
        silence.endpoint(1, "tcp://127.0.0.1:5558");
        assert_eq!(silence.due(start + Duration::from_secs(60)), None, "the engine may still be loading");
        silence.page(Some(true), Some(true));
        assert_eq!(silence.due(start + Duration::from_secs(59)), None);
        let told = silence.due(start + Duration::from_secs(60));
        assert_eq!(told, Some((Suspect::Publisher, "tcp://127.0.0.1:5557 tcp://127.0.0.1:5558".to_owned())));
        assert_eq!(silence.endpoint_of(1), "tcp://127.0.0.1:5558");
    }

    #[test]
    fn whoever_speaks_or_is_not_connected_is_not_silent() {
        let (mut silence, start) = connected();
        let late = start + Duration::from_secs(600);
        silence.lost(0);
        assert_eq!(silence.due(late), None);
        assert!(silence.connected(0, late));
        silence.heard();
        assert_eq!(silence.due(late + Duration::from_secs(600)), None);
    }
}
