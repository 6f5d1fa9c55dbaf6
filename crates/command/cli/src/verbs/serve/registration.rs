//! Registers an NBD server: its instance in the registry, and its control socket.

use crate::terminal::option_names;
use crate::verbs::serve::clients::ServedClients;
use lacuna_daemon::{
    ClosingClient, ConnectedClients, ControlServer, FrontEnd, Identity, Instance, Jobs, KeeperId, Record,
    RefusedClients, ServerState, Service, StatusSource, default_run_base,
};
use lacuna_nbd::StopHandle;
use lacuna_storage::{ByteDisk, Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// The state of an NBD server.
pub(crate) struct NbdState {
    /// Tells the server to end.
    pub stop: StopHandle,
    /// The error of the last failed request.
    pub last_error: Arc<Mutex<Option<Error>>>,
    /// The level with the reported length: a client may resize it while the server runs.
    pub level_0: ByteDisk,
    pub clients: Arc<ServedClients>,
    /// The keeper, if the server has one.
    pub keeper: Option<KeeperId>,
}

impl ServerState for NbdState {
    fn is_closing(&self) -> bool {
        self.stop.is_stopped()
    }

    fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    fn size(&self) -> Option<u64> {
        Some(self.level_0.len())
    }

    fn clients(&self) -> Option<ConnectedClients> {
        Some(self.clients.connected())
    }

    fn refused_clients(&self) -> Option<RefusedClients> {
        Some(self.clients.refused())
    }
}

/// A server that answers other commands.
pub(crate) struct RegisteredServer {
    server: ControlServer,
    /// Clients that asked for the end, and wait for it.
    waiting: Arc<Mutex<Vec<ClosingClient>>>,
    instance: Instance,
}

impl RegisteredServer {
    /// Registers a disk with these open levels, served at these `uris`.
    ///
    /// Errors: any failure of the system. The disk can be served without this.
    pub(crate) fn start(
        identity: Identity,
        uris: Vec<String>,
        levels: &[ByteDisk],
        state: NbdState,
        jobs: Jobs,
    ) -> Result<RegisteredServer> {
        let instance = Instance::of_server(&default_run_base()?, &identity.location)?;
        let record = Record::new(&identity, FrontEnd::Nbd { uris }, levels[0].is_read_only());
        let record = Record { keeper: state.keeper, ..record };
        let (waiting, stop) = (Arc::<Mutex<Vec<ClosingClient>>>::default(), state.stop.clone());
        let (closing, clients) = (Arc::clone(&waiting), Arc::clone(&state.clients));
        let location = identity.location.clone();
        let service = Service {
            record: record.clone(),
            identity,
            sources: levels.iter().map(|level| Arc::new(level.clone()) as Arc<dyn StatusSource>).collect(),
            state: Arc::new(state),
            jobs,
            naming: option_names::full_name,
            close: Box::new(move |client: ClosingClient| {
                // A server that ends already takes no request of its clients any more.
                if !client.is_forced()
                    && !stop.is_stopped()
                    && let Err(e) = clients.close(&location)
                {
                    return client.refuse(&e);
                }
                closing.lock().push(client);
                stop.stop();
            }),
        };
        let server = ControlServer::start(&instance, service)?;
        // After this the server can be found, and answers.
        instance.write(&record)?;
        Ok(RegisteredServer { server, waiting, instance })
    }

    /// Ends the jobs and refuses new ones; other requests are still answered. Returns when no job
    /// uses the disk any more.
    pub(crate) fn end_work(&self) {
        self.server.end_jobs();
    }

    /// Stops listening. Returns the clients that wait for the end, and the instance, which stays
    /// registered until it ends.
    pub(crate) fn end(self) -> (Vec<ClosingClient>, Instance) {
        let RegisteredServer { server, waiting, instance } = self;
        drop(server);
        (std::mem::take(&mut *waiting.lock()), instance)
    }
}
