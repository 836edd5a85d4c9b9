//! Frames between the node agent and the supervisor inside a training container (`docs/wire.md`).
//!
//! The two talk over a unix stream socket: the supervisor listens at [`SOCKET`] in its folder, the
//! agent connects. Each frame is its length, a byte that names its kind, and its fields in a fixed
//! order. The supervisor speaks first: [`FromSupervisor::Hello`] has the versions that it knows,
//! [`FromAgent::Welcome`] the one that the agent has chosen. No other frame passes before these
//! two, and their layout never changes, so that any two versions can find out what they have in
//! common.
//!
//! Parsing is total: any bytes give frames or a [`FrameError`], and [`FrameReader`] holds at most
//! one frame of [`MAX_BODY`] beyond the bytes that it was given last. The crate does no I/O.
//!
//! ```
//! use lockstep_wire::{FrameReader, FromAgent, Message};
//!
//! let mut reader = FrameReader::default();
//! reader.push(&FromAgent::Hold { attempt: 4 }.encode());
//! assert_eq!(reader.next_frame(), Ok(Some(FromAgent::Hold { attempt: 4 })));
//! assert_eq!(reader.next_frame::<FromAgent>(), Ok(None));
//! ```

mod codec;
mod frame;
mod message;
mod text;
mod version;

pub use codec::FrameError;
pub use frame::{FrameReader, MAX_BODY, Message};
pub use message::{
    Checkpoint, ChildExit, ExitReason, FromAgent, FromSupervisor, Progress, ProgressLimits,
    Release, Rendezvous,
};
pub use text::Text;
pub use version::{VERSIONS, Versions};

/// Variables that a supervisor sets for its child as the release says. Whoever writes its command names
/// those among them that it is to keep (`--keep-env`): the user's own.
pub const SET_BY_SUPERVISOR: [&str; 15] = [
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "LOCKSTEP_ATTEMPT",
    "LOCKSTEP_MEMBERS",
    "LOCKSTEP_PEERS",
    "LOCKSTEP_PROGRESS",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_RDZV_ID",
];

/// File name of the socket in the supervisor's folder.
pub const SOCKET: &str = "agent.sock";
