//! The subscriber: its machines on injected time, and the whole over real sockets, in one binary. What floods or weighs its own process
//! is a binary of its own.
#![cfg(all(feature = "server", feature = "subscriber", feature = "testkit"))]

#[path = "../common/calls.rs"]
mod calls;
#[path = "../common/recorder.rs"]
mod recorder;
#[path = "../common/running.rs"]
mod running;

mod captures;
mod deaf;
mod dispatch;
mod fake_engine;
mod kvevents;
mod kvevents_hostile;
mod reannounce;
mod relay;
mod replay_hostile;
mod stats;
mod streams;
mod streams_model;
mod streams_proof;
mod streams_sockets;
mod subscriber;
