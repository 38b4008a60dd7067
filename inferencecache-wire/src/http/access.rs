//! Who gets through to a bridge handler.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, Response, StatusCode, header};

use super::{plain, plain_with};
use crate::metrics::{AuthPath, AuthResult, Metrics};

/// Why a request does not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// It does not say who it is, or not convincingly: 401.
    Unauthorized,
    /// It is somebody else: 403.
    Forbidden,
    /// Nobody could be asked: 503.
    Unavailable,
}

/// A decision under way.
pub type Decision<'a> = Pin<Box<dyn Future<Output = Result<(), Denied>> + Send + 'a>>;

/// Decides about requests. Asked before the method and the body are looked at.
pub trait Guard: Send + Sync + fmt::Debug + 'static {
    /// Whether a request with these headers, from `source` if that is known, may use `path`.
    fn admit<'a>(&'a self, path: AuthPath, headers: &'a HeaderMap, source: Option<IpAddr>) -> Decision<'a>;
}

/// Where a request comes from: an extension of the request, put there by whoever accepts the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// How the bridge is guarded.
#[derive(Debug, Clone)]
pub enum Access {
    /// Not at all; nothing is counted. For development.
    Open,
    /// By this one; every request is counted once.
    Guarded(Arc<dyn Guard>),
}

impl Access {
    /// Lets the request through, or gives the answer that it gets instead.
    pub(super) async fn check(
        &self,
        metrics: &Metrics,
        path: AuthPath,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Option<Response<Body>> {
        let Self::Guarded(guard) = self else {
            return None;
        };
        let source = extensions.get::<Peer>().map(|peer| peer.0);
        let decision = guard.admit(path, headers, source);
        let (result, refusal) = match decision.await {
            Ok(()) => (AuthResult::Ok, None),
            Err(Denied::Unauthorized) => (AuthResult::Unauth, Some(unauthorized())),
            Err(Denied::Forbidden) => (AuthResult::Forbidden, Some(plain(StatusCode::FORBIDDEN, "forbidden"))),
            Err(Denied::Unavailable) => {
                (AuthResult::Error, Some(plain(StatusCode::SERVICE_UNAVAILABLE, "token review unavailable")))
            }
        };
        metrics.auth(path, result);
        refusal
    }
}

fn unauthorized() -> Response<Body> {
    plain_with(StatusCode::UNAUTHORIZED, "unauthorized", header::WWW_AUTHENTICATE, "Bearer")
}
