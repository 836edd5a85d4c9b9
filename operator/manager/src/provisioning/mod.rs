//! Shows the node demand of gangs to a node autoscaler. Runs only with an autoscaler mode.
//!
//! | module | content |
//! |---|---|
//! | [`task`] | the loop: decisions of [`lockstep_lifecycle::provisioning`], and their pace |
//! | `act` | its requests |

mod act;
pub(crate) mod task;
