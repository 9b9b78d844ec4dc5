use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::StartError;

/// A server's private directory. Dropping it removes what is left of it.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
}

impl Home {
    /// Only its owner may enter it, because everyone who reaches the socket is the superuser.
    pub(super) fn create() -> Result<Self, StartError> {
        loop {
            let path = Path::new(PARENT).join(new_name());
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    let step = format!("create the private directory {}", path.display());
                    return Err(StartError::Io { step, source });
                }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A watchdog has already removed it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A unique name, even if containers with the same process numbers share the parent.
#[expect(clippy::disallowed_methods, reason = "makes a name unique and measures no time")]
fn new_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    format!("tollgate-{}-{count}-{nanos:x}", std::process::id())
}

/// Not `$TMPDIR`: on macOS it takes half of the 100 bytes that a socket's path may have, and root's may be closed to
/// the user that the server runs as.
const PARENT: &str = "/tmp";
