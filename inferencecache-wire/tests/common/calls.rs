//! Calls to the server in the shape of the sample file.

use inferencecache_wire::subscriber::blockmap::{BlockMap, Tally, Tier};
use inferencecache_wire::subscriber::window::Delivery;
use serde_json::{Value, json};

pub(crate) fn call(delivery: &Delivery, map: &BlockMap) -> Value {
    let name = |adapter| map.adapters().name(adapter).to_string();
    match delivery {
        Delivery::Report { at, entries, .. } => json!({
            "rpc": "ReportCacheState",
            "timestamp_us": at,
            "prefixes": entries.iter().map(|entry| json!({
                "prefix_hash": format!("{:016x}", entry.digest),
                "token_count": entry.tokens,
                "adapter_id": name(entry.adapter),
                "tier": match entry.tier { Tier::T1 => 1, Tier::T2 => 2, Tier::Remote => 3 },
            })).collect::<Vec<_>>(),
        }),
        Delivery::Evict { at, digest, adapter, .. } => json!({
            "rpc": "PublishEvent",
            "type": "PREFIX_EVICTED",
            "prefix_hash": format!("{digest:016x}"),
            "adapter_id": name(*adapter),
            "timestamp_us": at,
        }),
        Delivery::Clear { at } => json!({"rpc": "PublishEvent", "type": "ALL_CLEARED", "timestamp_us": at}),
    }
}

/// What the map counts, under the names of the sample file.
pub(crate) fn tallies(tally: &Tally) -> [(&'static str, u64); 8] {
    [
        ("dropped_lora", tally.lora),
        ("dropped_salt", tally.salt),
        ("dropped_parent", tally.parent),
        ("mismatch", tally.mismatch),
        ("no_tokens", tally.no_tokens),
        ("other_group", tally.group),
        ("unresolved", tally.unresolved),
        ("unknown_removed", tally.unknown_removals),
    ]
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}
