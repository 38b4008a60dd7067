//! A connection whose peer must take what it is sent.
//!
//! A peer that asks and does not read holds its answer in memory and its place at the listener. Writes that get nowhere for
//! a time fail, and the connection with them. HTTP/2 needs no such thing: there the pings fail.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// See the module.
pub(super) struct Paced<S> {
    inner: S,
    limit: Duration,
    /// Until when the peer must take something; `None` while it does.
    stalled: Option<Pin<Box<Sleep>>>,
    on_timeout: Box<dyn FnMut() + Send>,
}

impl<S> Paced<S> {
    /// Calls `on_timeout` when no byte was taken for `limit`.
    pub(super) fn within(limit: Duration, inner: S, on_timeout: impl FnMut() + Send + 'static) -> Self {
        Self { inner, limit, stalled: None, on_timeout: Box::new(on_timeout) }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit))).as_mut().poll(cx));
        self.stalled = None;
        (self.on_timeout)();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_now_and_then_is_waited_for_and_one_that_stops_is_not() {
        let (near, mut far) = tokio::io::duplex(10);
        let timeouts = Arc::new(AtomicU32::new(0));
        let count = timeouts.clone();
        let mut paced = Paced::within(Duration::from_secs(10), near, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let reader = async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                far.read_exact(&mut [0; 10]).await.expect("more");
            }
            std::future::pending::<()>().await;
        };
        let writer = async {
            let all = paced.write_all(&[7; 205]).await;
            all.expect("taken slowly");
            paced.write_all(&[7; 1000]).await.expect_err("taken no more").kind()
        };
        tokio::select! {
            kind = writer => assert_eq!(kind, io::ErrorKind::TimedOut),
            () = reader => {}
        }
        assert_eq!(timeouts.load(Ordering::Relaxed), 1);
    }
}
