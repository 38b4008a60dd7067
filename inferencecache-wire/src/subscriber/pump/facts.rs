//! What the statistics path and the passing of time do to what is believed.

use std::time::Instant;

use super::super::blockmap::AGE_STEPS;
use super::super::silence::Suspect;
use super::super::stats::Observed;
use super::super::window::Delivery;
use super::Pump;

impl Pump {
    /// Takes what a page of metrics says about the engine's cache.
    pub(super) fn observed(&mut self, observed: Observed) {
        let Observed { facts, clearing } = observed;
        self.silence.page(facts.working, facts.prefix_caching);
        // A new process that has already spoken was noticed by its sequence, and what it stored since must stay.
        let quiet = std::mem::replace(&mut self.messages_at_page, self.silence.messages()) == self.silence.messages();
        let restarted = facts.restarted && quiet;
        if restarted || !facts.asleep.is_empty() {
            tracing::info!(asleep = ?facts.asleep, restarted, "the engine has dropped its cache; its blocks are forgotten");
        }
        self.ingest.outside(0, &mut self.out, |map, ops| {
            if restarted {
                map.dropped(None, ops);
                return;
            }
            for engine in &facts.asleep {
                if !map.dropped(Some(*engine), ops) && facts.only_engine == Some(*engine) {
                    map.dropped(None, ops);
                }
            }
        });
        let map = self.ingest.map();
        map.bound(facts.capacity.in_blocks(map.block_size()));
        let clears = self.out.iter().any(|out| matches!(out.delivery, Delivery::Clear { .. }));
        let now = self.now();
        self.offer(now);
        self.gather(now);
        let _ = clearing.send(clears);
    }

    /// Looks at what only time brings about.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        let step = self.config.max_belief_age / AGE_STEPS;
        if let Some(steps) = now.duration_since(self.start).as_nanos().checked_div(step.as_nanos()) {
            self.ingest.map().age(u64::try_from(steps).unwrap_or(u64::MAX));
        }
        if let Some((suspect, endpoints)) = self.silence.due(now) {
            let topic = &self.config.topic;
            match suspect {
                Suspect::PrefixCaching => tracing::warn!(
                    endpoints,
                    topic,
                    "no message came from the engine: its prefix caching is off, so it has nothing to announce"
                ),
                Suspect::Publisher => tracing::warn!(
                    endpoints,
                    topic,
                    "no message came although the engine processes prompts: check that its publisher is on, and its topic and port"
                ),
                Suspect::Anything => tracing::warn!(
                    endpoints,
                    topic,
                    "connected to the engine, but no message came: check that its prefix caching and publisher are on, and its topic and port"
                ),
            }
        }
        self.look_for_ignored_groups(now);
    }
}
