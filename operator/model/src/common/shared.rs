//! Values that many pods share.

use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Shared<T: ?Sized> {
    values: BTreeSet<Arc<T>>,
    /// Number of values at which unused ones are dropped.
    limit: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: BTreeSet::new(),
            limit: 1024,
        }
    }
}

impl<T: Ord + ?Sized> Shared<T> {
    /// Replaces a value by its interned copy, or interns it.
    pub fn share(&mut self, value: &mut Arc<T>) {
        if let Some(held) = self.values.get(value) {
            *value = Arc::clone(held);
            return;
        }
        if self.values.len() >= self.limit {
            self.values.retain(|v| Arc::strong_count(v) > 1);
            self.limit = 1024.max(2 * self.values.len());
        }
        self.values.insert(Arc::clone(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_shared_values_are_dropped_in_time() {
        let mut shared = Shared::default();
        for n in 0..5000 {
            shared.share(&mut Arc::new(n));
        }
        assert!(shared.values.len() <= 1024);
    }
}
