//! Batches as current engines write them: events, their shape, and the envelope around them.

use super::msgpack::Writer;
use super::script::Shape;

/// Where a copy of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// Device memory.
    Gpu,
    /// Host memory.
    Cpu,
}

impl Medium {
    /// As it is spelled in events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        }
    }
}

/// An adapter of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Number in load order.
    pub id: u64,
    /// Name.
    pub name: String,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks that continue one another were stored.
    Stored {
        /// Engine hash of each.
        hashes: Vec<u64>,
        /// Engine hash of the block before the first; `None` at the beginning of a prompt.
        parent: Option<u64>,
        /// Tokens of all of them; empty in a placeholder, which says only where a known block lies now.
        tokens: Vec<u32>,
        /// Tokens of one; 0 in a placeholder.
        block_size: u32,
        /// Where.
        medium: Medium,
        /// `None` for the base model.
        adapter: Option<Adapter>,
    },
    /// Copies are gone.
    Removed {
        /// Engine hashes.
        hashes: Vec<u64>,
        /// Which copies.
        medium: Medium,
    },
    /// The whole cache is gone.
    Cleared,
}

/// Writes a batch. `time` is in seconds since the epoch.
#[must_use]
pub fn batch(time: f64, rank: Option<u64>, shape: Shape, events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(3).float64(time).array(events.len());
    for event in events {
        write(&mut writer, shape, event);
    }
    or_nil(&mut writer, rank);
    writer.into_bytes()
}

fn write(writer: &mut Writer, shape: Shape, event: &Event) {
    match event {
        Event::Stored { hashes, parent, tokens, block_size, medium, adapter } => {
            head(writer, shape, "BlockStored", 7);
            list(key(writer, shape, "block_hashes"), hashes.iter().copied());
            or_nil(key(writer, shape, "parent_block_hash"), *parent);
            list(key(writer, shape, "token_ids"), tokens.iter().map(|&token| token.into()));
            key(writer, shape, "block_size").uint((*block_size).into());
            or_nil(key(writer, shape, "lora_id"), adapter.as_ref().map(|adapter| adapter.id));
            key(writer, shape, "medium").str(medium.name());
            match (key(writer, shape, "lora_name"), adapter) {
                (writer, Some(adapter)) => writer.str(&adapter.name),
                (writer, None) => writer.nil(),
            };
        }
        Event::Removed { hashes, medium } => {
            head(writer, shape, "BlockRemoved", 2);
            list(key(writer, shape, "block_hashes"), hashes.iter().copied());
            key(writer, shape, "medium").str(medium.name());
        }
        Event::Cleared => head(writer, shape, "AllBlocksCleared", 0),
    }
}

fn head(writer: &mut Writer, shape: Shape, tag: &str, fields: usize) {
    match shape {
        Shape::Tuple => writer.array(1 + fields).str(tag),
        Shape::Map => writer.map(1 + fields).str("type").str(tag),
    };
}

fn key<'w>(writer: &'w mut Writer, shape: Shape, name: &str) -> &'w mut Writer {
    match shape {
        Shape::Tuple => writer,
        Shape::Map => writer.str(name),
    }
}

fn list(writer: &mut Writer, numbers: impl ExactSizeIterator<Item = u64>) {
    writer.array(numbers.len());
    for number in numbers {
        writer.uint(number);
    }
}

fn or_nil(writer: &mut Writer, number: Option<u64>) {
    match number {
        Some(number) => writer.uint(number),
        None => writer.nil(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl BatchSink for Seen {
        fn batch(&mut self, head: BatchHead) {
            self.0.push(format!("{} {:?}", head.timestamp, head.rank));
        }

        fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
            self.0.push(match event.unwrap() {
                EngineEvent::Stored(stored) => {
                    format!("+{} {:?} {:?} {:?}", stored.block_size, stored.medium, stored.lora_name, stored.lora_id)
                }
                EngineEvent::Removed(removed) => format!("-{:?}", removed.medium),
                other => format!("{other:?}"),
            });
        }
    }

    #[test]
    fn both_shapes_are_read_alike() {
        let adapter = Some(Adapter { id: 1, name: "a".to_owned() });
        let events = [
            Event::Stored {
                hashes: vec![1 << 63, 2],
                parent: Some(7),
                tokens: vec![1, 2, 3, 4],
                block_size: 2,
                medium: Medium::Gpu,
                adapter,
            },
            Event::Removed { hashes: vec![2], medium: Medium::Cpu },
            Event::Cleared,
        ];
        let seen = [Shape::Tuple, Shape::Map].map(|shape| {
            let mut seen = Seen::default();
            MsgpackDecoder::default().decode(&batch(1.5, Some(3), shape, &events), &mut seen).unwrap();
            seen.0
        });
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[0][1..3], ["+2 Some(\"GPU\") Some(\"a\") Some(1)", "-Some(\"CPU\")"]);
        assert_eq!(seen[0][0], "1500000 Some(3)");
    }
}
