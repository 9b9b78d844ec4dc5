//! A private PostgreSQL server for tests, demonstrations and development.
//!
//! [`Server::start`] runs the PostgreSQL programs of this machine (see [`find_programs`]) over a new, empty cluster in
//! a private directory. The server listens on a Unix socket in that directory, so any number of servers run side by
//! side. When the owning process ends, in whatever way, the server and its directory go too.
//!
//! ```no_run
//! use tollgate_embedded::Server;
//!
//! let server = Server::start()?;
//! println!("connect to {}", server.url());
//! # Ok::<(), tollgate_embedded::StartError>(())
//! ```
//!
//! All calls block. A start takes about half a second. In async code use `spawn_blocking`, or start the server before
//! the runtime. Unix only; on other platforms this crate is empty. PostgreSQL 10 or later.
//!
//! # How it ends
//!
//! The server runs below a `/bin/sh` that waits for the end of a pipe. Only the owning process holds the pipe's other
//! end. Dropping the [`Server`] closes it. The kernel closes it when the owner exits, aborts or is killed by `SIGKILL`,
//! even if the handle was leaked or lives in a `static`. The shell then stops the server at once and removes the
//! directory.
//!
//! Two cases leave something behind. If the shell itself is killed by `SIGKILL`, the server runs until the [`Server`]
//! is dropped; then it misses its directory and ends within about a minute. An owner that is killed between making the
//! directory and running the shell leaves an empty directory.
//!
//! # Users
//!
//! PostgreSQL refuses to run as root. If root starts the server, it runs as the user `postgres`, or as `nobody` if
//! there is no such user, and that user owns the private directory.
//!
//! Everyone who can connect is the superuser `postgres`, without a password. Only the owner of the socket's directory
//! may enter it. With [`Builder::tcp`] every user of this machine can connect.
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
