//! P17: the index to a file and back, beside a plain write and a plain read of the same bytes.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use inferencecache_core::{Entry, Index, IndexApi, IndexOptions, ManualClock, Update};

use crate::measure::{Effort, Spread};
use crate::report::{Figure, Outcome, Target};
use crate::workload::{Op, Workload};

pub(super) fn restart(effort: Effort) -> Vec<Outcome> {
    let options = IndexOptions { clock: Arc::new(ManualClock::at(1 << 40)), max_entries: 0, ..IndexOptions::default() };
    let index = filled(&options, effort.blocks);
    let entries = index.storage_entries();
    let folder = std::env::temp_dir().join(format!("inferencecache-peers-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder of its own");
    let file = folder.join("index");
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let saved = millis(|| save(&index, &file));
        let image = fs::read(&file).expect("just written");
        let written = millis(|| write(&image, &folder.join("plain")));
        writes.push(saved / written);

        let plain = millis(|| {
            let mut bytes = Vec::with_capacity(image.len());
            File::open(&file).and_then(|mut file| file.read_to_end(&mut bytes)).expect("it is there");
            black_box(bytes.len());
        });
        let mut back = None;
        let restored = millis(|| back = Some(restore(&options, &file)));
        assert_eq!(back.map(|index| index.storage_entries()), Some(entries), "a wrong answer");
        reads.push(restored / plain);
    }
    fs::remove_dir_all(&folder).expect("ours");
    let figure = |ratios: Vec<f64>| vec![Figure::new("ours, single", Spread::of(ratios))];
    vec![
        Outcome::judge("P17", "save, over a plain write and sync", "×", figure(writes), Target::Absolute(2.0)),
        Outcome::judge("P17", "restore, over a plain read", "×", figure(reads), Target::Absolute(4.0)),
    ]
}

fn filled(options: &IndexOptions, blocks: usize) -> Index {
    let index = Index::new(options.clone());
    let workload = Workload::of(blocks, 64, 64);
    for op in workload.stores(1, 32) {
        let Op::Store { replica, chain, from, to, .. } = op else { continue };
        let hashes: Vec<[u8; 8]> = workload.chains[chain as usize].iter().map(|hash| hash.to_be_bytes()).collect();
        let entries: Vec<Entry<'_>> = (from..to)
            .map(|i| Entry {
                prefix_hash: &hashes[i as usize],
                token_count: (i as i32 + 1) * 16,
                ..Entry::default()
            })
            .collect();
        let replica = format!("replica-{replica}");
        let update = Update {
            replica: &replica,
            model: "m",
            tenant: "t",
            scheme: "vllm",
            entries: &entries,
            ..Update::default()
        };
        index.ingest(&update);
    }
    index
}

fn save(index: &Index, file: &Path) {
    let mut to = BufWriter::with_capacity(256 << 10, File::create(file).expect("a file"));
    index.save(&mut to).expect("room");
    to.into_inner().expect("room").sync_all().expect("a disk");
}

fn write(bytes: &[u8], file: &Path) {
    let mut to = File::create(file).expect("a file");
    to.write_all(bytes).expect("room");
    to.sync_all().expect("a disk");
}

fn restore(options: &IndexOptions, file: &Path) -> Index {
    let from = BufReader::with_capacity(256 << 10, File::open(file).expect("it is there"));
    Index::restore(options.clone(), from).expect("whole").0
}

fn millis(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}
