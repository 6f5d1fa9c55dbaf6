//! `lacuna`: the command. It turns command lines into calls of the crates below, and results into
//! text, JSON and exit codes.
//!
//! Invariants kept here:
//! - A passphrase comes from a terminal, a file, a descriptor or a helper program, never from an
//!   argument or the environment, and no core dump of the process can contain one.
//! - Every refusal happens before the first write.
//! - An error on standard error begins with `lacuna: ` and names settings by their options: up to
//!   three lines on a terminal, one line elsewhere. Its kind decides the exit code. Errors of disks
//!   with levels are shown in full only on a terminal: any other output may be a log.
//! - A process that goes to the background unlocks first, and then starts its threads, its random
//!   source, its disk and its connection to a cluster.
#![warn(missing_docs)]
// Code that only `open` uses.
#![cfg_attr(not(feature = "fuse"), allow(dead_code))]

mod allocator;
mod args;
mod man;
mod mount_helper;
mod terminal;
mod verbs;

use args::{Cli, HeaderVerb, KeyVerb, SnapshotVerb, VaultVerb, Verb};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use lacuna_storage::{Error, Kind, Result};
use mount_helper::Helper;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::process::{getegid, geteuid, getgid, getuid};
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::console::Console;
use terminal::{console, exit_code, mount_names, option_names, token, usage_error};
use verbs::{
    bench, check, close, create, doctor, erase, header, info, key, list, mounted_disk, purge, rescue, resize,
    serve, snapshot, status, vault,
};

/// Which kinds of memory a core dump of this process or of its children contains, as a mask.
const DUMPED_MEMORY: &str = "/proc/self/coredump_filter";
/// Maximum number of descriptors to ask for.
const MOST_DESCRIPTORS: u64 = 1 << 19;

fn main() -> ExitCode {
    // A core dump would hold keys. The limit does not apply to a program that collects dumps
    // through a pipe; the flag does. Children, which may serve a file system and so hold plaintext,
    // inherit the limit and not the flag. They inherit the mask: their dumps contain no memory. It
    // is written first, because the flag forbids that. A system that refuses these calls makes no
    // dumps of this process either.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = std::fs::write(DUMPED_MEMORY, "0");
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    allocator::limit_arenas();
    lacuna_daemon::note_inherited_descriptors();
    lacuna_daemon::ignore_file_size_signal();
    raise_descriptor_limit();
    lacuna_daemon::find_programs_of_the_system();
    let given = match refuse_setuid().and_then(|()| command_line()) {
        Ok(Some(given)) => given,
        Ok(None) => return ExitCode::SUCCESS,
        Err(e) => {
            console::error(&e);
            return ExitCode::from(console::exit_code(&e));
        }
    };
    let matches = match args::command().try_get_matches_from(&given) {
        Ok(matches) => matches,
        Err(e) => return print_clap_message(&e, &given),
    };
    option_names::remember(&Cli::command(), &matches);
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(e) => return print_clap_message(&e.format(&mut Cli::command()), &given),
    };
    let console = Console::new(cli.quiet, cli.verbose);
    let code = match run(cli.verb, console) {
        Ok(()) => 0,
        Err(e) => {
            console::error(&e);
            token::left_in_tokens().iter().for_each(|left| console::print_always(left));
            console::exit_code(&e)
        }
    };
    console::exit(code)
}

