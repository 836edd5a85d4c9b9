//! Changes of objects by users and administrators.

use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;

use crate::SimCluster;
use crate::api::{DeleteOptions, Stored, Write};

impl SimCluster {
    /// Creates an object as a user does.
    ///
    /// # Panics
    ///
    /// The API server refuses it.
    pub fn create<K: Stored>(&mut self, object: &K) {
        let object = serde_json::to_value(object).expect("an object of the API is JSON");
        let created = self.store().create("user", K::KIND, object, false);
        created.unwrap_or_else(|no| panic!("{}", no.message));
    }

    /// Changes an object as a user does.
    pub fn edit<K: Stored>(&mut self, key: &Key, change: impl FnOnce(&mut K)) {
        self.store().edit("user", key, change);
    }

    /// Deletes an object as a user does.
    ///
    /// # Panics
    ///
    /// The object does not exist.
    pub fn delete(&mut self, kind: WatchedKind, key: &Key) {
        let deleted = self
            .store()
            .delete("user", kind, key, &DeleteOptions::default());
        deleted.unwrap_or_else(|no| panic!("{}", no.message));
    }

    /// Removes an object without a trace.
    ///
    /// # Panics
    ///
    /// The object does not exist.
    pub fn remove(&mut self, kind: WatchedKind, key: &Key) {
        let mut store = self.store();
        let object = store.raw(kind, key).cloned().expect("the object exists");
        store.remove("user", kind, key, &object);
    }

    pub fn get<K: Stored>(&self, key: &Key) -> Option<K> {
        self.store().get(key)
    }

    /// All objects of a type, by key.
    pub fn list<K: Stored>(&self) -> Vec<K> {
        self.store().list()
    }

    pub fn log(&self) -> Vec<Write> {
        self.store().log.clone()
    }
}
