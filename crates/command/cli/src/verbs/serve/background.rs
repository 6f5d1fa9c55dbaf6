//! Runs a server in the foreground or the background: the fork, the signals, and the destination of
//! messages.

use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::terminal::progress::{self, Poller, ProgressStep};
use crate::verbs::serve::notify;
use lacuna_daemon::{
    ForkResult, KeeperActions, KeeperId, KeeperLink, ReadyPipe, Registry, daemonize, detach,
};
use lacuna_mount::{ServerLog, proc};
use lacuna_storage::{Error, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::cell::RefCell;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

/// Reports that the server accepts clients.
pub(crate) struct ReadyNotifier {
    /// The pipe to the foreground process that waits.
    pipe: Option<ReadyPipe>,
    /// The keeper, which reports it.
    keeper: Option<Arc<KeeperLink>>,
    background: bool,
}

impl ReadyNotifier {
    /// Lets the waiting foreground process end, if there is one; otherwise notifies the service
    /// manager.
    pub(crate) fn notify(&mut self) -> Result<()> {
        if let Some(keeper) = &self.keeper {
            self.pipe = None;
            if self.background {
                detach()?;
            }
            return keeper.ready();
        }
        if let Some(pipe) = self.pipe.take() {
            return pipe.report_ready();
        }
        notify::ready();
        Ok(())
    }

    /// Lets signals act, which a keeper holds back until the server handles them.
    pub(crate) fn let_signals_act(&self) {
        self.keeper.iter().for_each(|keeper| keeper.let_signals_act());
    }

    /// Prints the URIs for clients, unless a server before this one has printed them: they are the
    /// same, and by now nothing may read the output.
    pub(crate) fn print_uris(&self, uris: &[String]) -> Result<()> {
        if self.keeper.as_ref().is_some_and(|keeper| keeper.was_ready()) {
            return Ok(());
        }
        uris.iter().try_for_each(|uri| console::line(uri))
    }

    /// The keeper of this server.
    pub(crate) fn keeper(&self) -> Option<KeeperId> {
        self.keeper.as_ref().map(|keeper| keeper.keeper())
    }

    /// The process that a service manager watches: the keeper, or this one.
    pub(crate) fn main_process(&self) -> u32 {
        self.keeper().map_or_else(std::process::id, |keeper| keeper.pid)
    }

    /// Reports that the server in the background failed: to the waiting process, or to the system
    /// log, if it `may_log`.
    fn report_failure(&mut self, e: &Error, may_log: bool) {
        // The waiting process may be gone, for example because the user interrupted it.
        let heard = self.pipe.take().is_some_and(|pipe| pipe.report_failure(e));
        if !heard && may_log {
            to_system_log(e);
        }
    }

    /// Runs `work`, and every second shows the stage that `look` returns to the waiting user.
    pub(crate) fn show_progress<R>(
        &self,
        console: Console,
        mut look: impl FnMut() -> ProgressStep + Send + 'static,
        work: impl FnOnce() -> R,
    ) -> R {
        match self.pipe.as_ref().map(ReadyPipe::progress) {
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
        return serve(&mut ReadyNotifier { pipe: None, keeper: None, background });
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
            let mut ready = ReadyNotifier { pipe: Some(pipe), keeper: None, background };
            let result = serve(&mut ready);
            let code = match &result {
                Ok(()) => 0,
                Err(e) => console::exit_code(e),
            };
            if let Err(e) = &result {
                ready.report_failure(e, !secret);
            }
            // The parent prints the error; the child must not.
            console::exit(code)
        }
    }
}

/// Runs `serve` in a process of its own, and again whenever that process dies or ends with writes
/// that it could not make durable. This process becomes the keeper. Returns the exit code of the
/// last server, which has reported its error. Call it in the function that [`run`] calls, for a
/// disk without levels.
pub(crate) fn run_kept(
    ready: &mut ReadyNotifier,
    mut serve: impl FnMut(&mut ReadyNotifier, &Arc<KeeperLink>) -> Result<()>,
) -> Result<u8> {
    wait_for_single_thread();
    let background = ready.background;
    // The keeper and the first server each have a copy of it.
    let ready = RefCell::new(ready);
    let actions = KeeperActions {
        ready: &|| ready.borrow_mut().notify(),
        notify: &notify::relay,
        report: &|e| if background { to_system_log(e) } else { console::error(e) },
    };
    let code = lacuna_daemon::keep(&actions, |link| {
        let link = Arc::new(link);
        notify::use_keeper(&link);
        let pipe = ready.borrow_mut().pipe.take();
        let mut own = ReadyNotifier { pipe, keeper: Some(Arc::clone(&link)), background };
        let served = serve(&mut own, &link);
        let released = match &served {
            // The data of another client may be newer than the writes in the memory.
            Err(e) if e.kind() == Kind::Fenced => link.release(),
            _ => Ok(()),
        };
        let log = server_log(background, false);
        let Err(e) = combine(served, released, &log) else { console::exit(0) };
        let is_known = e.may_pass() && note_obstacle(&link, &e, &log);
        let tries_again = e.may_pass() && link.has_left();
        let e = if tries_again { e.context("the keeper tries again") } else { e };
        if background {
            own.report_failure(&e, !is_known);
        } else if !is_known {
            console::error(&e);
        }
        console::exit(console::exit_code(&e))
    })?;
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Tells the keeper and `status` of an obstacle that may pass by itself. Returns whether the user
/// knows it: the server before this one has reported the same.
fn note_obstacle(link: &KeeperLink, e: &Error, log: &ServerLog) -> bool {
    let obstacle = e.summary();
    let shown = || Registry::open(None)?.note_obstacle(link.keeper(), &obstacle);
    if let Err(e) = link.report_obstacle(&obstacle).and_then(|()| shown()) {
        log(&e);
    }
    link.last_obstacle() == Some(obstacle.as_str())
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
