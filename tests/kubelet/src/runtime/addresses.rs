//! IPs of pods on a machine, and the names that headless Services of a cluster would resolve.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::PodDesc;

/// Maximum time that the start of a container waits for the address of a pod that it names.
pub(super) const ADDRESS_WAIT: Duration = Duration::from_mins(1);
/// Period of the checks.
pub(super) const ADDRESS_POLL: Duration = Duration::from_millis(50);

/// Addresses by namespace, subdomain and hostname.
pub type Names = BTreeMap<(String, String, String), String>;

/// Addresses of the pods of all nodes of a process, each in 127.0.0.0/8, so that processes on a
/// machine do not share ports.
#[derive(Debug)]
pub struct Addresses {
    octet: u8,
    given: AtomicU32,
    names: Mutex<Names>,
}

impl Addresses {
    /// No used addresses. The second octet is between 16 and 215, which avoids 127.0.0.1 and pods
    /// of other processes.
    pub fn of_this_process() -> Self {
        Self {
            octet: 16 + (std::process::id() % 200) as u8,
            given: AtomicU32::new(0),
            names: Mutex::default(),
        }
    }

    /// Assigns an address to a pod.
    pub(super) fn open(&self, pod: &PodDesc) -> String {
        let n = self.given.fetch_add(1, Ordering::Relaxed) + 1;
        let ip = format!("127.{}.{}.{}", self.octet, (n >> 8) & 0xff, n & 0xff);
        if let Some(name) = service_name(pod) {
            self.names.lock().insert(name, ip.clone());
        }
        ip
    }

    /// Removes the name of a pod from its address.
    pub(super) fn close(&self, pod: &PodDesc, ip: Option<&str>) {
        if let Some(name) = service_name(pod) {
            let mut names = self.names.lock();
            // A replacement of the pod can already have the name.
            if names.get(&name).map(String::as_str) == ip {
                names.remove(&name);
            }
        }
    }

    /// All current names.
    pub(super) fn names(&self) -> Names {
        self.names.lock().clone()
    }
}

/// Hostname under the subdomain, if the pod has both.
fn service_name(pod: &PodDesc) -> Option<(String, String, String)> {
    Some((
        pod.namespace.clone(),
        pod.spec.subdomain.clone()?,
        pod.spec.hostname.clone()?,
    ))
}
