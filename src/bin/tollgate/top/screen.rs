use std::io::{self, IsTerminal};
use std::thread;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use sqlx::PgConnection;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tollgate::Limits;

use super::controls::{Act, Controls};
use super::frame::Frame;
use super::sample::{LookError, Sample};
use super::{TopArgs, view};
use crate::error::CommandError;

/// Takes the terminal over until it is to quit, and gives it back however it ends: also by a panic, for ratatui sees to
/// that.
pub(super) async fn run(
    args: TopArgs,
    conn: PgConnection,
    first: Sample,
    limits: Option<Limits>,
    controls: Controls,
) -> Result<(), CommandError> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(LookError::NoTerminal.into());
    }
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let mut screen = Screen { terminal: ratatui::try_init()?, frame: None, controls, note: None };
    let (looks, keys) = (look_on(args, conn, first, limits), read_keys());
    let shown = tokio::select! {
        shown = screen.follow(looks, keys) => shown,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    };
    ratatui::try_restore()?;
    Ok(shown?)
}

struct Screen {
    terminal: DefaultTerminal,
    frame: Option<Frame>,
    controls: Controls,
    /// What went wrong with the last look.
    note: Option<String>,
}

impl Screen {
    /// Draws after every look and every key, until somebody quits.
    async fn follow(
        &mut self,
        mut looks: mpsc::Receiver<Result<Frame, String>>,
        mut keys: mpsc::Receiver<io::Result<Event>>,
    ) -> io::Result<()> {
        loop {
            let Self { frame, controls, note, .. } = self;
            self.terminal.draw(|canvas| view::draw(canvas, frame.as_ref(), controls, note.as_deref()))?;
            tokio::select! {
                Some(look) = looks.recv() => match look {
                    Ok(frame) => (self.frame, self.note) = (Some(frame), None),
                    Err(note) => self.note = Some(note),
                },
                key = keys.recv() => match key.transpose()? {
                    Some(Event::Key(key)) if self.controls.press(key) == Act::Quit => return Ok(()),
                    Some(_) => {}
                    None => return Ok(()),
                },
            }
        }
    }
}

/// Looks again and again, in a task of its own, so that keys are heard while the database takes its time. Where the
/// connection is lost, it is opened anew.
fn look_on(
    args: TopArgs,
    conn: PgConnection,
    first: Sample,
    limits: Option<Limits>,
) -> mpsc::Receiver<Result<Frame, String>> {
    let (tell, looks) = mpsc::channel(1);
    tokio::spawn(async move {
        let (mut conn, mut before) = (Some(conn), first);
        let mut look = Ok(Frame::new(None, &before, limits.as_ref()));
        while tell.send(look).await.is_ok() {
            tokio::time::sleep(args.interval).await;
            look = match sample(&args, &mut conn).await {
                Ok(now) => {
                    let frame = Frame::new(Some(&before), &now, limits.as_ref());
                    before = now;
                    Ok(frame)
                }
                Err(error) => {
                    conn = None;
                    Err(error.to_string())
                }
            };
        }
    });
    looks
}

async fn sample(args: &TopArgs, conn: &mut Option<PgConnection>) -> Result<Sample, CommandError> {
    let conn = match conn {
        Some(conn) => conn,
        None => conn.insert(args.database.connect().await?),
    };
    Ok(Sample::take(conn, args.rows).await?)
}

/// Reads the keyboard in a thread of its own, for it can only be waited for by blocking; the thread ends with the process.
fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (tell, keys) = mpsc::channel(16);
    thread::spawn(move || {
        loop {
            let read = event::read();
            let is_over = read.is_err();
            if tell.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    keys
}
