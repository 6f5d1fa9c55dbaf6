//! `completions` and `man`: what the shell and the manual know of the words of the command line.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::console;
use clap::CommandFactory;
use lacuna_core::{Error, Result};

/// `lacuna completions`.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lacuna", &mut script);
    console::bytes(&script)
}

/// `lacuna man`.
pub fn pages(args: &ManArgs) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .map_err(|e| Error::io(format!("cannot write the manual pages to {}", args.dir.display()), &e))
}
