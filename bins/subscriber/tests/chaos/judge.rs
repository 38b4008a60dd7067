//! What the index claims, and what the engine holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use inferencecache_wire::grpc::client::{ClientOptions, HintClient};
use inferencecache_wire::pb;
use inferencecache_wire::testkit::churn::Universe;
use serde_json::Value;

use super::process::http;

/// Who everything is reported for.
pub(crate) const TENANT: &str = "chaos";
pub(crate) const MODEL: &str = "m";
pub(crate) const REPLICA: &str = "r0";
pub(crate) const SCHEME: &str = "vllm";

/// Lookups under way at a time.
const ABREAST: usize = 16;

/// More than the time between two sweeps of the server.
const SWEPT: Duration = Duration::from_millis(400);

/// A block under an adapter: the key of the index.
pub(crate) type Block = (String, u64);
/// What is said of it: tokens of its prefix, tier.
pub(crate) type Claim = (i64, String);
pub(crate) type Claims = BTreeMap<Block, Claim>;

/// How far claims and truth are apart.
#[derive(Debug, Default, Clone)]
pub(crate) struct Difference {
    /// Claimed, not held.
    pub(crate) false_claims: Vec<Block>,
    /// Claims for keys that no prompt of the engine has.
    pub(crate) unheard_of: usize,
    /// Held, not claimed.
    pub(crate) missing: Vec<Block>,
    /// Claimed with other tokens or in another tier.
    pub(crate) otherwise: Vec<(Block, Claim, Claim)>,
}

impl Difference {
    pub(crate) fn is_clean(&self) -> bool {
        self.false_claims.is_empty() && self.unheard_of == 0
    }

    pub(crate) fn is_none(&self) -> bool {
        self.is_clean() && self.missing.is_empty() && self.otherwise.is_empty()
    }
}

/// What the engine says it holds, and its last number for each rank.
pub(crate) struct Truth {
    pub(crate) held: Claims,
    pub(crate) last: Vec<Option<u64>>,
}

impl Truth {
    pub(crate) fn ask(control: u16) -> Result<Self, String> {
        let body = http("GET", control, "/truth", "")?;
        let value: Value = serde_json::from_str(&body).map_err(|why| why.to_string())?;
        let row = |row: &Value| {
            let digest = u64::from_str_radix(row[1].as_str()?, 16).ok()?;
            Some(((row[0].as_str()?.to_owned(), digest), (row[2].as_i64()?, row[3].as_str()?.to_owned())))
        };
        let rows = value["held"].as_array().ok_or("no list")?;
        let held = rows.iter().map(row).collect::<Option<Claims>>().ok_or("a row of another shape")?;
        let last = value["last_sequence"].as_array().ok_or("no list")?.iter().map(Value::as_u64).collect();
        Ok(Self { held, last })
    }
}

/// Asks the server about every block that can exist.
pub(crate) struct Judge {
    client: HintClient,
    runtime: tokio::runtime::Runtime,
    bridge: u16,
    blocks: Vec<Block>,
}

impl Judge {
    pub(crate) fn new(grpc: u16, bridge: u16, universe: &Universe, adapters: &str) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| why.to_string())?;
        let client = {
            let _inside = runtime.enter();
            let options = ClientOptions { call_timeout: super::process::PATIENCE, ..ClientOptions::default() };
            HintClient::new(&format!("127.0.0.1:{grpc}"), &options).map_err(|why| why.to_string())?
        };
        let adapters = std::iter::once("").chain(adapters.split(',').filter(|name| !name.is_empty()));
        let digests: Vec<u64> = (0..universe.len()).map(|node| universe.digest(node).0).collect();
        let blocks: BTreeSet<Block> =
            adapters.flat_map(|adapter| digests.iter().map(|&digest| (adapter.to_owned(), digest))).collect();
        Ok(Self { client, runtime, bridge, blocks: blocks.into_iter().collect() })
    }

    /// Every block that the replica is said to hold, and the number of those that no prompt has.
    fn claims(&self) -> Result<(Claims, usize), String> {
        let before = self.entries()?;
        let answers = futures::stream::iter(&self.blocks).map(|block| async move {
            let request = pb::LookupRouteRequest {
                tenant_id: TENANT.to_owned(),
                model_id: MODEL.to_owned(),
                hash_scheme: SCHEME.to_owned(),
                adapter_id: block.0.clone(),
                prefix_hash: block.1.to_be_bytes().to_vec(),
                ..pb::LookupRouteRequest::default()
            };
            (block, self.client.lookup(request).await)
        });
        let answers: Vec<_> = self.runtime.block_on(answers.buffer_unordered(ABREAST).collect());
        let mut claims = Claims::new();
        for (block, hint) in answers {
            if let Some(cause) = hint.degraded {
                return Err(format!("no answer to a lookup: {cause}"));
            }
            let row = hint.response.replica_scores.iter().find(|row| row.replica_id == REPLICA);
            if let Some(row) = row.filter(|_| hint.response.reason_code == "PREFIX_MATCH") {
                let tier = if row.tier == pb::CacheTier::T1 as i32 { "T1" } else { "T2" };
                claims.insert(block.clone(), (row.matched_tokens.into(), tier.to_owned()));
            }
        }
        // Entries come and go meanwhile. Once what has expired is swept, only those count that were there all the time.
        std::thread::sleep(SWEPT);
        let unheard_of = before.min(self.entries()?).saturating_sub(claims.len());
        Ok((claims, unheard_of))
    }

    /// Entries of the replica, whatever their keys.
    fn entries(&self) -> Result<usize, String> {
        let body = http("GET", self.bridge, "/snapshot", "")?;
        let value: Value = serde_json::from_str(&body).map_err(|why| why.to_string())?;
        let rows = value["replicas"].as_array().ok_or("no list")?;
        let row = rows.iter().find(|row| row["replicaId"] == REPLICA);
        Ok(row.and_then(|row| row["prefixCount"].as_u64()).and_then(|count| count.try_into().ok()).unwrap_or(0))
    }

    pub(crate) fn compare(&self, held: &Claims) -> Result<Difference, String> {
        let (claims, mut unheard_of) = self.claims()?;
        if unheard_of > 0 {
            // What expires while it is counted is not counted twice.
            unheard_of = unheard_of.min(self.claims()?.1);
        }
        let mut difference = Difference { unheard_of, ..Difference::default() };
        for (block, claim) in &claims {
            match held.get(block) {
                None => difference.false_claims.push(block.clone()),
                Some(truth) if truth != claim => {
                    difference.otherwise.push((block.clone(), claim.clone(), truth.clone()));
                }
                Some(_) => {}
            }
        }
        difference.missing = held.keys().filter(|block| !claims.contains_key(*block)).cloned().collect();
        Ok(difference)
    }
}
