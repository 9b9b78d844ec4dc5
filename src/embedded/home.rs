use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::StartError;

/// A server's private directory; dropping it removes whatever is left of it.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
}

impl Home {
    /// Only its owner may enter it, for whoever reaches the socket is the superuser.
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
        // The watchdog has removed it already, if there was one.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Unlike any other, also where containers with process numbers of their own share the parent.
fn new_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("tollgate-{}-{count}-{:x}", std::process::id(), nanoseconds())
}

#[expect(clippy::disallowed_methods, reason = "makes a name unlike others; nothing is timed by it")]
fn nanoseconds() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos())
}

/// A socket's path may have about 100 bytes, and macOS's `$TMPDIR` alone takes half of them. Root's
/// may also be closed to the user that the server runs as.
const PARENT: &str = "/tmp";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_home_is_private_and_goes_with_its_handle() {
        let home = Home::create().unwrap();
        let path = home.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(Home::create().unwrap().path(), path);
        drop(home);
        assert!(!path.exists());
    }
}
