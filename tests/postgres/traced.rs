//! Events, caught.

use std::io::Write;
use std::sync::{Arc, Mutex};

/// The events of a test, as text.
pub(crate) fn traced(what: impl Future<Output = ()>) -> String {
    // As long as there is but one subscriber, `tracing` asks the thread that comes by an event first whether anybody
    // wants it, and that may be another test's.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || on_one_thread(what));
    let written = written.0.lock().unwrap();
    String::from_utf8(written.clone()).unwrap()
}

/// A recorder and a subscriber are set for a thread, so everything happens on this one.
pub(crate) fn on_one_thread<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
