//! Admission of the custom resources, and the linker of engine Pods.
//!
//! ```text
//!  HTTPS ──> serve ──> review ──> decode ──> default  ──> JSON patch
//!                        │           │
//!                        │           └─────> backend, policy, tenant: rules, pure ──┐
//!                        └─ siblings: live lists ──> cross-object rules ────────────┴──> seam ──> answer
//! ```
//!
//! 1. Rules are pure functions of objects. They collect every violation; one mistake, one cause, in a fixed order.
//! 2. A violation names its field, what was given and what is allowed, and says the same of the same object each time.
//! 3. What was stored with a violation may stay so ([`seam`]); new violations are refused. Deleting is never refused, and
//!    neither is an update that only lets a deletion get on.
//! 4. Only what is missing is patched. Nothing an author wrote is rewritten, and what we do not know stays.
//! 5. Reads that decide are live, bounded in time, and a read that fails refuses without a verdict on the object.
//! 6. Whatever a request holds, it is answered: a panic becomes an answer 500.
//!
//! Engine Pods are admitted by other rules, those of [`pod`].

pub mod backend;
mod decode;
pub mod field;
pub mod health;
mod listen;
mod metrics;
pub mod names;
mod places;
pub mod pod;
pub mod policy;
pub mod review;
pub mod seam;
mod serve;
pub mod siblings;
mod syntax;
pub mod tenant;

pub use self::decode::Undecodable;
pub use self::listen::{Limits, Listener, ServeError};
pub use self::metrics::{Metrics, Outcome};
pub use self::serve::{Admission, MAX_BODY, router};
