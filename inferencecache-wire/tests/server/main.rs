//! The server's surfaces, most of them over real sockets, in one binary: linking one a file took longer than running them all.
//! What weighs its own process, or fills it with connections, is a binary of its own.
#![cfg(all(
    feature = "canary",
    feature = "client",
    feature = "server",
    feature = "t2-redis",
    feature = "testkit",
    feature = "tls",
    feature = "tokenizer"
))]

#[path = "../common/certs.rs"]
mod certs;
#[path = "../common/doubles.rs"]
mod doubles;
#[path = "../common/logs.rs"]
mod logs;
#[path = "../common/models.rs"]
mod models;
#[path = "../common/raw.rs"]
mod raw;
#[expect(dead_code, reason = "shared with the subscriber's tests, which need more of it")]
#[path = "../common/recorder.rs"]
mod recorder;
#[path = "../common/redis.rs"]
mod redis;
#[path = "../common/server.rs"]
mod server;

mod auth;
mod bridge;
mod canary;
mod client;
mod contract;
mod faults;
mod grpc_tls;
mod hot;
mod lifecycle;
mod observed;
mod policy;
mod probe;
mod probe_body;
mod prompts;
mod review;
mod second_tier;
mod tls;
mod tokenize;
mod unread;
