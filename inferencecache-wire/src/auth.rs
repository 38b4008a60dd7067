//! Who may use the bridge: the question to ask, and the seam for whoever can answer it.
//!
//! A bearer token is checked by a *reviewer*, normally the Kubernetes API server. This crate knows no cluster, so it only
//! says what it needs of one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// What a review found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// Whether the token is genuine, in time, and meant for the audience.
    pub authenticated: bool,
    /// Whose token it is; meaningful only if authenticated.
    pub username: String,
    /// Audiences that the token was accepted for.
    pub audiences: Vec<String>,
    /// What the reviewer said about a token that it did not accept; may be empty. Never contains the token.
    pub error: String,
}

/// The reviewer could not be asked, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token review unavailable: {0}")]
pub struct ReviewUnavailable(pub String);

/// A review under way.
pub type PendingReview<'a> = Pin<Box<dyn Future<Output = Result<Review, ReviewUnavailable>> + Send + 'a>>;

/// Checks bearer tokens.
///
/// *Callers may assume* that a review ends, in seconds rather than minutes. *Implementers* must neither log nor keep tokens.
pub trait TokenReviewer: Send + Sync + fmt::Debug + 'static {
    /// Whose `token` is, if it is meant for `audience`.
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> PendingReview<'a>;
}
