//! How a server of NBD is known to other commands: its place among instances, and its control
//! socket.

use crate::terminal::settings;
use lacuna_daemon::{
    ClosingClient, Front, Identity, Instance, Jobs, Record, Server, ServerState, Service, StatusSource,
    default_run_base,
};
use lacuna_nbd::StopHandle;
use lacuna_storage::{ByteDisk, Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// The state of an NBD server.
pub(crate) struct NbdState {
    /// With which the server is told to end.
    pub stop: StopHandle,
    /// The last request that failed.
    pub last_error: Arc<Mutex<Option<Error>>>,
    /// The level whose length is told: a client may make it larger (`resize`) while the server
    /// runs.
    pub level_0: ByteDisk,
}

impl ServerState for NbdState {
    fn closing(&self) -> bool {
        self.stop.stopped()
    }

    fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    fn size(&self) -> Option<u64> {
        Some(self.level_0.len())
    }
}

/// A server that answers other commands.
pub(crate) struct Served {
    server: Server,
    /// Clients that asked for the end, and wait for it.
    waiting: Arc<Mutex<Vec<ClosingClient>>>,
    instance: Instance,
}

impl Served {
    /// Answers for a disk with these open levels, which clients of NBD find at these `uris`.
    ///
    /// Errors: whatever the system says. A disk is served without this just as well.
    pub(crate) fn start(
        identity: Identity,
        uris: Vec<String>,
        levels: &[ByteDisk],
        state: NbdState,
        jobs: Jobs,
    ) -> Result<Served> {
        let instance = Instance::of_server(&default_run_base()?, &identity.location)?;
        let record = Record::new(&identity, Front::Nbd { uris }, levels[0].read_only());
        let (waiting, stop) = (Arc::<Mutex<Vec<ClosingClient>>>::default(), state.stop.clone());
        let closing = Arc::clone(&waiting);
        let service = Service {
            record: record.clone(),
            identity,
            sources: levels.iter().map(|level| Arc::new(level.clone()) as Arc<dyn StatusSource>).collect(),
            state: Arc::new(state),
            jobs,
            naming: settings::full_name,
            close: Box::new(move |client| {
                closing.lock().push(client);
                stop.stop();
            }),
        };
        let server = Server::start(&instance, service)?;
        // From now on it is found, and answers.
        instance.write(&record)?;
        Ok(Served { server, waiting, instance })
    }

    /// Ends the jobs and refuses more; clients that ask for anything else are answered. Returns
    /// when no job uses the disk any more.
    pub(crate) fn end_work(&self) {
        self.server.end_work();
    }

    /// Stops listening, and gives the clients that wait to hear that the disk is closed, and what
    /// others find it by until then.
    pub(crate) fn end(self) -> (Vec<ClosingClient>, Instance) {
        let Served { server, waiting, instance } = self;
        drop(server);
        (std::mem::take(&mut *waiting.lock()), instance)
    }
}
