//! The status of a gang as it is to be: mostly it stays as it was read.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use lockstep_api::scheduling::PodGroupStatus;

use crate::input::GangInput;

/// A status as it was read, and a copy of it as soon as somebody changes it: those of large gangs are long
/// lists of nodes.
#[derive(Clone, Debug)]
pub struct StatusToBe {
    read: Arc<GangInput>,
    changed: Option<Box<PodGroupStatus>>,
}

impl StatusToBe {
    /// As it was read.
    pub(crate) fn read(of: &Arc<GangInput>) -> Self {
        Self {
            read: Arc::clone(of),
            changed: None,
        }
    }

    /// Whether it differs from what was read.
    pub fn differs(&self) -> bool {
        let changed = self.changed.as_ref();
        changed.is_some_and(|status| **status != self.read.group.status)
    }
}

impl Deref for StatusToBe {
    type Target = PodGroupStatus;

    fn deref(&self) -> &PodGroupStatus {
        self.changed.as_deref().unwrap_or(&self.read.group.status)
    }
}

impl DerefMut for StatusToBe {
    fn deref_mut(&mut self) -> &mut PodGroupStatus {
        let read = &self.read.group.status;
        self.changed.get_or_insert_with(|| Box::new(read.clone()))
    }
}

impl PartialEq for StatusToBe {
    fn eq(&self, other: &Self) -> bool {
        let as_read = self.changed.is_none() && other.changed.is_none();
        (as_read && Arc::ptr_eq(&self.read, &other.read)) || **self == **other
    }
}
