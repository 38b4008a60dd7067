//! Projected token files: the cluster replaces them at any time, so each call reads anew.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use tokio::time::timeout;

use super::error::BridgeError;

/// Longest token that is read, in bytes.
const MAX_TOKEN: u64 = 16 * 1024;
/// Longest wait for the file.
const READ: Duration = Duration::from_secs(1);

/// Where a token is.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    /// That file; it may be missing.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The header with the token; none where there is no file or nothing in it.
    ///
    /// # Errors
    /// There is a file, and it cannot be used.
    pub async fn strict(&self) -> Result<Option<HeaderValue>, BridgeError> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || header(&path));
        let read = match timeout(READ, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err(format!("not read within {READ:?}")),
        };
        read.map_err(|why| BridgeError::Token { path: self.path.clone(), why })
    }

    /// The same; what cannot be used is logged and counts as missing.
    pub async fn lenient(&self) -> Option<HeaderValue> {
        self.strict().await.unwrap_or_else(|why| {
            tracing::error!(error = %why, "calling without a token");
            None
        })
    }
}

fn header(path: &Path) -> Result<Option<HeaderValue>, String> {
    let mut text = String::new();
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why.to_string()),
    };
    file.take(MAX_TOKEN + 1).read_to_string(&mut text).map_err(|why| why.to_string())?;
    if text.len() as u64 > MAX_TOKEN {
        return Err(format!("longer than {MAX_TOKEN} bytes"));
    }
    let token = text.trim();
    if token.is_empty() {
        return Ok(None);
    }
    // Not said why it is none: that would tell it.
    let mut value =
        HeaderValue::from_maybe_shared(Bytes::from(format!("Bearer {token}"))).map_err(|_| "not a token".to_owned())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// controller:146
    #[tokio::test]
    async fn a_token_is_read_anew_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let file = TokenFile::new(path.clone());
        let read =
            async || file.strict().await.map(|header| header.map(|value| value.to_str().unwrap_or("?").to_owned()));
        assert_eq!(read().await.expect("missing is fine"), None);
        for (content, header) in [("tok\n", Some("Bearer tok")), (" tok2 ", Some("Bearer tok2")), ("\n", None)] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(read().await.expect(content).as_deref(), header);
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_an_error_that_does_not_tell_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let file = TokenFile::new(path.clone());
        for content in [b"se\ncret".to_vec(), vec![b'x'; 20_000], vec![0xff]] {
            std::fs::write(&path, content).expect("written");
            let why = file.strict().await.expect_err("no token").to_string();
            assert!(!why.contains("cret") && !why.contains("xxx"), "{why}");
            assert_eq!(file.lenient().await, None);
        }
        assert!(TokenFile::new(folder.path().to_owned()).strict().await.is_err(), "a folder");
    }
}
