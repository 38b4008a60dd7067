//! The messages and service stubs of the published contract, `inferencecache.v1alpha1`.
//!
//! Generated from `proto/inferencecache/v1alpha1/inferencecache.proto`; field numbers and names are the wire's. The client
//! stub exists with feature `client`, the server trait with feature `server`. Most callers want the typed wrappers in
//! [`grpc`](crate::grpc) instead.

pub use crate::generated::*;

/// Encoded `FileDescriptorSet` of the contract, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptor.bin");
