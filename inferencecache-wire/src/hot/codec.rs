//! The two codecs behind tonic, and the memory that calls on one thread hand on to each other.

use std::cell::Cell;
use std::ops::Deref;
use std::thread::LocalKey;

use bytes::Buf as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::ProstEncoder;

use super::{Fault, LookupReply, LookupRequest, Report};
use crate::pb;

/// A message whose lists occupy more bytes is given back to the allocator: one giant must not stay for ever.
const KEEP: usize = 256 * 1024;

thread_local! {
    static LOOKUP: Cell<LookupRequest> = Cell::default();
    static REPORT: Cell<Report> = Cell::default();
}

/// What can be read again into the memory of the one before.
pub trait Pool: Default + Send + Sync + 'static {
    /// Where a thread keeps one.
    fn slot() -> &'static LocalKey<Cell<Self>>;
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// [`Fault`] where prost refuses the message.
    fn read_again(&mut self, message: &[u8]) -> Result<(), Fault>;
    /// Forgets the message; says how many bytes its memory has.
    fn clear(&mut self) -> usize;
}

impl Pool for LookupRequest {
    fn slot() -> &'static LocalKey<Cell<Self>> {
        &LOOKUP
    }

    fn read_again(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.read_again(message)
    }

    fn clear(&mut self) -> usize {
        self.clear();
        self.memory()
    }
}

impl Pool for Report {
    fn slot() -> &'static LocalKey<Cell<Self>> {
        &REPORT
    }

    fn read_again(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.read_again(message)
    }

    fn clear(&mut self) -> usize {
        self.clear();
        self.memory()
    }
}

/// A message whose memory goes to the next one of its thread when it is dropped.
#[derive(Debug)]
pub struct Pooled<T: Pool>(T);

impl<T: Pool> Pooled<T> {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Fault`] where prost refuses the message.
    pub fn read(message: &[u8]) -> Result<Self, Fault> {
        // A thread that is ending has no memory to hand on.
        let mut pooled = Self(T::slot().try_with(Cell::take).unwrap_or_default());
        pooled.0.read_again(message)?;
        Ok(pooled)
    }
}

impl<T: Pool> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Pool> Drop for Pooled<T> {
    fn drop(&mut self) {
        let mut message = std::mem::take(&mut self.0);
        if message.clear() <= KEEP {
            let _ = T::slot().try_with(|slot| slot.set(message));
        }
    }
}

/// Decodes a [`Pool`].
#[derive(Debug, Clone, Copy)]
pub struct Reading<T>(std::marker::PhantomData<fn() -> T>);

impl<T: Pool> Decoder for Reading<T> {
    type Item = Pooled<T>;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Pooled<T>>, Status> {
        let length = src.remaining();
        let read = match src.chunk() {
            whole if whole.len() == length => Pooled::read(whole),
            _ => Pooled::read(&src.copy_to_bytes(length)),
        };
        src.advance(src.remaining());
        read.map(Some).map_err(|fault| Status::internal(format!("the message cannot be decoded: {fault}")))
    }
}

/// Encodes a [`LookupReply`].
#[derive(Debug, Clone, Copy)]
pub struct Writing;

impl Encoder for Writing {
    type Item = LookupReply;
    type Error = Status;

    fn encode(&mut self, reply: LookupReply, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.reserve(reply.room());
        reply.write(dst);
        reply.recycle();
        Ok(())
    }
}

/// Codec of `LookupRoute`.
#[derive(Debug, Clone, Copy, Default)]
pub struct LookupCodec;

impl Codec for LookupCodec {
    type Encode = LookupReply;
    type Decode = Pooled<LookupRequest>;
    type Encoder = Writing;
    type Decoder = Reading<LookupRequest>;

    fn encoder(&mut self) -> Writing {
        Writing
    }

    fn decoder(&mut self) -> Reading<LookupRequest> {
        Reading(std::marker::PhantomData)
    }
}

/// Codec of `ReportCacheState`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReportCodec;

impl Codec for ReportCodec {
    type Encode = pb::Ack;
    type Decode = Pooled<Report>;
    type Encoder = ProstEncoder<pb::Ack>;
    type Decoder = Reading<Report>;

    fn encoder(&mut self) -> ProstEncoder<pb::Ack> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Reading<Report> {
        Reading(std::marker::PhantomData)
    }
}