/// Raises the limit of open files to the maximum that the system allows. Servers need descriptors
/// for every client, and vaults for files in use; an error at the limit names it.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Programs started later may iterate over all numbers up to the limit.
    let most = limit.maximum.unwrap_or(u64::MAX).min(MOST_DESCRIPTORS);
    if limit.current.is_some_and(|current| current < most) {
        // On failure the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}

/// The command line; a helper of mount(8) gets it in another form. `None` if there is nothing to
/// do.
fn command_line() -> Result<Option<Vec<OsString>>> {
    let mut given = std::env::args_os();
    match mount_helper::called_as(std::env::args_os().next().as_deref()) {
        None => Ok(Some(given.collect())),
        Some(helper) => {
            exit_code::use_mount_codes();
            if helper == Helper::Mount {
                mount_names::use_for(mount_helper::options::open_options());
            }
            helper.command_line(given.by_ref().skip(1))
        }
    }
}

/// Refuses to run with more rights than its caller has, as if it was installed with the set-user-ID
/// bit: the caller's paths, programs and environment would be used with the rights of another user.
fn refuse_setuid() -> Result<()> {
    if getuid() == geteuid() && getgid() == getegid() {
        return Ok(());
    }
    Err(Error::new(Kind::Permission, "cannot run with the rights of another user or group")
        .found("a program file with the set-user-ID or set-group-ID bit")
        .expected("the rights of the user that starts it")
        .hint("remove the bit (`chmod ug-s`), and use sudo or doas where root is needed"))
}

fn run(mut verb: Verb, console: Console) -> Result<()> {
    mounted_disk::resolve_mountpoint(&mut verb)?;
    verbs::vault::disk_verbs::check(&verb)?;
    match verb {
        Verb::Create(args) => create::run(&args, console),
        #[cfg(feature = "fuse")]
        Verb::Open(args) => match verbs::open::vault::directory(&args.location) {
            Some(dir) => verbs::open::vault::open(&dir, &args, console),
            None => verbs::open::disk::open(args, console),
        },
        #[cfg(not(feature = "fuse"))]
        Verb::Open(_) => verbs::missing_features::refuse_open(),
        Verb::Close(args) => close::close(&args, console),
        Verb::Serve(args) => serve::run(args, console),
        Verb::Info(args) => info::run(&args, console),
        Verb::List(args) => list::run(&args, console),
        Verb::Status(args) => status::run(&args, console),
        Verb::Doctor(args) => doctor::run(&args, console),
        Verb::Erase(args) => erase::run(&args, console),
        Verb::Check(args) => check::run(&args, console),
        Verb::Rescue(args) => rescue::run(&args, console),
        Verb::Key(KeyVerb::Add(args)) => key::add(&args, console),
        Verb::Key(KeyVerb::Change(args)) => key::change(&args, console),
        Verb::Key(KeyVerb::Remove(args)) => key::remove(&args, console),
        Verb::Key(KeyVerb::Refresh(args)) => key::refresh(&args, console),
        Verb::Header(HeaderVerb::Backup(args)) => header::backup(&args, console),
        Verb::Header(HeaderVerb::Check(args)) => header::check(&args),
        Verb::Header(HeaderVerb::Restore(args)) => header::restore(&args, console),
        Verb::Header(HeaderVerb::Repair(args)) => header::repair(&args, console),
        Verb::Purge(args) => purge::run(&args, console),
        Verb::Resize(args) => resize::run(&args, console),
        Verb::Snapshot(SnapshotVerb::Create(args)) => snapshot::create(&args, console),
        Verb::Snapshot(SnapshotVerb::List(args)) => snapshot::list(&args),
        Verb::Snapshot(SnapshotVerb::Remove(args)) => snapshot::remove(&args, console),
        Verb::Snapshot(SnapshotVerb::Rollback(args)) => snapshot::rollback(&args, console),
        Verb::Vault(VaultVerb::Init(args)) => vault::init(&args, console),
        Verb::Vault(VaultVerb::Check(args)) => vault::check(&args, console),
        Verb::Vault(VaultVerb::Accept(args)) => vault::accept(&args, console),
        Verb::Vault(VaultVerb::Rescue(args)) => verbs::vault::rescue::run(&args, console),
        Verb::Vault(VaultVerb::Stat(args)) => vault::stat(&args, console),
        Verb::Delete(args) => create::delete(&args, console),
        Verb::Bench(args) => bench::run(&args, console),
        Verb::Completions(args) => man::completions(&args),
        Verb::Man(args) => man::pages(&args),
    }
}

/// Prints a message of clap about the command line `given`: help and version are answers, anything
/// else is a usage error.
fn print_clap_message(e: &clap::Error, given: &[OsString]) -> ExitCode {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closed the pipe has read enough.
            let _ = e.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            console::help_instead(e);
            ExitCode::from(exit_code::of(Kind::Usage))
        }
        _ => {
            console::error(&usage_error::of(e, given));
            ExitCode::from(exit_code::of(Kind::Usage))
        }
    }
}
