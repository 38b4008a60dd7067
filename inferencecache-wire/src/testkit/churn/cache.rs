//! The prefix cache of one rank: device memory, with or without host memory behind it, and the events it causes.
//!
//! Within a prompt later blocks count as used earlier, as engines do it: a block never outlives the one it continues.

use std::sync::Arc;

use super::lru::{Key, Lru};
use super::universe::{MAX_DEPTH, Universe};
use super::{ChurnOptions, Held};
use crate::testkit::event::{Adapter, Event, Medium};
use crate::testkit::script::Shape;

#[derive(Debug)]
pub(super) struct Cache {
    universe: Arc<Universe>,
    options: ChurnOptions,
    device: Lru,
    host: Lru,
    clock: u64,
    host_clock: u64,
    /// A cache that was emptied while nobody was told.
    silent_clear: bool,
}

impl Cache {
    pub(super) fn new(universe: Arc<Universe>, options: ChurnOptions) -> Self {
        let [device, host] = [(); 2].map(|()| Lru::default());
        Self { universe, options, device, host, clock: 0, host_clock: 0, silent_clear: false }
    }

    /// Runs one prompt. `twice`: a second request computes its new blocks at the same time, so that they are stored in two
    /// copies. Gives the events, none when everything was held, and the number of blocks that were reused.
    pub(super) fn prompt(&mut self, prompt: &[usize], adapter: usize, twice: bool) -> (Vec<Event>, usize) {
        let mut events = Vec::new();
        if std::mem::take(&mut self.silent_clear) {
            events.push(Event::Cleared);
        }
        let room = self.options.capacity / 2;
        let prompt = prompt.get(..room.max(1)).unwrap_or(prompt);
        let reused = prompt.iter().take_while(|&&node| self.device.contains((node, adapter))).count();
        let (held, new) = prompt.split_at(reused);
        self.clock += 2 * MAX_DEPTH as u64;
        let stamp = |depth: usize, clock: u64| clock - depth as u64;
        for (depth, &node) in held.iter().enumerate() {
            self.device.touch((node, adapter), stamp(depth, self.clock));
        }
        let copies = if twice { 2 } else { 1 };
        self.make_room(new.len() * copies, &mut events);
        for copy in 0..copies {
            let second = copy * MAX_DEPTH;
            for (depth, &node) in new.iter().enumerate() {
                self.device.store((node, adapter), stamp(reused + depth, self.clock + second as u64));
            }
            self.clock += second as u64;
            if !new.is_empty() {
                events.push(self.stored(held.last().copied(), new, adapter, Medium::Gpu));
            }
        }
        (events, reused)
    }

    /// Empties the cache. Without `event` nobody is told before the next prompt, as with an engine that sleeps.
    pub(super) fn clear(&mut self, event: bool) -> Vec<Event> {
        self.device.clear();
        self.host.clear();
        self.silent_clear = !event;
        if event { vec![Event::Cleared] } else { Vec::new() }
    }

    /// Everything held, each block once, under its warmest tier.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> {
        let device = self.device.keys().map(|key| (key, Medium::Gpu));
        let host = self.host.keys().filter(|&key| !self.device.contains(key)).map(|key| (key, Medium::Cpu));
        device.chain(host).map(|((node, adapter), medium)| Held { node, adapter, medium })
    }

    /// Share of device memory that is in use.
    #[expect(clippy::cast_precision_loss, reason = "block counts are small")]
    pub(super) fn usage(&self) -> f64 {
        self.device.len() as f64 / self.options.capacity.max(1) as f64
    }

    fn make_room(&mut self, blocks: usize, events: &mut Vec<Event>) {
        let mut removed = Vec::new();
        while self.device.len() + blocks > self.options.capacity {
            let Some((key, last)) = self.device.take_oldest() else { break };
            if last && self.options.host_capacity > 0 {
                self.offload(key, events);
            }
            removed.push(self.universe.hash(key.0, key.1));
        }
        if !removed.is_empty() {
            events.push(Event::Removed { hashes: removed, medium: Medium::Gpu });
        }
    }

    fn offload(&mut self, key: Key, events: &mut Vec<Event>) {
        self.host_clock += 1;
        if self.host.contains(key) {
            self.host.touch(key, self.host_clock);
            return;
        }
        while self.host.len() >= self.options.host_capacity {
            let Some((gone, _)) = self.host.take_oldest() else { break };
            let hashes = vec![self.universe.hash(gone.0, gone.1)];
            events.push(Event::Removed { hashes, medium: Medium::Cpu });
        }
        self.host.store(key, self.host_clock);
        let parent = self.universe.prompt(key.0).into_iter().rev().nth(1);
        events.push(self.stored(parent, &[key.0], key.1, Medium::Cpu));
    }

    /// Host copies are placeholders in maps, as vLLM announces them, and whole stores in arrays, as SGLang does.
    fn stored(&self, parent: Option<usize>, nodes: &[usize], adapter: usize, medium: Medium) -> Event {
        let hash = |&node: &usize| self.universe.hash(node, adapter);
        let hashes = nodes.iter().map(hash).collect();
        let name = adapter.checked_sub(1).and_then(|index| self.options.adapters.get(index));
        let named = name.map(|name| Adapter { id: adapter as u64, name: name.clone() });
        if medium == Medium::Cpu && self.options.shape == Shape::Map {
            return Event::Stored { hashes, parent: None, tokens: Vec::new(), block_size: 0, medium, adapter: named };
        }
        Event::Stored {
            hashes,
            parent: parent.as_ref().map(hash),
            tokens: nodes.iter().flat_map(|&node| self.universe.tokens(node)).copied().collect(),
            block_size: self.universe.block_size().get(),
            medium,
            adapter: named,
        }
    }
}
