//! Follows the mode of node signals, the ends of their hold times and their deadlines.

use std::sync::Arc;
use std::time::Duration;

use lockstep_api::NodeHealthMode;
use tokio::sync::watch;

use crate::index::Index;

/// Longest sleep until a hold time or a deadline ends, because the wall clock can be set.
const LONGEST_SLEEP: Duration = Duration::from_mins(1);

/// Needs no event of a node.
pub async fn follow(index: Arc<Index>, mut mode: watch::Receiver<NodeHealthMode>) {
    loop {
        let current = *mode.borrow_and_update();
        index.set_node_health(current);
        let next = index.next_signal_change();
        let change = async {
            match next {
                Some(wait) => tokio::time::sleep(wait.min(LONGEST_SLEEP)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = change => {}
            () = index.signals_changed() => {}
            Ok(()) = mode.changed() => {}
        }
    }
}
