//! A terminal for commands that want one.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use tollgate::MINUTE;

use crate::world::{World, soon};

/// A command on a terminal of its own.
pub(crate) struct Terminal {
    pub(crate) child: Box<dyn Child + Send + Sync>,
    keyboard: Box<dyn Write + Send>,
    pub(crate) shown: Arc<Mutex<vt100::Parser>>,
    /// Open as long as the terminal is.
    _master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// `tollgate` with these arguments, on a database and by a limits file, if there is one.
    pub(crate) fn start(world: &World, args: &[&str], limits: Option<&str>) -> Self {
        Self::of_width(140, world, args, limits)
    }

    /// The same on a terminal of so many columns.
    pub(crate) fn of_width(cols: u16, world: &World, args: &[&str], limits: Option<&str>) -> Self {
        let size = PtySize { rows: 30, cols, ..PtySize::default() };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(args);
        command.env("DATABASE_URL", world.command_url());
        command.env("TERM", "xterm-256color");
        match limits {
            Some(limits) => command.env("TOLLGATE_LIMITS", limits),
            None => command.env_remove("TOLLGATE_LIMITS"),
        }
        let child = pair.slave.spawn_command(command).unwrap();
        let shown = Arc::new(Mutex::new(vt100::Parser::new(30, cols, 0)));
        let (mut reader, screen) = (pair.master.try_clone_reader().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..count]);
            }
        });
        let keyboard = pair.master.take_writer().unwrap();
        Self { child, keyboard, shown, _master: pair.master }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.shown.lock().unwrap().screen().contents()
    }

    /// Returns once the screen is as described.
    pub(crate) async fn until(&self, is_so: impl Fn(&str) -> bool) {
        let shown = async {
            while !is_so(&self.text()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(5 * MINUTE, shown).await.is_ok(), "it never came to this:\n{}", self.text());
    }

    /// The exit status, once it has ended and all that it wrote is read.
    pub(crate) async fn ended(mut self) -> u32 {
        let code = soon(async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status.exit_code();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let code = code.await;
        let is_restored = || {
            let parser = self.shown.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        soon(async {
            while !is_restored() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        code
    }
}
