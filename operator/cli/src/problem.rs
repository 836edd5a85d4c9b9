//! What goes wrong between here and the cluster, each in one sentence that says what to do.

use std::error::Error;
use std::time::Duration;

use kube::config::KubeconfigError;
use kube::core::Status;
use thiserror::Error;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// No connection.
    #[error(
        "cannot reach the API server at {server}: {why}; is it running, and are --context and --server right?"
    )]
    Unreachable {
        /// Address of the API server.
        server: String,
        /// What the system says.
        why: String,
    },
    /// No answer in time.
    #[error(
        "the API server at {server} has not answered within {}s; a longer --request-timeout waits for it",
        .after.as_secs()
    )]
    NoAnswer {
        /// Address of the API server.
        server: String,
        /// How long was waited.
        after: Duration,
    },
    /// The server's certificate is not trusted.
    #[error(
        "the certificate of the API server at {server} is not trusted: {why}; --certificate-authority names a file with its authority"
    )]
    Untrusted {
        /// Address of the API server.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// The credentials are not accepted, or cannot be had.
    #[error(
        "the API server does not accept these credentials ({why}): they have expired or are of another cluster; sign in again, or choose with --context, --user or --token"
    )]
    NotSignedIn {
        /// What is said of them.
        why: String,
    },
    /// The user may not do that.
    #[error(
        "not allowed: {message}; docs/cli.md names the role that each command needs, and -n NAMESPACE asks for one namespace only"
    )]
    NotAllowed {
        /// What the API server says.
        message: String,
    },
    /// The API server does not know the kind.
    #[error(
        "Lockstep is not installed in this cluster: its API server does not know {kind}; `kubectl apply -k config/overlays/default` installs it"
    )]
    NotInstalled {
        /// Plural name of the kind.
        kind: String,
    },
    /// There is no such object.
    #[error(
        "there is no {kind} {name:?} in namespace {namespace:?}; `kubectl lockstep list -A` shows those that there are"
    )]
    NotFound {
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Namespace.
        namespace: String,
    },
    /// The object was there a moment ago.
    #[error("{name:?} has gone meanwhile; look again and repeat the command")]
    Gone {
        /// Name of the object.
        name: String,
    },
    /// Somebody else wrote the object first.
    #[error(
        "{name:?} has been changed meanwhile: nothing was written; look again and repeat the command"
    )]
    Changed {
        /// Name of the object.
        name: String,
    },
    /// The object is not the one that was read.
    #[error("the API server refuses: {0}")]
    Conflict(String),
    /// The kubeconfig is no help.
    #[error("{0}")]
    Kubeconfig(String),
    /// Any other refusal, in the words of the API server.
    #[error("the API server refuses: {0}")]
    Refused(String),
    /// An answer that cannot be read.
    #[error(
        "the answer of the API server at {server} cannot be read: {why}; is it a Kubernetes API server?"
    )]
    Unreadable {
        /// Address of the API server.
        server: String,
        /// Why.
        why: String,
    },
}

/// What was asked for, to say it in a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Address of the API server.
    pub server: &'a str,
    /// Plural name of the kind.
    pub kind: &'a str,
}

impl Asked<'_> {
    /// The sentence for an error of the client.
    pub fn problem(&self, error: &kube::Error) -> Problem {
        let server = self.server.to_owned();
        match error {
            kube::Error::Api(status) => self.answered(status),
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
                // A plugin of the kubeconfig that signs in fails inside the connection.
                if let Some(auth) = inside::<kube::client::AuthError>(other) {
                    return Problem::NotSignedIn { why: root(auth) };
                }
                Problem::Unreachable { server, why }
            }
        }
    }

    fn answered(&self, status: &Status) -> Problem {
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

/// The sentence for a kubeconfig that leads nowhere.
pub fn kubeconfig(error: &KubeconfigError) -> Problem {
    Problem::Kubeconfig(match error {
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current context; choose one with --context (`kubectl config get-contexts` lists them)".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!(
            "the kubeconfig has no context {name:?}; `kubectl config get-contexts` lists those that there are"
        ),
        KubeconfigError::LoadClusterOfContext(name) => format!(
            "the kubeconfig has no cluster {name:?}; `kubectl config get-clusters` lists those that there are"
        ),
        KubeconfigError::ReadConfig(why, path) => {
            format!("kubeconfig {}: {}", path.display(), plain(&why.to_string()))
        }
        KubeconfigError::FindPath => {
            "there is no kubeconfig; name one with --kubeconfig or $KUBECONFIG".to_owned()
        }
        other => format!("the kubeconfig cannot be used: {}", root(other)),
    })
}

/// The first cause of an error: those above it repeat it.
pub fn root(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    plain(&cause.to_string())
}

/// An error of a type among the causes of another.
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

/// What the system says, without its number, as a part of a sentence.
fn plain(text: &str) -> String {
    let text = match text.rsplit_once(" (os error ") {
        Some((words, _)) => words,
        None => text,
    };
    let mut rest = text.chars();
    match (rest.next(), rest.clone().next()) {
        // An abbreviation stays.
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(rest).collect()
        }
        _ => text.to_owned(),
    }
}

/// Without the full stop, since more follows.
fn one_sentence(text: &str) -> String {
    text.trim_end_matches(['.', '\n']).to_owned()
}
