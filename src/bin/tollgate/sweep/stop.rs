use std::io::{self, Write, stderr};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// SIGINT and SIGTERM: the first ends a sweep after the batch at hand, the second ends it on the spot.
pub(super) struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// Takes both signals over from here on.
    pub(super) fn listen() -> io::Result<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (tell, asked) = watch::channel(false);
        tokio::spawn(async move {
            for is_first in [true, false] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                tell.send_replace(true);
                if is_first {
                    // Whether anybody reads it or not.
                    let _ = writeln!(stderr(), "ending after the batch at hand; once more ends it on the spot");
                }
            }
            std::process::exit(KILLED_BY_INTERRUPT);
        });
        Ok(Self { asked })
    }

    pub(super) fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Returns once it is asked.
    pub(super) async fn asked(&mut self) {
        // The sender lives as long as the process: it sends before it ends.
        let _ = self.asked.wait_for(|asked| *asked).await;
    }
}

/// As a shell says it.
const KILLED_BY_INTERRUPT: i32 = 130;
