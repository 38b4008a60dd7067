//! Live listings, page by page.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// Objects asked for at a time.
const PAGE: u32 = 500;
/// Objects held at most.
pub const MOST: usize = 100_000;
/// For one page.
const ANSWER: Duration = Duration::from_secs(30);

/// A listing that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The API server refused, or could not be asked.
    #[error("{0}")]
    Failed(#[from] kube::Error),
    /// A page took too long.
    #[error("a page took longer than {ANSWER:?}")]
    Late,
    /// There are more objects than are held.
    #[error("more than {MOST} objects")]
    TooMany,
}

impl ListError {
    /// Whether the kind does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Failed(why) if is_missing(why))
    }
}

/// Whether there is no such object, or no such kind.
#[must_use]
pub fn is_missing(why: &kube::Error) -> bool {
    matches!(why, kube::Error::Api(status) if status.code == 404)
}

/// All objects, now.
///
/// # Errors
/// [`ListError`].
pub async fn all<K>(api: &Api<K>) -> Result<Vec<K>, ListError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(ANSWER, api.list(&params)).await.map_err(|_| ListError::Late)??;
        found.extend(page.items);
        if found.len() > MOST {
            return Err(ListError::TooMany);
        }
        match page.metadata.continue_ {
            Some(next) if !next.is_empty() => params = params.continue_token(&next),
            _ => return Ok(found),
        }
    }
}

/// Metadata of the objects that are wanted, now.
///
/// # Errors
/// [`ListError`].
pub async fn metadata<K>(api: &Api<K>, wanted: impl Fn(&ObjectMeta) -> bool) -> Result<Vec<ObjectMeta>, ListError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(ANSWER, api.list_metadata(&params)).await.map_err(|_| ListError::Late)??;
        found.extend(page.items.into_iter().map(|object| object.metadata).filter(&wanted));
        if found.len() > MOST {
            return Err(ListError::TooMany);
        }
        match page.metadata.continue_ {
            Some(next) if !next.is_empty() => params = params.continue_token(&next),
            _ => return Ok(found),
        }
    }
}
