//! Request bodies, bounded in length and in time.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;

/// How long a body may take to arrive.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still read, so that its sender gets to see the answer.
pub(crate) const DRAIN_BYTES: usize = 16 * 1024 * 1024;

/// Why there is no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the body did not arrive within {TIMEOUT:?}")]
    Late,
    #[error("the body broke off: {0}")]
    Off(axum::Error),
}

/// The first `keep` bytes of a body. Ask for one more than is accepted, and its length tells whether there were more.
pub(super) async fn read(body: Body, keep: usize) -> Result<Vec<u8>, Broken> {
    tokio::time::timeout(TIMEOUT, collect(body, keep)).await.unwrap_or(Err(Broken::Late))
}

async fn collect(mut body: Body, keep: usize) -> Result<Vec<u8>, Broken> {
    let mut bytes = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Broken::Off)?;
        let Some(data) = frame.data_ref() else { continue };
        length = length.saturating_add(data.len());
        bytes.extend_from_slice(data.get(..keep - bytes.len()).unwrap_or(data));
        if length > DRAIN_BYTES {
            break;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::body::Bytes;
    use futures::stream::{self, StreamExt as _};

    fn chunk(byte: u8, length: usize) -> Result<Bytes, std::io::Error> {
        Ok(Bytes::from(vec![byte; length]))
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_tells_whether_there_is_more() {
        let body = || Body::from_stream(stream::iter([chunk(b'a', 3), chunk(b'b', 3), chunk(b'c', 3)]));
        assert_eq!(read(body(), 9).await.expect("a body"), b"aaabbbccc");
        assert_eq!(read(body(), 5).await.expect("a body"), b"aaabb");
        assert_eq!(read(body(), 100).await.expect("a body"), b"aaabbbccc");
        assert_eq!(read(Body::empty(), 5).await.expect("a body"), b"");
        let endless = Body::from_stream(stream::repeat_with(|| chunk(b'x', 1 << 20)));
        assert_eq!(read(endless, 4).await.expect("a body"), b"xxxx");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        for first in [None, Some(chunk(b'a', 3))] {
            let body = Body::from_stream(stream::iter(first).chain(stream::pending()));
            assert!(matches!(read(body, 9).await, Err(Broken::Late)));
        }
        // Each byte in time is not the body in time.
        let dripping = stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((chunk(b'x', 1), ()))
        });
        let why = read(Body::from_stream(dripping), 100).await.expect_err("too slow");
        assert_eq!(why.to_string(), "the body did not arrive within 10s");
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_no_body() {
        let broken = Err(std::io::Error::other("reset"));
        let body = Body::from_stream(stream::iter([chunk(b'a', 3), broken]));
        assert!(matches!(read(body, 9).await, Err(Broken::Off(_))));
    }
}
