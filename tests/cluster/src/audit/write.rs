//! A write, and a kind of call.

/// A write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// When the request arrived, RFC 3339.
    pub time: String,
    /// User name.
    pub user: String,
    /// API verb.
    pub verb: String,
    /// API group; empty for core.
    pub api_group: String,
    /// Resource, plural.
    pub resource: String,
    /// Subresource or empty.
    pub subresource: String,
    /// Namespace or empty.
    pub namespace: String,
    /// Name or empty.
    pub name: String,
    /// UID of the object; empty if the answer is no object.
    pub uid: String,
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason of a refusal.
    pub reason: String,
    /// Version of the object before.
    pub resource_version_before: String,
    /// Version of the object after.
    pub resource_version_after: String,
    /// True for dry runs.
    pub dry_run: bool,
}

impl Write {
    /// True if an object was stored.
    pub fn changed(&self) -> bool {
        self.code < 300
            && !self.dry_run
            && self.resource_version_before != self.resource_version_after
    }

    /// Resource with its subresource, such as `pods/eviction`.
    pub fn target(&self) -> String {
        join(&self.resource, &self.subresource)
    }
}

/// Input of RBAC's decision: verb and resource, without names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// User name.
    pub user: String,
    /// API verb.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// Resource with its subresource.
    pub resource: String,
}

pub(super) fn join(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}/{subresource}")
    }
}
