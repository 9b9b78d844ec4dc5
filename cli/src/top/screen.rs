use std::io::{self, IsTerminal};
use std::thread;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use sqlx::PgConnection;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tollgate::Limits;

use super::TopArgs;
use super::frame::{Frame, Sample};
use super::view::View;
use crate::error::CommandError;

/// Takes the terminal over until somebody quits, and gives it back however that ends. After a panic, ratatui gives it
/// back.
pub(super) async fn run(
    args: TopArgs,
    conn: PgConnection,
    first: Sample,
    limits: Option<Limits>,
) -> Result<(), CommandError> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(CommandError::new("there is no terminal to draw on", "print one frame with --once"));
    }
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let view = View::new(Frame::new(None, &first, limits.as_ref()), args.sort);
    let (looks, keys) = (look_on(args, conn, first, limits), read_keys());
    // From here on nothing is printed: the screen belongs to the view.
    let terminal = ratatui::try_init()?;
    let followed = tokio::select! {
        followed = follow(terminal, view, looks, keys) => followed,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    };
    ratatui::try_restore()?;
    Ok(followed?)
}

/// Draws after every look and every key, until somebody quits.
async fn follow(
    mut terminal: ratatui::DefaultTerminal,
    mut view: View,
    mut looks: mpsc::Receiver<Result<Frame, CommandError>>,
    mut keys: mpsc::Receiver<io::Result<Event>>,
) -> io::Result<()> {
    loop {
        terminal.draw(|canvas| view.draw(canvas))?;
        tokio::select! {
            Some(look) = looks.recv() => match look {
                Ok(frame) => view = View::new(frame, view.sort),
                Err(error) => view.note = Some(format!("could not look at the tables: {error}")),
            },
            key = keys.recv() => match key.transpose()? {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if view.press(key).is_break() {
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}

/// Looks again and again, in a task of its own: keys are heard while the database takes its time. A lost connection is
/// opened anew.
fn look_on(
    args: TopArgs,
    conn: PgConnection,
    first: Sample,
    limits: Option<Limits>,
) -> mpsc::Receiver<Result<Frame, CommandError>> {
    let (tell, looks) = mpsc::channel(1);
    tokio::spawn(async move {
        let (mut conn, mut before) = (Some(conn), first);
        loop {
            tokio::time::sleep(args.interval).await;
            let look = sample(&args, &mut conn).await.map(|now| {
                let frame = Frame::new(Some(&before), &now, limits.as_ref());
                before = now;
                frame
            });
            if look.is_err() {
                conn = None;
            }
            if tell.send(look).await.is_err() {
                return;
            }
        }
    });
    looks
}

async fn sample(args: &TopArgs, conn: &mut Option<PgConnection>) -> Result<Sample, CommandError> {
    let conn = match conn {
        Some(conn) => conn,
        None => conn.insert(args.database.connect().await?),
    };
    Sample::take(conn, args).await
}

/// Reads the keyboard in a thread of its own, because it can only be waited for by blocking; the thread ends with the
/// process.
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
