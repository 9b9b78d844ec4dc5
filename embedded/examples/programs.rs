//! Prints the directory of the PostgreSQL server programs that a private server would run, or what to install.

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    match tollgate_embedded::find_programs() {
        Ok(directory) => {
            println!("{}", directory.display());
            std::process::ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("error: {fault}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(unix))]
fn main() {}
