//! Frames between the node agent and the supervisor inside a training container (`docs/supervisor-protocol.md`).
//!
//! The transport is a unix stream socket: the supervisor listens at [`SOCKET`] in its folder, and
//! the agent connects. A frame is a length, a kind byte, and fields in a fixed order. The
//! supervisor sends [`FromSupervisor::Hello`] with its range of versions first. The agent answers
//! with [`FromAgent::Welcome`] and the version it chose. No other frame precedes these two. Their
//! layout never changes, so any two versions can negotiate.
//!
//! Parsing is total: any bytes give frames or a [`FrameError`]. [`FrameReader`] buffers at most one
//! frame of [`MAX_BODY`] bytes beyond the last chunk. The crate does no I/O.
//!
//! ```
//! use lockstep_supervisor_protocol::{FrameReader, FromAgent, Message};
//!
//! let mut reader = FrameReader::default();
//! reader.push(&FromAgent::Hold { attempt: 4 }.encode());
//! assert_eq!(reader.next_frame(), Ok(Some(FromAgent::Hold { attempt: 4 })));
//! assert_eq!(reader.next_frame::<FromAgent>(), Ok(None));
//! ```

#![deny(missing_docs)]

mod codec;
mod frame;
mod layout;
mod message;
mod text;
mod version;

pub use codec::FrameError;
pub use frame::{FrameReader, MAX_BODY, Message};
pub use message::{
    Checkpoint, ChildExit, EVICTION, ExitReason, FromAgent, FromSupervisor, MAX_PROGRESS, Progress,
    ProgressLimits, Release, Rendezvous, SavePolicy, SaveReply, SaveRequest,
};
pub use text::Text;
pub use version::{VERSIONS, Versions, has_requests};

/// Environment variables that a supervisor sets for its child from the release. The argument
/// `--keep-env` of the supervisor's command lists the variables of the user's manifest, which stay
/// unchanged.
pub const SET_BY_SUPERVISOR: [&str; 20] = [
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "LOCKSTEP_ATTEMPT",
    "LOCKSTEP_CHECKPOINT_REQUEST",
    "LOCKSTEP_MEMBERS",
    "LOCKSTEP_PEERS",
    "LOCKSTEP_PROGRESS",
    "LOCKSTEP_PROGRESS_FORMAT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "RANK",
    "WORLD_SIZE",
];

/// Signals that a supervisor forwards to its child, and their numbers on Linux.
/// `lifecycle.stopSignal` can name each of them as the container's stop signal. The kernel drops
/// other signals to the first process of a container without a handler.
pub const PASSED_SIGNALS: [(&str, u8); 12] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGABRT", 6),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGCONT", 18),
    ("SIGWINCH", 28),
    ("SIGIO", 29),
    ("SIGPWR", 30),
];

/// File name of the socket in the supervisor's folder.
pub const SOCKET: &str = "agent.sock";
