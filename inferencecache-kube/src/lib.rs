#![doc = include_str!("../README.md")]

pub mod adapters;
pub mod api;
#[cfg(feature = "controller")]
pub mod controller;
#[cfg(any(feature = "controller", feature = "webhook"))]
mod dns;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "webhook")]
pub mod webhook;
