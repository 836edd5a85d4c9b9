//! The audit log of a real API server: events of `audit.k8s.io/v1`, one JSON object in a line.
//!
//! An event contains the object of the request and of the answer. Thus the version before a write
//! is the version after the previous write. If the answer is a Status (eviction, binding), the
//! version after the write is unknown.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::write::{Call, Write, join};

/// Limit in megabytes. The log is never rotated, because readers would miss lines of the older
/// file.
const MAX_SIZE: usize = 1 << 20;

/// Verbs that write. Other verbs on resources read.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Writes the policy into a folder. Returns the arguments with which kube-apiserver logs what
/// [`Write`] and [`Call`] need to a file, each write before the end of its answer.
pub(super) fn arguments(folder: &Path, log: &Path) -> Result<Vec<String>> {
    let policy = folder.join("audit-policy.json");
    std::fs::write(&policy, rules().to_string())?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        "--audit-log-mode=blocking-strict".into(),
        format!("--audit-log-maxsize={MAX_SIZE}"),
    ])
}

fn rules() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": true,
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "RequestResponse", "verbs": WRITES, "omitStages": ["ResponseStarted"]},
            // The end of a watch contains no further information.
            {"level": "Metadata", "verbs": ["watch"], "omitStages": ["ResponseComplete"]},
            {"level": "Metadata"},
        ],
    })
}

/// A line of the log.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    request_received_timestamp: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    request_object: Value,
    response_object: Option<Answer>,
}

#[derive(Debug, Deserialize)]
struct User {
    /// Absent if no authenticator knows the token.
    #[serde(default)]
    username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    kind: String,
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<u64>,
    finalizers: Vec<String>,
}

impl Event {
    /// User after impersonation, resource, and the decision of the authorizer. `None` for paths
    /// without resource and for requests that did not reach the authorizer (unknown tokens, refused
    /// impersonation).
    fn asked(&self) -> Option<(&User, &ObjectRef, bool)> {
        let user = self.impersonated_user.as_ref().unwrap_or(&self.user);
        let decision = self
            .annotations
            .as_ref()?
            .get("authorization.k8s.io/decision")?;
        Some((user, self.object_ref.as_ref()?, decision == "allow"))
    }

    fn is_write(&self) -> bool {
        WRITES.contains(&&*self.verb)
    }

    /// The call, if it is an allowed read.
    pub(super) fn read(&self) -> Option<Call> {
        let (user, object, is_allowed) = self.asked()?;
        (is_allowed && !self.is_write()).then(|| Call {
            user: user.username.clone(),
            verb: self.verb.clone(),
            group: object.api_group.clone(),
            resource: join(&object.resource, &object.subresource),
        })
    }

    /// True for dry runs. A delete can have this option in its body.
    fn is_dry_run(&self) -> bool {
        let query = self.uri.split_once('?').map_or("", |(_, query)| query);
        let of_options = self.request_object["dryRun"].as_array();
        query.split('&').any(|p| p.starts_with("dryRun="))
            || (self.verb.starts_with("delete") && of_options.is_some_and(|d| !d.is_empty()))
    }
}

impl Metadata {
    /// True if a delete with this answer removed the object, instead of marking it.
    fn is_gone(&self) -> bool {
        self.deletion_timestamp.is_none()
            || (self.finalizers.is_empty() && self.deletion_grace_period_seconds == Some(0))
    }
}

/// Versions of objects after their last write.
#[derive(Debug, Default)]
pub(super) struct Versions(HashMap<[String; 4], String>);

impl Versions {
    /// The write of the next line, if the line is a write.
    pub(super) fn write(&mut self, event: Event) -> Option<Write> {
        let (user, _, _) = event.asked().filter(|_| event.is_write())?;
        let (user, dry_run) = (user.username.clone(), event.is_dry_run());
        let object = event.object_ref?;
        let status = event.response_status.unwrap_or_default();
        let answer = event.response_object.unwrap_or_default();
        let is_object = answer.kind != "Status" && !answer.kind.ends_with("List");
        let left = if is_object {
            answer.metadata
        } else {
            Metadata::default()
        };
        let is_gone = event.verb == "delete" && left.is_gone();
        let mut write = Write {
            time: event.request_received_timestamp,
            user,
            verb: event.verb,
            api_group: object.api_group,
            resource: object.resource,
            subresource: object.subresource,
            namespace: object.namespace,
            name: if object.name.is_empty() {
                left.name
            } else {
                object.name
            },
            uid: left.uid,
            code: status.code,
            reason: status.reason,
            dry_run,
            ..Write::default()
        };
        if !is_gone {
            write.resource_version_after = left.resource_version;
        }
        if write.code < 300 {
            self.remember(&mut write, is_gone);
        }
        Some(write)
    }

