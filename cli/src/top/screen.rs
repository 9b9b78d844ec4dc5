use std::io::{self, IsTerminal, Read, Write};
use std::thread;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sqlx::PgConnection;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tollgate::Limits;

use super::TopArgs;
use super::frame::{Frame, Sample};
use super::view::View;
use crate::error::CommandError;

/// Takes the terminal over until somebody quits, and gives it back however that ends.
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
    let looks = look_on(args, conn, first, limits);
    // From here on nothing is printed: the screen belongs to the view.
    let _screen = Screen::enter()?;
    let followed = tokio::select! {
        followed = follow(view, looks) => followed,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    };
    Ok(followed?)
}

/// Draws after every look and every key, and where the window has another size, until somebody quits.
async fn follow(mut view: View, mut looks: mpsc::Receiver<Result<Frame, CommandError>>) -> io::Result<()> {
    let (mut keys, mut resized) = (read_keys(), signal(SignalKind::window_change())?);
    loop {
        draw(&view)?;
        tokio::select! {
            Some(look) = looks.recv() => match look {
                Ok(frame) => view = View::new(frame, view.sort),
                Err(error) => view.note = Some(format!("could not look at the tables: {error}")),
            },
            key = keys.recv() => if key.is_none_or(|key| view.press(key)) {
                return Ok(());
            },
            Some(()) = resized.recv() => {}
        }
    }
}

/// The terminal, which types no keys meanwhile and shows another screen. It is as before once this is dropped.
struct Screen(Termios);

impl Screen {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        let screen = Self(before);
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        // Another screen, no cursor, and no line is broken.
        write("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write("\x1b[?7h\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
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

fn draw(view: &View) -> io::Result<()> {
    let size = tcgetwinsize(io::stdout())?;
    // Line by line over the old ones, and nothing after the last.
    let is_plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    let line = |line: String| if is_plain { strip_str(&line).to_string() } else { line };
    let lines = view.lines(size.ws_col.into(), size.ws_row.into()).into_iter().map(line);
    let lines = lines.collect::<Vec<_>>().join("\x1b[K\n");
    write(&format!("\x1b[H{lines}\x1b[J"))
}

/// Writes to the terminal, controls and all.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Reads the keyboard in a thread of its own, because it can only be waited for by blocking; the thread ends with the
/// process.
fn read_keys() -> mpsc::Receiver<u8> {
    let (tell, keys) = mpsc::channel(16);
    thread::spawn(move || io::stdin().lock().bytes().map_while(Result::ok).try_for_each(|key| tell.blocking_send(key)));
    keys
}
