#![doc = include_str!("../README.md")]

pub mod adapters;
pub mod api;
#[cfg(feature = "controller")]
pub mod controller;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "webhook")]
pub mod webhook;