    fn remember(&mut self, write: &mut Write, is_gone: bool) {
        let object = [
            &write.api_group,
            &write.resource,
            &write.namespace,
            &write.name,
        ];
        let object = object.map(Clone::clone);
        let is_new = write.code == 201 && write.subresource.is_empty();
        if let Some(before) = self.0.get(&object).filter(|_| !is_new) {
            write.resource_version_before.clone_from(before);
        }
        if write.dry_run {
            return;
        }
        if is_gone {
            self.0.remove(&object);
        } else if !write.resource_version_after.is_empty() {
            self.0.insert(object, write.resource_version_after.clone());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An event about pod `ns/p` with `changes` merged into it.
    pub(in super::super) fn line(changes: Value) -> Value {
        let mut line = json!({
            "verb": "patch",
            "requestURI": "/api/v1/namespaces/ns/pods/p",
            "requestReceivedTimestamp": "2026-11-23T04:00:00.000000Z",
            "user": {"username": "u"},
            "objectRef": {"resource": "pods", "namespace": "ns", "name": "p", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 200},
            "annotations": {"authorization.k8s.io/decision": "allow"},
        });
        crate::manifests::merge(&mut line, changes);
        line
    }

    fn event(changes: Value) -> Event {
        serde_json::from_value(line(changes)).unwrap()
    }

    fn answer(version: &str) -> Value {
        json!({"responseObject": {"kind": "Pod", "metadata": {"name": "p", "resourceVersion": version}}})
    }

    fn versions_of(write: &Write) -> (&str, &str) {
        (
            &write.resource_version_before,
            &write.resource_version_after,
        )
    }

    #[test]
    fn the_version_before_a_write_is_the_one_that_the_last_has_left() {
        let mut versions = Versions::default();
        let mut create = answer("5");
        create["verb"] = json!("create");
        create["responseStatus"]["code"] = json!(201);
        let create = versions.write(event(create)).unwrap();
        assert_eq!((versions_of(&create), create.changed()), (("", "5"), true));
        let patch = versions.write(event(answer("7"))).unwrap();
        assert_eq!((versions_of(&patch), patch.changed()), (("5", "7"), true));
        let nothing = versions.write(event(answer("7"))).unwrap();
        assert_eq!(
            (versions_of(&nothing), nothing.changed()),
            (("7", "7"), false)
        );
        let mut delete = answer("7");
        delete["verb"] = json!("delete");
        let delete = versions.write(event(delete)).unwrap();
        assert_eq!((versions_of(&delete), delete.changed()), (("7", ""), true));
    }

    #[test]
    fn an_eviction_has_changed_a_pod_to_a_version_that_is_not_known() {
        let mut versions = Versions::default();
        versions.write(event(answer("5")));
        let evict = versions.write(event(json!({
            "verb": "create",
            "objectRef": {"subresource": "eviction"},
            "responseStatus": {"code": 201},
            "responseObject": {"kind": "Status", "metadata": {}, "status": "Success", "code": 201},
        })));
        let evict = evict.unwrap();
        assert_eq!(
            (evict.target(), evict.changed()),
            ("pods/eviction".into(), true)
        );
        assert_eq!(versions_of(&evict), ("5", ""));
    }

    #[test]
    fn a_dry_run_shows_in_the_query_or_in_the_options_of_a_delete() {
        let mut versions = Versions::default();
        let mut dry = |changes| versions.write(event(changes)).unwrap().dry_run;
        assert!(dry(
            json!({"requestURI": "/api/v1/namespaces/ns/pods/p?dryRun=All"})
        ));
        assert!(dry(json!({"requestURI": "/x?force=true&dryRun=All"})));
        let options = json!({"kind": "DeleteOptions", "dryRun": ["All"]});
        assert!(dry(json!({"verb": "delete", "requestObject": options})));
        assert!(!dry(
            json!({"requestObject": {"kind": "Pod", "dryRun": ["All"]}})
        ));
        assert!(!dry(
            json!({"verb": "delete", "requestObject": {"kind": "DeleteOptions"}})
        ));
        assert!(!dry(
            json!({"requestObject": [{"op": "remove", "path": "/a"}]})
        ));
    }

    #[test]
    fn a_write_counts_for_the_impersonated_user_unless_impersonation_is_refused() {
        let mut versions = Versions::default();
        let other = event(json!({"impersonatedUser": {"username": "other"}}));
        assert_eq!(versions.write(other).unwrap().user, "other");
        assert_eq!(versions.write(event(json!({"annotations": null}))), None);
    }

    #[test]
    fn a_request_whose_token_is_unknown_is_no_call_of_a_user() {
        let mut line = line(json!({"verb": "watch", "annotations": null}));
        line["user"] = json!({});
        let event: Event = serde_json::from_value(line).unwrap();
        assert_eq!(event.read(), None);
        assert_eq!(Versions::default().write(event), None);
    }

    #[test]
    fn reads_that_were_allowed_are_calls_and_writes_are_no_reads() {
        let decision =
            |d: &str| json!({"verb": "watch", "annotations": {"authorization.k8s.io/decision": d}});
        let read = event(decision("allow")).read().unwrap();
        assert_eq!(
            (&*read.user, &*read.verb, &*read.resource),
            ("u", "watch", "pods")
        );
        assert_eq!(event(decision("forbid")).read(), None);
        assert_eq!(event(json!({})).read(), None);
        assert_eq!(
            event(json!({"verb": "get", "objectRef": null})).read(),
            None
        );
        assert_eq!(Versions::default().write(event(decision("allow"))), None);
    }
}
