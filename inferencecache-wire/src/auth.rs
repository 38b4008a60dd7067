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

/// Checks bearer tokens. Asked in tasks of the runtime, seldom (verdicts are remembered) and never under a lock.
///
/// *Callers may assume* that a review ends in seconds. *They* drop one that takes too long, and count on nothing it did.
///
/// *Implementers must* neither log nor keep tokens; must name in [`Review::audiences`] the audience that they were asked about
/// if the token is meant for it, for a token whose audience is not confirmed is refused; and must answer
/// [`ReviewUnavailable`] whenever it is not the token's fault, their own refused credentials included. An empty `audience`
/// asks for none in particular.
///
/// ```
/// use inferencecache_wire::auth::{PendingReview, Review, TokenReviewer};
///
/// /// Knows one token and believes in every audience; for a laptop.
/// #[derive(Debug)]
/// struct Laptop;
///
/// impl TokenReviewer for Laptop {
///     fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> PendingReview<'a> {
///         let mut review = Review::default();
///         if token == "mine" {
///             review.authenticated = true;
///             review.username = "system:serviceaccount:default:me".to_owned();
///             review.audiences.push(audience.to_owned());
///         }
///         Box::pin(std::future::ready(Ok(review)))
///     }
/// }
/// ```
pub trait TokenReviewer: Send + Sync + fmt::Debug + 'static {
    /// Whose `token` is, if it is meant for `audience`.
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> PendingReview<'a>;
}
