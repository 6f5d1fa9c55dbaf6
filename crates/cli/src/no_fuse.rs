//! Stands in for `lacuna-fuse` in builds without it: nothing is ever mounted, and `lacks.rs` says so before.
#![allow(dead_code)]

use lacuna::{Disk, Error, Kind, Naming, Result};
use lacuna_service::{Cover, Log};
use std::path::Path;
use std::sync::Arc;

pub(crate) struct OpenRequest {
    pub(crate) mkfs: Option<String>,
    pub(crate) overwrite: bool,
    pub(crate) keep_existing: bool,
    pub(crate) read_only: bool,
    pub(crate) raw: bool,
    pub(crate) private: bool,
    pub(crate) mount_options: Option<String>,
    pub(crate) cover: Cover,
    pub(crate) log: Log,
    pub(crate) naming: Naming,
}

impl OpenRequest {
    pub(crate) fn new(_: Arc<dyn Disk>, _: &str, _: &Path) -> Self {
        OpenRequest {
            mkfs: None,
            overwrite: false,
            keep_existing: false,
            read_only: false,
            raw: false,
            private: false,
            mount_options: None,
            cover: Cover::Unneeded,
            log: Arc::new(|_| {}),
            naming: lacuna::Setting::quoted,
        }
    }
}

pub(crate) enum Opened {}

impl Opened {
    pub(crate) fn start(_: OpenRequest) -> Result<Opened> {
        Err(Error::new(Kind::Usage, "cannot mount without FUSE"))
    }

    pub(crate) fn stopper(&self) -> Stopper {
        match *self {}
    }

    pub(crate) fn made_file_system(&self) -> bool {
        match *self {}
    }

    pub(crate) fn wait(self) -> Result<()> {
        match self {}
    }
}

#[derive(Clone)]
pub(crate) enum Stopper {}

impl Stopper {
    pub(crate) fn request(&self) {
        match *self {}
    }
}
