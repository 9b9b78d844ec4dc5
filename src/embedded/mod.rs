//! A private Postgres server for tests, demonstrations and development.
//!
//! [`Server::start`] runs the Postgres programs found on this machine (see [`find_programs`]) over
//! a new, empty cluster in a private directory. The server listens on a Unix socket in that
//! directory, so that any number of them run side by side, and when the owner is gone, so are the
//! server and its directory, however the owner went.
//!
//! ```no_run
//! use tollgate::embedded::Server;
//!
//! let server = Server::start()?;
//! println!("connect to {}", server.url());
//! # Ok::<(), tollgate::embedded::StartError>(())
//! ```
//!
//! # Blocking
//!
//! All calls block, a start for about half a second. In async code use `spawn_blocking`, or start
//! the server before the runtime.
//!
//! # How it ends
//!
//! The server runs below a `/bin/sh` that waits for the end of a pipe which only the owning process
//! holds. Dropping the [`Server`] closes the pipe, and so does the kernel when the owner exits,
//! aborts or is killed by `SIGKILL`, also if the handle was leaked or lives in a `static`. The shell
//! then stops the server at once and removes the directory. The one process that must not be killed
//! by `SIGKILL` is this shell: nobody watches the watchdog, and a server without it stays until the
//! [`Server`] is dropped (it then misses its directory and leaves within a minute or so). An owner
//! that is killed in the instant between making the directory and running the shell leaves an empty
//! directory.
//!
//! # As root
//!
//! Postgres refuses to run as root. Started by root, the server becomes the user `postgres`, or
//! `nobody` where there is none, and the private directory is theirs.
//!
//! # Trust
//!
//! Whoever reaches the server is its superuser `postgres`, without a password. The socket is in a
//! directory that only its owner may enter; with [`Builder::tcp`] every user of this machine may
//! connect.
//!
//! # Platforms
//!
//! Unix only: elsewhere this module is absent. Postgres 10 or later.
#![cfg(unix)]

mod builder;
mod error;
mod home;
mod programs;
mod server;
mod user;
mod watchdog;

pub use builder::Builder;
pub use error::StartError;
pub use programs::find_programs;
pub use server::Server;
