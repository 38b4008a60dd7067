//! A connection that must say something soon.
//!
//! HTTP/2 pings only begin once both sides have introduced themselves; a peer that connects and stays silent would hold its
//! place for ever. Until it has sent as much as an introduction takes, reads fail after a time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Client preface and the head of its first frame.
const INTRODUCTION: usize = 24 + 9;

/// See the module.
#[derive(Debug)]
pub(super) struct Introduced<S> {
    inner: S,
    /// Bytes still to come, and until when; `None` once they have.
    awaited: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> Introduced<S> {
    pub(super) fn within(limit: Duration, inner: S) -> Self {
        Self { inner, awaited: Some((INTRODUCTION, Box::pin(tokio::time::sleep(limit)))) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Introduced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.inner).poll_read(cx, buf) {
            let got = buf.filled().len() - before;
            if let Some((awaited, _)) = &mut this.awaited {
                *awaited = awaited.saturating_sub(got);
                if *awaited == 0 {
                    this.awaited = None;
                }
            }
            return Poll::Ready(read);
        }
        if let Some((_, limit)) = &mut this.awaited {
            ready!(limit.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Introduced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
