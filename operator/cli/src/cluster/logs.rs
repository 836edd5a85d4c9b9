//! Logs of members, line by line.

use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all};
use futures_util::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use super::ClusterReader;
use crate::logs::LogSource;
use crate::problem::Problem;

/// How much of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct HowMuch {
    /// Go on with what is written from now on.
    pub follow: bool,
    /// So many of the last lines.
    pub tail: Option<i64>,
    /// What was written in the last seconds.
    pub since_seconds: Option<i64>,
}

/// Lines as they come, of several logs each with the number of its source.
pub type Lines = SelectAll<BoxStream<'static, (usize, std::io::Result<String>)>>;

impl ClusterReader {
    /// The logs, of pods of a namespace.
    pub async fn logs(
        &self,
        namespace: &str,
        sources: &[LogSource],
        how_much: HowMuch,
    ) -> Result<Lines, Problem> {
        let pods: Api<Pod> = self.scoped(Some(namespace));
        let mut streams = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let params = LogParams {
                container: Some(source.container.clone()),
                follow: how_much.follow,
                previous: source.previous,
                since_seconds: how_much.since_seconds,
                tail_lines: how_much.tail,
                ..LogParams::default()
            };
            let log = self.ask(pods.log_stream(&source.pod, &params), "pods/log");
            let log = log.await.map_err(|problem| match problem {
                Problem::NotInstalled { .. } => Problem::Gone {
                    name: source.pod.clone(),
                },
                other => other,
            })?;
            let lines = log.lines().into_stream().map(move |line| (number, line));
            streams.push(lines.boxed());
        }
        Ok(select_all(streams))
    }
}
