//! Chains, questions about them, and reports of new ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

use crate::Settings;
use crate::measure::{Run, Second, Watch, histogram};

/// Entries of one report.
const REPORT: usize = 256;
const TOKENS: i32 = 16;

/// What is stored and asked.
pub(crate) struct Load {
    settings: Settings,
    chains: usize,
}

/// What the askers count together.
struct Counts {
    lookups: AtomicU64,
    blocks: AtomicU64,
    wrong: AtomicU64,
    stop: AtomicBool,
    /// Chains that have been reported, oldest first; the index still holds the last `chains` of them.
    reported: AtomicU64,
    latency: Mutex<Histogram<u64>>,
}

impl Load {
    pub(crate) fn new(settings: &Settings) -> Self {
        let chains = (settings.blocks / settings.hashes).max(8);
        Self { settings: settings.clone(), chains }
    }

    /// Stores as much as the index holds.
    pub(crate) async fn fill(&self, server: &str) -> Result<()> {
        let (send, receive) = mpsc::channel(16);
        let mut client = InferenceCacheClient::new(connect(server).await?);
        let filling = tokio::spawn(async move { client.report_cache_state(receiver(receive)).await });
        for chain in 0..self.chains as u64 {
            for update in self.updates(chain) {
                send.send(update).await.context("the server has ended the stream")?;
            }
        }
        drop(send);
        filling.await?.context("reporting")?;
        Ok(())
    }

    /// Asks and reports for so long.
    pub(crate) async fn drive(&self, server: &str, watch: &Watch, long: Duration) -> Result<Run> {
        let counts = Arc::new(Counts {
            lookups: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reported: AtomicU64::new(self.chains as u64),
            latency: Mutex::new(histogram()?),
        });
        let mut tasks = Vec::new();
        for asker in 0..self.settings.connections as u64 {
            tasks.push(tokio::spawn(ask(
                connect(server).await?,
                self.settings.clone(),
                self.chains as u64,
                counts.clone(),
                asker,
            )));
        }
        let (send, receive) = mpsc::channel(16);
        let mut client = InferenceCacheClient::new(connect(server).await?);
        let stream = tokio::spawn(async move { client.report_cache_state(receiver(receive)).await });
        let start = Instant::now();
        let reporting = self.report(send, &counts, start);
        let watching = observe(watch, &counts, long);
        let (reported, seconds) = tokio::join!(reporting, watching);
        reported?;
        for task in tasks {
            task.await?;
        }
        stream.await?.context("reporting")?;
        let latency = counts.latency.lock().clone();
        Ok(Run { seconds: seconds?, latency, wrong: counts.wrong.load(Ordering::Relaxed), took: start.elapsed() })
    }

    /// Reports new chains at the wanted rate until it is stopped.
    async fn report(&self, send: mpsc::Sender<pb::CacheStateUpdate>, counts: &Counts, start: Instant) -> Result<()> {
        let mut sent = 0u64;
        while !counts.stop.load(Ordering::Relaxed) {
            let chain = counts.reported.load(Ordering::Relaxed);
            for update in self.updates(chain) {
                let blocks = update.prefixes.len() as u64;
                send.send(update).await.context("the server has ended the stream")?;
                counts.blocks.fetch_add(blocks, Ordering::Relaxed);
                sent += blocks;
            }
            counts.reported.store(chain + 1, Ordering::Relaxed);
            if self.settings.ingest > 0 {
                let due = start + Duration::from_secs_f64(sent as f64 / self.settings.ingest as f64);
                tokio::time::sleep_until(due.into()).await;
            }
        }
        Ok(())
    }

