//! Tasks in the background.

pub(crate) mod background_tasks;
pub(crate) mod task_queue;
