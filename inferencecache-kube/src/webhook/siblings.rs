//! Live reads of the other objects of a namespace.
//!
//! An object created milliseconds earlier must be seen, so no cache answers here. A read takes part of a page at a time and
//! ends at a deadline well before the API server gives up on the review.

use std::pin::Pin;
use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;

use super::names::Kind;
use crate::api::names::{GROUP, VERSION};

/// Longest wait for one listing. The API server waits 10 s for the whole review.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Objects asked for at a time.
const PAGE: u32 = 500;
/// Objects looked at at most. A namespace with more is refused its checks rather than held in memory.
pub const MOST: usize = 20_000;

/// A reading that failed. The request is refused without a verdict on its object.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It took longer than [`DEADLINE`].
    #[error("listing {0} took longer than {DEADLINE:?}")]
    Late(&'static str),
    /// There are more than [`MOST`].
    #[error("the namespace holds more than {MOST} {0}")]
    TooMany(&'static str),
    /// The API server could not be asked, or refused.
    #[error("cannot list {0}: {1}")]
    Failed(&'static str, String),
}

/// A reading under way.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Result<Vec<DynamicObject>, ReadError>> + Send + 'a>>;

/// Reads the objects of a kind in a namespace, now.
pub trait Siblings: Send + Sync + 'static {
    /// All objects of that kind and namespace, in any order, the one under review included if it is stored.
    fn list<'a>(&'a self, kind: Kind, namespace: &'a str) -> Reading<'a>;
}

/// Reads from the API server.
#[derive(Clone)]
pub struct Live {
    client: kube::Client,
}

impl Live {
    /// With that client.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    async fn pages(&self, kind: Kind, namespace: &str) -> Result<Vec<DynamicObject>, ReadError> {
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: VERSION.to_owned(),
            api_version: format!("{GROUP}/{VERSION}"),
            kind: kind.name().to_owned(),
            plural: kind.plural().to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let mut all = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&params).await.map_err(|why| ReadError::Failed(kind.plural(), why.to_string()))?;
            all.extend(page.items);
            if all.len() > MOST {
                return Err(ReadError::TooMany(kind.plural()));
            }
            match page.metadata.continue_ {
                Some(next) if !next.is_empty() => params = params.continue_token(&next),
                _ => return Ok(all),
            }
        }
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl Siblings for Live {
    fn list<'a>(&'a self, kind: Kind, namespace: &'a str) -> Reading<'a> {
        Box::pin(async move {
            let read = tokio::time::timeout(DEADLINE, self.pages(kind, namespace));
            read.await.unwrap_or(Err(ReadError::Late(kind.plural())))
        })
    }
}
