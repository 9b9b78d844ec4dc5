//! A wire that takes time, in front of a server on this machine. It stands in for a network where the kernel has no
//! module that delays packets.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use super::Fault;

/// A socket that passes everything on to a server's socket, later. Dropping it deletes the socket; connections that
/// are open stay so.
#[derive(Debug)]
pub(crate) struct Wire {
    home: PathBuf,
    name: PathBuf,
}

impl Wire {
    /// A wire to this socket. A message and its answer take so long together, more than without it.
    pub(crate) fn to(server: &Path, round_trip: Duration) -> Result<Self, Fault> {
        let number = fastrand::u32(..);
        let home = env::temp_dir().join(format!("tollgate-wire-{}-{number:08x}", std::process::id()));
        fs::create_dir(&home)?;
        let wire = Self { home, name: server.file_name().ok_or("a socket has a name")?.into() };
        let (listener, server) = (UnixListener::bind(wire.socket())?, server.to_owned());
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if let Err(error) = connect(&near, &server, round_trip / 2) {
                    eprintln!("a wire leads nowhere: {error}");
                }
            }
        });
        Ok(wire)
    }

    /// Where the socket is. It has the name of the server's.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home.join(&self.name)
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Nobody needs it any more.
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn connect(near: &UnixStream, server: &Path, delay: Duration) -> io::Result<()> {
    let far = UnixStream::connect(server)?;
    carry(near.try_clone()?, far.try_clone()?, delay);
    carry(far, near.try_clone()?, delay);
    Ok(())
}

/// Carries bytes in one direction, and delays each as much as any other. Threads do it, because a timer of tokio counts
/// whole milliseconds.
#[expect(clippy::disallowed_methods, reason = "the wire's delay is a span of the monotonic clock")]
fn carry(mut from: UnixStream, mut to: UnixStream, delay: Duration) {
    let (sender, under_way) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if sender.send((Instant::now() + delay, bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (arrives, bytes) in under_way {
            thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // If the other side has gone, it knows already.
        let _ = to.shutdown(Shutdown::Both);
    });
}
