//! What is logged on this thread: tests that read logs run everything on one.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

/// Collects lines for as long as it lives.
pub(crate) struct Logs {
    text: Text,
    _guard: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logs {
    /// This project's events of every level.
    pub(crate) fn collect() -> Self {
        let text = Text::default();
        let writer = text.clone();
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let own = Targets::new().with_target("inferencecache", tracing::Level::TRACE);
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(own).with(lines));
        Self { text, _guard: guard }
    }

    /// What was logged since the last time.
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.text.0.lock().expect("unpoisoned"))).expect("UTF-8")
    }
}
