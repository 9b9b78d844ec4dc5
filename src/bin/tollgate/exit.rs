use std::process::ExitCode;

/// How a command ended that has not failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// What was asked is done, or granted.
    Done,
    /// A check found errors, and has said which.
    Unsound,
    /// The limit refuses.
    Refused,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Unsound => 1,
            Exit::Refused => 2,
        })
    }
}

/// For commands that end in one way only.
impl From<()> for Exit {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// The exit status of wrong usage, as sysexits.h has it: clap's own 2 would say "refused" here.
pub(crate) const USAGE: u8 = 64;
