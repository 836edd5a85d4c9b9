//! A fake container runtime behind a real unix socket, with the errors and quirks of real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use lockstep_api::names::{annotations, labels};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tonic::codegen::BoxStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::server::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::cri::api::{
    Container, ContainerEventResponse, ContainerMetadata, ContainerState, ContainerStatus,
    ContainerStatusRequest, ContainerStatusResponse, GetEventsRequest, ListContainersRequest,
    ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox,
    PodSandboxMetadata, PodSandboxStatus, RuntimeCondition, RuntimeStatus, StatusRequest,
    StatusResponse, StopContainerRequest, StopContainerResponse, VersionRequest, VersionResponse,
};
use crate::tests::start_time;

/// State of the runtime and its received calls.
#[derive(Default)]
pub struct World {
    /// Number of started containers by pod and name.
    started: BTreeMap<(String, String), u32>,
    pub sandboxes: Vec<PodSandbox>,
    /// Containers. Without a finish time in its status, a container runs.
    pub containers: BTreeMap<String, (String, ContainerStatus)>,
    pub calls: BTreeMap<&'static str, usize>,
    /// Stopped containers, in order.
    pub stops: Vec<String>,
    /// Containers whose stop never returns.
    pub hanging: BTreeSet<String>,
    /// Containers that end just before their stop arrives, with their replacements.
    pub replaced: BTreeMap<String, String>,
    /// Container that starts in pod `p1` right after the next listing of containers.
    pub starts_after_list: Option<String>,
    /// Containers that disappear when their status is requested.
    pub vanishing: BTreeSet<String>,
    /// True if the runtime has no events.
    pub no_events: bool,
    pub not_ready: bool,
    /// Version of containerd that the runtime reports; `None`: another runtime.
    pub containerd: Option<&'static str>,
    pub upgrades: u32,
    /// Events without a subscriber, kept for the next one as in containerd 2.
    pub queued: Vec<ContainerEventResponse>,
    subscriber: Option<mpsc::UnboundedSender<ContainerEventResponse>>,
    subscribed: Arc<Notify>,
    clock: i64,
}

impl World {
    fn tick(&mut self) -> i64 {
        self.clock += 1_000_000;
        start_time().timestamp_nanos_opt().unwrap() - 10_000_000_000 + self.clock
    }

    /// Adds a member's pod of this workload. The sandbox id is `s-` and the UID.
    pub fn pod(&mut self, uid: &str, workload: &str, index: &str) {
        let text = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let sandbox = PodSandbox {
            id: format!("s-{uid}"),
            metadata: Some(PodSandboxMetadata {
                uid: uid.into(),
                namespace: "team".into(),
            }),
            created_at: self.tick(),
            labels: text(&[
                (labels::WORKLOAD_UID, workload),
                (labels::GROUP, "workers"),
                (labels::REPLICA, "0"),
                (labels::INDEX, index),
                (labels::DOMAIN, "workload"),
            ]),
            annotations: text(&[
                (annotations::ATTEMPT, "1"),
                (annotations::TIER, "restart-all"),
                ("kubectl.kubernetes.io/default-container", "main"),
            ]),
        };
        self.sandboxes.push(sandbox);
    }

    pub fn run(&mut self, uid: &str, name: &str, id: &str) {
        let numbers = self.started.entry((uid.into(), name.into())).or_default();
        let attempt = *numbers;
        *numbers += 1;
        let status = ContainerStatus {
            id: id.into(),
            metadata: Some(ContainerMetadata {
                name: name.into(),
                attempt,
            }),
            state: ContainerState::ContainerRunning.into(),
            created_at: self.tick(),
            ..ContainerStatus::default()
        };
        self.containers
            .insert(id.into(), (format!("s-{uid}"), status));
        self.tell(uid);
    }

    pub fn exit(&mut self, id: &str, code: i32) {
        let at = self.tick();
        let Some((sandbox, status)) = self.containers.get_mut(id) else {
            return;
        };
        if status.state() != ContainerState::ContainerRunning {
            return;
        }
        status.set_state(ContainerState::ContainerExited);
        (status.exit_code, status.finished_at, status.reason) = (code, at, "Error".into());
        let uid = sandbox.trim_start_matches("s-").to_owned();
        self.tell(&uid);
    }

    /// Sends an event about a pod with all its containers, as containerd does.
    fn tell(&mut self, uid: &str) {
        let id = format!("s-{uid}");
        let Some(sandbox) = self.sandboxes.iter().find(|s| s.id == id) else {
            return;
        };
        let mine = self.containers.values().filter(|(s, _)| *s == id);
        let event = ContainerEventResponse {
            pod_sandbox_status: Some(PodSandboxStatus {
                metadata: sandbox.metadata.clone(),
                labels: sandbox.labels.clone(),
            }),
            containers_statuses: mine.map(|(_, status)| status.clone()).collect(),
        };
        match &self.subscriber {
            Some(subscriber) if subscriber.send(event.clone()).is_ok() => {}
            _ => self.queued.push(event),
        }
    }

