use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::StartError;

/// The unprivileged user that runs the server if this process is root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl User {
    /// `None` if this process is not root; otherwise the user to run as, who then owns the home.
    ///
    /// The owner of the home, which this process has just made, tells whether it is root.
    pub(super) fn for_home(home: &Path) -> Result<Option<Self>, StartError> {
        let owner = fs::metadata(home).map_err(StartError::io("read the private directory"))?;
        if owner.uid() != 0 {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").map_err(StartError::io("read /etc/passwd"))?;
        let user = choose(&users).ok_or(StartError::NoUnprivilegedUser)?;
        chown(home, Some(user.uid), Some(user.gid))
            .map_err(StartError::io(format!("give the private directory to {}", user.name)))?;
        Ok(Some(user))
    }

    /// Finds programs in a closed directory, such as /root, before they fail with a less clear error.
    pub(super) fn check_access(&self, programs: &Path) -> Result<(), StartError> {
        let mut command = Command::new(programs.join("initdb"));
        command.arg("--version").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match self.becomes(&mut command).status() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let (programs, user) = (programs.to_owned(), self.name.clone());
                Err(StartError::ProgramsClosed { programs, user })
            }
            Err(source) => Err(StartError::Io { step: format!("run initdb as {}", self.name), source }),
            Ok(_) => Ok(()),
        }
    }

    /// Runs the command as this user, without root's groups.
    pub(super) fn becomes<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.uid(self.uid).gid(self.gid)
    }
}

/// The most suitable user of a passwd file.
fn choose(passwd: &str) -> Option<User> {
    SUITABLE.iter().find_map(|name| passwd.lines().filter_map(parse).find(|user| user.name == *name))
}

/// The user of a line; `None` for a comment, and for root under another name.
fn parse(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = parse_id(fields.nth(1)?)?;
    let gid = parse_id(fields.next()?)?;
    (uid != 0).then_some(User { name, uid, gid })
}

/// macOS writes the id of `nobody` as -2.
fn parse_id(id: &str) -> Option<u32> {
    id.parse().ok().or_else(|| id.parse().ok().map(i32::cast_unsigned))
}

/// The best first: PostgreSQL's own user on Linux or macOS, else the one with the fewest rights.
const SUITABLE: [&str; 3] = ["postgres", "_postgres", "nobody"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_is_preferred_to_nobody() {
        let passwd = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\n\
                      postgres:x:101:104::/:/bin/sh\n";
        let postgres = User { name: "postgres".to_owned(), uid: 101, gid: 104 };
        assert_eq!(choose(passwd), Some(postgres));
    }

    #[test]
    fn nobody_serves_where_there_is_no_postgres() {
        let passwd = "# a comment\nroot:*:0:0::/root:/bin/sh\nnobody:*:-2:-2::/:/bin/false\n";
        let nobody = User { name: "nobody".to_owned(), uid: u32::MAX - 1, gid: u32::MAX - 1 };
        assert_eq!(choose(passwd), Some(nobody));
    }

    #[test]
    fn a_postgres_that_is_root_does_not_serve() {
        assert_eq!(choose("postgres:x:0:0::/:/bin/sh\npostgres2:x:5:5::/:/bin/sh\n"), None);
    }
}
