//! Errors of requests to the cluster, each one sentence with the remedy.

use std::error::Error;
use std::time::Duration;

use kube::config::KubeconfigError;
use kube::core::Status;
use thiserror::Error;

use crate::roles::remedy;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    #[error(
        "cannot reach the API server at {server}: {why}; check the server, --context and --server"
    )]
    Unreachable { server: String, why: String },
    #[error(
        "the API server at {server} did not respond within {}s; check the server or increase --request-timeout",
        .after.as_secs()
    )]
    NoResponse { server: String, after: Duration },
    #[error(
        "the certificate of the API server at {server} is not trusted: {why}; pass its certificate authority with --certificate-authority"
    )]
    Untrusted { server: String, why: String },
    #[error(
        "the API server rejected the credentials ({why}): they have expired or belong to another cluster; log in again, or pass --context, --user or --token"
    )]
    NotSignedIn { why: String },
    #[error("not allowed: {message}; {}", remedy(.message))]
    NotAllowed { message: String },
    #[error(
        "Lockstep is not installed in this cluster: the API server does not serve {kind}; install Lockstep with `kubectl apply -k config/overlays/default`"
    )]
    NotInstalled {
        /// Plural name of the kind.
        kind: String,
    },
    #[error(
        "{kind} {name:?} not found in namespace {namespace:?}; `kubectl get tw -A` lists all workloads"
    )]
    NotFound {
        kind: String,
        name: String,
        namespace: String,
    },
    #[error("{name:?} was deleted while the command ran; check the workload and retry")]
    Deleted { name: String },
    /// A kubelet that restarts all containers of a pod removes them with their logs.
    #[error(
        "the log of pod {pod:?} from before its restart was deleted with the container: {failure}"
    )]
    LogDeleted { pod: String, failure: String },
    #[error(
        "{name:?} was modified before the write: nothing was written; check the workload and retry"
    )]
    Changed { name: String },
    /// Conflict without a changed object, with the API server's message.
    #[error("the API server rejected the request: {0}")]
    Conflict(String),
    #[error("{0}")]
    Kubeconfig(String),
    /// Any other refusal, with the API server's message.
    #[error("the API server rejected the request: {0}")]
    Refused(String),
    #[error(
        "cannot parse the response of {server}: {why}; check that --server is a Kubernetes API server"
    )]
    Unreadable { server: String, why: String },
}

/// Context of a failed request, for messages.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    pub server: &'a str,
    /// Plural name of the kind.
    pub kind: &'a str,
}

impl RequestContext<'_> {
    pub fn problem(&self, error: &kube::Error) -> Problem {
        let server = self.server.to_owned();
        match error {
            kube::Error::Api(status) => self.api_error(status),
            kube::Error::Auth(auth) => Problem::NotSignedIn { why: root(auth) },
            kube::Error::InferKubeconfig(why) => kubeconfig(why),
            kube::Error::SerdeError(why) => Problem::Unreadable {
                server,
                why: why.to_string(),
            },
            other => {
                let why = root(other);
                if let Some(about) = why.strip_prefix("invalid peer certificate: ") {
                    let why = about.to_owned();
                    return Problem::Untrusted { server, why };
                }
                // A login plugin of the kubeconfig fails inside the connection.
                if let Some(auth) = inside::<kube::client::AuthError>(other) {
                    return Problem::NotSignedIn { why: root(auth) };
                }
                Problem::Unreachable { server, why }
            }
        }
    }

    fn api_error(&self, status: &Status) -> Problem {
        let message = one_sentence(&status.message);
        match status.code {
            401 => Problem::NotSignedIn { why: message },
            403 => Problem::NotAllowed { message },
            404 => Problem::NotInstalled {
                kind: self.kind.to_owned(),
            },
            409 => Problem::Conflict(message),
            _ => Problem::Refused(message),
        }
    }
}

pub fn kubeconfig(error: &KubeconfigError) -> Problem {
    Problem::Kubeconfig(match error {
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current context; choose one with --context (`kubectl config get-contexts` lists them)".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!(
            "the kubeconfig has no context {name:?}; `kubectl config get-contexts` lists all contexts"
        ),
        KubeconfigError::LoadClusterOfContext(name) => format!(
            "the kubeconfig has no cluster {name:?}; `kubectl config get-clusters` lists all clusters"
        ),
        KubeconfigError::ReadConfig(why, path) => {
            format!("kubeconfig {}: {}", path.display(), plain(&why.to_string()))
        }
        KubeconfigError::FindPath => {
            "no kubeconfig found; pass --kubeconfig or set $KUBECONFIG".to_owned()
        }
        other => format!("the kubeconfig cannot be used: {}", root(other)),
    })
}

/// The innermost error, which all outer errors repeat.
pub fn root(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    plain(&cause.to_string())
}

fn inside<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut cause = Some(error);
    while let Some(at) = cause {
        if let Some(found) = at.downcast_ref() {
            return Some(found);
        }
        cause = at.source();
    }
    None
}

/// Message of the operating system as part of a sentence, without the error number.
fn plain(text: &str) -> String {
    let text = match text.rsplit_once(" (os error ") {
        Some((words, _)) => words,
        None => text,
    };
    let mut rest = text.chars();
    match (rest.next(), rest.clone().next()) {
        // Abbreviations stay in capitals.
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(rest).collect()
        }
        _ => text.to_owned(),
    }
}

/// Removes the final full stop, because more text follows.
fn one_sentence(text: &str) -> String {
    text.trim_end_matches(['.', '\n']).to_owned()
}
