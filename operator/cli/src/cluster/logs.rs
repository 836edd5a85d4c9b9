use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all};
use futures_util::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use super::ClusterReader;
use crate::logs::LogSource;
use crate::problem::Problem;

/// Begin of the API server's message if the previous container was removed
/// (`validateContainerLogStatus` in `pkg/kubelet/kubelet_pods.go`).
const NO_CONTAINER: &str = "previous terminated container ";

#[derive(Clone, Copy, Debug, Default)]
pub struct HowMuch {
    pub follow: bool,
    /// Number of lines from the end.
    pub tail: Option<i64>,
    /// Age of the oldest line, in seconds.
    pub since_seconds: Option<i64>,
}

/// Lines of several logs in order of arrival, each with the number of its source.
pub type Lines = SelectAll<BoxStream<'static, (usize, std::io::Result<String>)>>;

impl ClusterReader {
    /// Opens the logs. Failures are problems if at least one log opens.
    pub async fn logs(
        &self,
        sources: &[LogSource],
        how_much: HowMuch,
    ) -> Result<(Lines, Vec<Problem>), Problem> {
        let mut streams = Vec::new();
        let mut unopened = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            match self.log(source, how_much).await {
                Ok(log) => {
                    let lines = log.lines().into_stream();
                    streams.push(lines.map(move |line| (number, line)).boxed());
                }
                Err(
                    problem @ (Problem::Deleted { .. }
                    | Problem::LogDeleted { .. }
                    | Problem::Refused(_)),
                ) => {
                    unopened.push(problem);
                }
                Err(other) => return Err(other),
            }
        }
        match unopened.first() {
            Some(first) if streams.is_empty() => Err(first.clone()),
            _ => Ok((select_all(streams), unopened)),
        }
    }

    async fn log(
        &self,
        source: &LogSource,
        how_much: HowMuch,
    ) -> Result<impl AsyncBufRead + use<>, Problem> {
        let pods: Api<Pod> = self.scoped(Some(&source.namespace));
        let params = LogParams {
            container: Some(source.container.clone()),
            follow: how_much.follow,
            previous: source.previous,
            since_seconds: how_much.since_seconds,
            tail_lines: how_much.tail,
            ..LogParams::default()
        };
        let log = self.send(pods.log_stream(&source.pod, &params), "pods/log");
        log.await
            .map_err(|problem| match (problem, &source.failure) {
                (Problem::NotInstalled { .. }, _) => Problem::Deleted {
                    name: source.pod.clone(),
                },
                (Problem::Refused(why), Some(failure)) if why.starts_with(NO_CONTAINER) => {
                    Problem::LogDeleted {
                        pod: source.pod.clone(),
                        failure: failure.clone(),
                    }
                }
                (other, _) => other,
            })
    }
}
