use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_model::Pod;
use serde_json::Value;
use tokio::sync::Mutex;

use super::security::Access;
use crate::cluster::LiveView;
use crate::queue::QueueReport;

/// What all requests share.
pub struct Dashboard {
    pub live: Arc<LiveView>,
    pub access: Access,
    /// Open streams.
    pub streams: AtomicUsize,
    pub queue: Mutex<Option<Aged<QueueReport>>>,
    /// `None` in it: the report could not be made.
    pub doctor: Mutex<Option<Aged<Option<Value>>>>,
    pub member_pods: Mutex<Option<Aged<Vec<Pod>>>>,
}

/// A value with the time at which it was read.
#[derive(Clone, Debug)]
pub struct Aged<T> {
    pub value: T,
    pub at: DateTime<Utc>,
}

impl<T> Aged<T> {
    /// True if the value is not older. A clock that was set makes it old.
    pub fn is_younger(&self, than: Duration, now: DateTime<Utc>) -> bool {
        (now - self.at).abs().to_std().is_ok_and(|age| age < than)
    }
}

/// The query of a request.
#[derive(Debug, Default)]
pub struct Query {
    pub view: Option<String>,
    pub namespace: Option<String>,
    pub workload: Option<(String, String)>,
}

impl Query {
    pub fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let value = Some(value.into_owned()).filter(|v| !v.is_empty());
            match &*name {
                "view" => query.view = value,
                "namespace" => query.namespace = value,
                "workload" => query.workload = value.and_then(|v| path(&v)),
                _ => {}
            }
        }
        query
    }
}

/// `NAMESPACE/NAME`. It becomes part of an address of the API server.
pub fn path(text: &str) -> Option<(String, String)> {
    let (namespace, name) = text.split_once('/')?;
    let plain = |word: &str| {
        let mut letters = word.bytes();
        !word.is_empty() && letters.all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
    };
    (plain(namespace) && plain(name)).then(|| (namespace.to_owned(), name.to_owned()))
}
