//! Decided nodes of a gang that cannot take pods now.

use std::collections::BTreeSet;

use lockstep_api::member::Member;

#[derive(Clone, Debug, Default)]
pub(crate) struct UnusableNodes {
    /// Unbound members whose nodes may take their pods again.
    pub waiting: BTreeSet<Member>,
    /// Unbound members whose nodes are lost.
    pub lost: BTreeSet<Member>,
    /// Reserved nodes that may take pods again.
    pub reserved: BTreeSet<String>,
}
