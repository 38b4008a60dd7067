//! Waiting for what a cluster will show.

use std::time::{Duration, Instant};

/// What a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Repeats a look until it shows something.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
