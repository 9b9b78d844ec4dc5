//! Writes the JavaScript and the types of a module that was built with `wasm-bindgen`.

use std::env;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).collect();
    let [module, directory] = &args[..] else {
        eprintln!("usage: tollgate-web-bind MODULE DIRECTORY");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    let written = bindgen.web(true).and_then(|bindgen| {
        bindgen
            .input_path(module)
            .typescript(true)
            .remove_name_section(true)
            .remove_producers_section(true)
            .generate(directory)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
