//! What a page tells about the cache itself: that an engine has dropped it, or how much it can hold at all.
//!
//! An engine that falls asleep or whose cache is reset while it is idle sends no event before its next step. A new process
//! has an empty cache, and may stay silent for as long as nobody asks it anything.

use std::collections::BTreeMap;

use super::reading::{Capacity, Reading};

/// What the event path should know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Engines that fell asleep since the page before.
    pub asleep: Vec<i64>,
    /// The page names this one engine and no other.
    pub only_engine: Option<i64>,
    /// The engine's process is another one than at the page before.
    pub restarted: bool,
    /// What device memory holds.
    pub capacity: Capacity,
    /// Whether prompts were processed since the page before; `None` when the engine does not say.
    pub working: Option<bool>,
    /// Whether prefix caching is on, if the engine says so.
    pub prefix_caching: Option<bool>,
}

/// Compares each page with the one before.
#[derive(Debug, Clone, Default)]
pub struct Edges {
    awake: BTreeMap<i64, bool>,
    prompt_tokens: Option<f64>,
    queries: Option<f64>,
    process_start: Option<f64>,
}

impl Edges {
    /// Takes the next reading.
    pub fn facts(&mut self, reading: &Reading) -> Facts {
        let mut asleep = Vec::new();
        for (&engine, &awake) in &reading.awake {
            let was = self.awake.insert(engine, awake).unwrap_or(true);
            if was && !awake {
                asleep.push(engine);
            }
        }
        // One rank more or less must not grow the memory of them.
        self.awake.retain(|engine, _| reading.awake.contains_key(engine));
        let gained = |before: Option<f64>, now: Option<f64>| Some(now? - before?);
        let prompts = gained(self.prompt_tokens, reading.prompt_tokens);
        let queries = gained(self.queries, reading.queries);
        let started = gained(self.process_start, reading.process_start);
        // One falling counter may be a series that has gone. All of them, or a later start, is another process.
        let fell = [prompts, queries].into_iter().flatten().map(|gain| gain < 0.0).reduce(|a, b| a && b);
        let restarted = started.map_or(fell.unwrap_or_default(), |later| later > 1.0);
        self.prompt_tokens = reading.prompt_tokens.or(self.prompt_tokens);
        self.queries = reading.queries.or(self.queries);
        self.process_start = reading.process_start.or(self.process_start);
        let mut engines = reading.awake.keys();
        let only_engine = engines.next().copied().filter(|_| engines.next().is_none());
        Facts {
            asleep,
            only_engine,
            restarted,
            capacity: reading.capacity,
            working: prompts.map(|gain| gain > 0.0),
            prefix_caching: reading.prefix_caching,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(awake: &[(i64, bool)], counters: Option<f64>, start: Option<f64>) -> Reading {
        Reading {
            awake: awake.iter().copied().collect(),
            prompt_tokens: counters,
            queries: counters,
            process_start: start,
            ..Reading::default()
        }
    }

    #[test]
    fn only_the_edge_into_sleep_counts() {
        let mut edges = Edges::default();
        let mut asleep = |states: &[(i64, bool)]| edges.facts(&reading(states, None, None)).asleep;
        assert_eq!(asleep(&[(0, true), (1, true)]), Vec::<i64>::new());
        assert_eq!(asleep(&[(0, false), (1, true)]), vec![0]);
        assert_eq!(asleep(&[(0, false), (1, false)]), vec![1]);
        assert_eq!(asleep(&[(0, true), (1, false)]), Vec::<i64>::new());
        assert_eq!(asleep(&[(0, false), (1, false)]), vec![0]);
        assert_eq!(asleep(&[]), Vec::<i64>::new());
        // Nothing is known of it: an engine that sleeps has no cache, whatever was believed.
        assert_eq!(asleep(&[(0, false)]), vec![0]);
    }

    #[test]
    fn another_process_shows_in_its_start_or_in_all_counters() {
        for (before, after, restarted) in [
            ((Some(5.0), None), (Some(3.0), None), true),
            ((Some(5.0), None), (Some(5.0), None), false),
            ((Some(5.0), Some(100.0)), (Some(3.0), Some(100.0)), false),
            ((Some(5.0), Some(100.0)), (Some(6.0), Some(200.0)), true),
            ((None, None), (Some(6.0), Some(200.0)), false),
        ] {
            let mut edges = Edges::default();
            assert!(!edges.facts(&reading(&[], before.0, before.1)).restarted);
            assert_eq!(edges.facts(&reading(&[], after.0, after.1)).restarted, restarted, "{before:?} {after:?}");
        }
    }
}