    fn updates(&self, chain: u64) -> Vec<pb::CacheStateUpdate> {
        let hashes: Vec<u64> = (0..self.settings.hashes as u64).map(|position| hash(chain, position)).collect();
        let entries = hashes.iter().zip(1..).map(|(hash, block)| pb::PrefixEntry {
            prefix_hash: hash.to_be_bytes().to_vec(),
            token_count: block * TOKENS,
            tier: 1,
            ..pb::PrefixEntry::default()
        });
        let entries: Vec<pb::PrefixEntry> = entries.collect();
        let update = |prefixes: &[pb::PrefixEntry]| pb::CacheStateUpdate {
            replica_id: format!("replica-{}", chain % self.settings.replicas as u64),
            model_id: "m".to_owned(),
            tenant_id: "t".to_owned(),
            hash_scheme: "vllm".to_owned(),
            prefixes: prefixes.to_vec(),
            ..pb::CacheStateUpdate::default()
        };
        entries.chunks(REPORT).map(update).collect()
    }
}

/// Asks one question after the other.
async fn ask(channel: Channel, settings: Settings, chains: u64, counts: Arc<Counts>, asker: u64) {
    let mut client = InferenceCacheClient::new(channel);
    let mut draw = asker << 32;
    while !counts.stop.load(Ordering::Relaxed) {
        draw += 1;
        // Of the half that was reported last, so that none goes while it is asked for.
        let newest = counts.reported.load(Ordering::Relaxed);
        let chain = newest - 1 - hash(draw, 7) % (chains / 2).max(1);
        let question = pb::LookupRouteRequest {
            model_id: "m".to_owned(),
            tenant_id: "t".to_owned(),
            hash_scheme: "vllm".to_owned(),
            block_hashes: (0..settings.hashes as u64).map(|i| hash(chain, i).to_be_bytes().to_vec()).collect(),
            block_token_counts: vec![TOKENS; settings.hashes],
            ..pb::LookupRouteRequest::default()
        };
        let start = Instant::now();
        let answer = client.lookup_route(question).await;
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.latency.lock().saturating_record(took);
        let whole = i32::try_from(settings.hashes).unwrap_or(i32::MAX) * TOKENS;
        let right = answer.is_ok_and(|answer| {
            answer.get_ref().replica_scores.first().is_some_and(|score| score.matched_tokens == whole)
        });
        counts.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
        counts.lookups.fetch_add(1, Ordering::Relaxed);
    }
}

/// Looks at the counts once a second.
async fn observe(watch: &Watch, counts: &Counts, long: Duration) -> Result<Vec<Second>> {
    let mut seconds = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let (mut lookups, mut blocks, mut cpu, mut before) = (0, 0, watch.cpu()?, histogram()?);
    for second in 0..long.as_secs() {
        ticks.tick().await;
        let (all, stored, used) =
            (counts.lookups.load(Ordering::Relaxed), counts.blocks.load(Ordering::Relaxed), watch.cpu()?);
        let latency = counts.latency.lock().clone();
        let mut within = latency.clone();
        within.subtract(&before)?;
        seconds.push(Second {
            lookups: all - lookups,
            blocks: stored - blocks,
            p50: within.value_at_quantile(0.5) as f64 / 1000.0,
            p99: within.value_at_quantile(0.99) as f64 / 1000.0,
            cpu: used - cpu,
            rss: watch.rss()?,
        });
        (lookups, blocks, cpu, before) = (all, stored, used, latency);
        if second % 30 == 29 {
            eprintln!("{} of {} s, {} lookups", second + 1, long.as_secs(), all);
        }
    }
    counts.stop.store(true, Ordering::Relaxed);
    Ok(seconds)
}

async fn connect(server: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{server}"))?.tcp_nodelay(true);
    endpoint.connect().await.with_context(|| format!("connecting to {server}"))
}

fn receiver(
    receive: mpsc::Receiver<pb::CacheStateUpdate>,
) -> tokio_stream::wrappers::ReceiverStream<pb::CacheStateUpdate> {
    tokio_stream::wrappers::ReceiverStream::new(receive)
}

/// The hash at `position` of chain `chain`: stirred, so that neighbours are not neighbours in any table.
fn hash(chain: u64, position: u64) -> u64 {
    let mut x = (chain << 16 | position).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
