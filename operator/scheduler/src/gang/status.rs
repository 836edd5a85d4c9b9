//! Desired status of a gang. Usually it equals the current status.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use lockstep_api::scheduling::PodGroupStatus;

use crate::input::GangInput;

/// A status with copy-on-write, because large gangs have long lists of nodes.
#[derive(Clone, Debug)]
pub struct StatusDraft {
    read: Arc<GangInput>,
    changed: Option<Box<PodGroupStatus>>,
}

impl StatusDraft {
    pub(crate) fn read(of: &Arc<GangInput>) -> Self {
        Self {
            read: Arc::clone(of),
            changed: None,
        }
    }

    /// True if it differs from the status as read.
    pub fn differs(&self) -> bool {
        let changed = self.changed.as_ref();
        changed.is_some_and(|status| **status != self.read.group.status)
    }
}

impl Deref for StatusDraft {
    type Target = PodGroupStatus;

    fn deref(&self) -> &PodGroupStatus {
        self.changed.as_deref().unwrap_or(&self.read.group.status)
    }
}

impl DerefMut for StatusDraft {
    fn deref_mut(&mut self) -> &mut PodGroupStatus {
        let read = &self.read.group.status;
        self.changed.get_or_insert_with(|| Box::new(read.clone()))
    }
}

impl PartialEq for StatusDraft {
    fn eq(&self, other: &Self) -> bool {
        let as_read = self.changed.is_none() && other.changed.is_none();
        (as_read && Arc::ptr_eq(&self.read, &other.read)) || **self == **other
    }
}
