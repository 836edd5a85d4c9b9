//! The API server: objects by kind, the rules of every write, deliveries to the manager's watches,
//! and requests of its clients.

mod admission;
mod answer;
mod kinds;
mod log;
mod patch;
pub(crate) mod quota;
mod removal;
pub(crate) mod server;
mod store;
mod watches;

pub use admission::{Admission, Rule, Webhook};
pub use answer::Refused;
pub use kinds::Stored;
pub use log::{Verb, Write};
pub(crate) use patch::merge;
pub use removal::DeleteOptions;
pub use server::Line;
pub(crate) use store::over as ended;
pub use store::{Object, Patch, Store};
pub use watches::Watches;
