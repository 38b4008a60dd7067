//! One switch that `/readyz` and the health service follow.

use std::sync::Arc;

use tokio::sync::watch;

/// Whether the server wants traffic. Clones share the switch. Off at first.
#[derive(Debug, Clone)]
pub struct Readiness {
    switch: Arc<watch::Sender<bool>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { switch: Arc::new(watch::Sender::new(false)) }
    }
}

impl Readiness {
    /// Turns it on or off.
    pub fn set(&self, ready: bool) {
        self.switch.send_replace(ready);
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.switch.borrow()
    }

    /// Follows the switch.
    pub(crate) fn follow(&self) -> watch::Receiver<bool> {
        self.switch.subscribe()
    }
}