    pub fn is_subscribed(&self) -> bool {
        self.subscriber.as_ref().is_some_and(|s| !s.is_closed())
    }
}

pub struct Fake {
    pub world: Arc<Mutex<World>>,
    folder: tempfile::TempDir,
    server: Option<Runtime>,
}

impl Fake {
    /// Creates a stopped runtime.
    pub fn new() -> Self {
        Self {
            world: Arc::default(),
            folder: tempfile::tempdir().unwrap(),
            server: None,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    /// Starts to serve in a separate tokio runtime, so that a crash breaks every connection.
    pub fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.enter();
        let listener = UnixListener::bind(self.socket()).unwrap();
        drop(guard);
        let service = RuntimeServiceServer::new(Service(self.world.clone()));
        let incoming = stream::unfold(listener, |listener| async {
            let connection = listener.accept().await.map(|(stream, _)| stream);
            Some((connection, listener))
        });
        runtime.spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming.boxed()),
        );
        self.server = Some(runtime);
    }

    /// Simulates SIGKILL: connections break, and the socket is removed.
    pub fn crash(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
        self.world.lock().subscriber = None;
        std::fs::remove_file(self.socket()).unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

struct Service(Arc<Mutex<World>>);

impl Service {
    fn called(&self, call: &'static str) -> parking_lot::MutexGuard<'_, World> {
        let mut world = self.0.lock();
        *world.calls.entry(call).or_default() += 1;
        world
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        let world = self.called("Version");
        let (name, version) = match world.containerd {
            Some(version) => ("containerd", version.to_owned()),
            None => ("fake", format!("1.{}", world.upgrades)),
        };
        Ok(Response::new(VersionResponse {
            runtime_name: name.into(),
            runtime_version: version,
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let status = !self.called("Status").not_ready;
        let condition = RuntimeCondition {
            r#type: "RuntimeReady".into(),
            status,
            ..RuntimeCondition::default()
        };
        Ok(Response::new(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![condition],
            }),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let items = self.called("ListPodSandbox").sandboxes.clone();
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let mut world = self.called("ListContainers");
        let container = |(sandbox, status): &(String, ContainerStatus)| Container {
            id: status.id.clone(),
            pod_sandbox_id: sandbox.clone(),
            metadata: status.metadata.clone(),
            state: status.state,
            created_at: status.created_at,
        };
        let containers = world.containers.values().map(container).collect();
        if let Some(id) = world.starts_after_list.take() {
            world.run("p1", "main", &id);
        }
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let mut world = self.called("ContainerStatus");
        let id = request.into_inner().container_id;
        if world.vanishing.contains(&id) {
            world.containers.remove(&id);
        }
        match world.containers.get(&id) {
            Some((_, status)) => Ok(Response::new(ContainerStatusResponse {
                status: Some(status.clone()),
            })),
            None => Err(Status::not_found(format!("container {id:?}"))),
        }
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let StopContainerRequest {
            container_id,
            timeout,
        } = request.into_inner();
        assert_eq!(timeout, 0, "without grace");
        let hangs = {
            let mut world = self.called("StopContainer");
            world.stops.push(container_id.clone());
            world.hanging.contains(&container_id)
        };
        if hangs {
            return std::future::pending().await;
        }
        let mut world = self.0.lock();
        if let Some(successor) = world.replaced.remove(&container_id) {
            world.exit(&container_id, 7);
            let (sandbox, _) = world.containers.remove(&container_id).unwrap();
            world.run(sandbox.trim_start_matches("s-"), "main", &successor);
        }
        if !world.containers.contains_key(&container_id) {
            return Err(Status::not_found(format!("container {container_id:?}")));
        }
        world.exit(&container_id, 137);
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        let mut events = {
            let mut world = self.called("GetContainerEvents");
            if world.no_events {
                return Err(Status::unimplemented("unknown method GetContainerEvents"));
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            for event in std::mem::take(&mut world.queued) {
                sender.send(event).unwrap();
            }
            world.subscriber = Some(sender);
            world.subscribed.notify_waiters();
            receiver
        };
        // As in a Go server, the response arrives with the first event.
        let first = events.recv().await.map(Ok);
        let rest = stream::unfold(events, |mut events| async {
            Some((Ok(events.recv().await?), events))
        });
        Ok(Response::new(stream::iter(first).chain(rest).boxed()))
    }
}
