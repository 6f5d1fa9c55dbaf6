//! Runs a server in the foreground or the background: the fork, the signals, and the destination of
//! messages.

use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::terminal::progress::{self, Poller, ProgressStep};
use crate::verbs::serve::notify;
use lacuna_daemon::{ForkResult, ReadyPipe, daemonize};
use lacuna_mount::{ServerLog, proc};
use lacuna_storage::{Error, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

/// Reports that the server accepts clients.
pub(crate) struct ReadyNotifier(Option<ReadyPipe>);

impl ReadyNotifier {
    /// Lets the waiting foreground process end, if there is one; otherwise notifies the service
    /// manager.
    pub(crate) fn notify(&mut self) -> Result<()> {
        if let Some(pipe) = self.0.take() {
            return pipe.report_ready();
        }
        notify::ready();
        Ok(())
    }

    /// Runs `work`, and every second shows the stage that `look` returns to the waiting user.
    pub(crate) fn show_progress<R>(
        &self,
        console: Console,
        mut look: impl FnMut() -> ProgressStep + Send + 'static,
        work: impl FnOnce() -> R,
    ) -> R {
        match self.0.as_ref().map(ReadyPipe::progress) {
            None => progress::show(console, "", |working| {
                let working = working.clone();
                let _looking = Poller::start(move || working.set_step(look()));
                work()
            }),
            // Two processes would draw over each other: this process sends the stage to the other
            // one.
            Some(Ok(mut meanwhile)) => {
                let tell = move || {
                    let stage = serde_json::to_string(&look());
                    stage.iter().for_each(|stage| meanwhile.send(stage));
                };
                let _looking = Poller::start(tell);
                work()
            }
            Some(Err(_)) => work(),
        }
    }
}

/// Runs `serve`, after a fork if `background`; the foreground process shows `what` while it waits.
/// Before the call the process must have started no threads, and must hold no random source and no
/// open disk.
///
/// Deniability contract: for a disk with levels (`secret`) nothing is written to the system log,
/// which persists.
pub(crate) fn run(
    background: bool,
    secret: bool,
    console: Console,
    what: &str,
    serve: impl FnOnce(&mut ReadyNotifier) -> Result<()>,
) -> Result<()> {
    if !background {
        return serve(&mut ReadyNotifier(None));
    }
    wait_for_single_thread();
    match daemonize(option_names::name)? {
        ForkResult::Parent(started) => progress::show(console, what, |working| {
            let tell = |line: &str| {
                serde_json::from_str(line).ok().into_iter().for_each(|stage| working.set_step(stage));
            };
            started.wait(tell).map(drop)
        }),
        ForkResult::Child(pipe) => {
            let mut ready = ReadyNotifier(Some(pipe));
            let result = serve(&mut ready);
            let code = match &result {
                Ok(()) => 0,
                Err(e) => console::exit_code(e),
            };
            let pipe = ready.0.take();
            if let Err(e) = &result {
                // The waiting process may be gone, for example because the user interrupted it.
                let heard = pipe.is_some_and(|pipe| pipe.report_failure(e));
                if !heard && !secret {
                    to_system_log(e);
                }
            }
            // The parent prints the error; the child must not.
            console::exit(code)
        }
    }
}

/// Waits for the threads that stretched the passphrase: they end a moment after their work is done.
fn wait_for_single_thread() {
    for _ in 0..2000 {
        if proc::threads().unwrap_or(1) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls `stop` at every INT, TERM and HUP, but at HUP only if it was not ignored at the start (as
/// with `nohup`). After this call none of these signals ends the process by default, so that a
/// second one cannot interrupt the shutdown that the first one began.
pub(crate) fn on_signal(stop: impl Fn() + Send + 'static) -> Result<()> {
    let failed = |e: &std::io::Error| Error::io("cannot listen for signals", e);
    let hup = (!proc::ignores(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hup)).map_err(|e| failed(&e))?;
    let thread = std::thread::Builder::new().name("lacuna-signals".into());
    let spawned = thread.spawn(move || {
        signals.forever().for_each(|_| {
            notify::stopping();
            stop();
        });
    });
    spawned.map(|_| ()).map_err(|e| failed(&e).with_kind(Kind::Other))
}

/// The destination of a server's messages: standard error, or in the background the system log.
///
/// Deniability contract: as for [`run`]. In the foreground standard error may be a log too, unless
/// it is a terminal.
pub(crate) fn server_log(background: bool, secret: bool) -> ServerLog {
    if secret && (background || !console::is_terminal()) {
        Arc::new(|_| {})
    } else if background {
        Arc::new(to_system_log)
    } else {
        Arc::new(console::error)
    }
}

/// Combines the results of two steps of a server. If both failed, the second error goes to the log.
pub(crate) fn combine(first: Result<()>, second: Result<()>, log: &ServerLog) -> Result<()> {
    console::combine_with(first, second, &**log)
}

/// Sends a message to the system log, if there is one: facility daemon, level error.
fn to_system_log(e: &Error) {
    let message = format!("<27>lacuna[{}]: {}", std::process::id(), option_names::render(e));
    let _ = UnixDatagram::unbound().and_then(|socket| {
        // A stuck log must not block the disk.
        socket.set_nonblocking(true)?;
        socket.send_to(message.as_bytes(), "/dev/log")
    });
}
