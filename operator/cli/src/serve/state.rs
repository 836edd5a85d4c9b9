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
    pub queue: Kept<QueueReport>,
    /// `None` in it: the report could not be made. The next try is as far away as the next report.
    pub doctor: Kept<Option<Value>>,
    pub member_pods: Kept<Vec<Pod>>,
}

/// A value that is read again once it is old. Readers wait for the same read.
#[derive(Debug)]
pub struct Kept<T>(Mutex<Option<(DateTime<Utc>, T)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Kept<T> {
    /// The value if it is younger than `age`, else the result of `read`, which begins at `now`.
    pub async fn get<E>(
        &self,
        age: Duration,
        now: DateTime<Utc>,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut kept = self.0.lock().await;
        if let Some((_, value)) = kept.as_ref().filter(|(at, _)| is_younger(*at, age, now)) {
            return Ok(value.clone());
        }
        let value = read.await?;
        *kept = Some((now, value.clone()));
        Ok(value)
    }
}

/// True for a value of this time that is not older. A clock that was set makes it old.
fn is_younger(at: DateTime<Utc>, age: Duration, now: DateTime<Utc>) -> bool {
    (now - at).abs().to_std().is_ok_and(|since| since < age)
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
