//! Misbehaving peers of a tenant in place of a supervisor. A correct supervisor of another pod
//! still works.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use chrono::DateTime;
use lockstep_agent::supervisors::Supervisors;
use lockstep_api::workload::ProgressMetric;
use lockstep_node::{ChildProgress, SupervisorState};
use lockstep_supervisor_protocol::{
    FromSupervisor, Message, Progress, SOCKET, Text, VERSIONS, Versions,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::node::{Node, held, running};
use crate::process::Supervisor;

const TRAINING: &str = "sleep 1000";

/// Serves each connection to a socket in the folder in its own thread, until the process ends.
fn serve(folder: &Path, serve: impl Fn(UnixStream) + Send + Clone + 'static) {
    let listener = UnixListener::bind(folder.join(SOCKET)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            thread::spawn(move || serve(stream));
        }
    });
}

fn hello(versions: Versions) -> Vec<u8> {
    FromSupervisor::Hello {
        versions,
        pod_uid: Text::cut("another"),
        start_id: 1,
    }
    .encode()
}

/// Sends bytes, then reads until the peer closes.
fn says(bytes: Vec<u8>) -> impl Fn(UnixStream) + Send + Clone + 'static {
    move |mut stream| {
        // The peer may close before it has read everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

/// The first pod has a working supervisor, the second whatever `spoil` creates. The second is
/// refused repeatedly for this reason.
async fn is_refused(reason: &str, spoil: impl FnOnce(&Path, &Node)) {
    let mut node = Node::new(&["good", "bad"]);
    let _good = Supervisor::start(&node.volume("good"), TRAINING);
    node.sees(&[Some(held(0)), None]).await;
    spoil(&node.volume("bad"), &node);
    let metric = format!("refused_total{{reason=\"{reason}\"}}");
    node.counted(&metric, 2).await;
    node.starts(0, 1).await;
    node.sees(&[Some(running(1)), None]).await;
}

#[tokio::test]
async fn a_link_in_the_place_of_the_volume_is_not_followed() {
    is_refused("path", |volume, node| {
        fs::remove_dir(volume).unwrap();
        symlink(node.volume("good"), volume).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_link_in_the_place_of_the_socket_is_not_followed() {
    is_refused("path", |volume, node| {
        symlink(node.volume("good").join(SOCKET), volume.join(SOCKET)).unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    is_refused("path", |volume, node| {
        fs::write(volume.join(SOCKET), "").unwrap();
        // A process that opened the pipe would block until a writer opens it.
        let pipe = node.elsewhere().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::rename(&pipe, volume.join(SOCKET)).unwrap();
    })
    .await;
    is_refused("path", |volume, _| {
        fs::create_dir(volume.join(SOCKET)).unwrap();
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_frames_are_refused() {
    for bytes in [
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        vec![0; 100],
        [hello(VERSIONS), vec![0xff; 100_000]].concat(),
        [hello(VERSIONS), hello(VERSIONS)].concat(),
        [
            hello(VERSIONS),
            FromSupervisor::Arrived { attempt: u64::MAX }.encode(),
        ]
        .concat(),
    ] {
        is_refused("frame", |volume, _| serve(volume, says(bytes))).await;
    }
}

#[tokio::test]
async fn a_connection_without_a_greeting_is_refused() {
    let arrived = FromSupervisor::Arrived { attempt: 1 }.encode();
    is_refused("greeting", |volume, _| serve(volume, says(arrived))).await;
}

#[tokio::test]
async fn a_supervisor_of_another_time_is_refused() {
    let versions = Versions {
        oldest: 7,
        newest: 9,
    };
    is_refused("version", |volume, _| serve(volume, says(hello(versions)))).await;
}

#[tokio::test]
async fn frames_without_end_are_refused() {
    let flood = |mut stream: UnixStream| {
        let mut bytes = hello(VERSIONS);
        while stream.write_all(&bytes).is_ok() {
            bytes = [
                FromSupervisor::Arrived { attempt: 1 }.encode(),
                FromSupervisor::Started { attempt: 1 }.encode(),
            ]
            .concat();
        }
    };
    is_refused("flood", |volume, _| serve(volume, flood)).await;
}

#[tokio::test]
async fn a_silent_supervisor_does_not_delay_other_supervisors() {
    let mut node = Node::new(&["good", "bad"]);
    let _good = Supervisor::start(&node.volume("good"), TRAINING);
    serve(&node.volume("bad"), says(Vec::new()));
    node.sees(&[Some(held(0)), None]).await;
    node.starts(0, 1).await;
    node.sees(&[Some(running(1)), None]).await;
}

/// Paused time advances, because no data arrives.
#[tokio::test(start_paused = true)]
async fn one_that_says_nothing_is_refused_in_the_end() {
    let mut node = Node::new(&["bad"]);
    serve(&node.volume("bad"), says(Vec::new()));
    node.links.observe(&mut node.pods);
    node.counted("refused_total{reason=\"greeting\"}", 2).await;
}

#[tokio::test]
async fn one_that_closes_at_once_is_tried_again() {
    let mut node = Node::new(&["good", "bad"]);
    let _good = Supervisor::start(&node.volume("good"), TRAINING);
    let (met, meets) = std::sync::mpsc::channel();
    let closes = move |mut stream: UnixStream| {
        stream.write_all(&hello(VERSIONS)).unwrap();
        let mut welcome = [0; 4];
        stream.read_exact(&mut welcome).unwrap();
        met.send(()).unwrap();
    };
    serve(&node.volume("bad"), closes);
    node.sees_one(0, &held(0)).await;
    tokio::task::spawn_blocking(move || meets.iter().take(3).count())
        .await
        .unwrap();
    node.starts(0, 1).await;
}

#[tokio::test]
async fn supervisors_of_both_versions_report_progress_and_the_second_takes_requests() {
    let mut node = Node::new(&["old", "new"]);
    for (uid, newest) in [("old", 1), ("new", 2)] {
        let progress = FromSupervisor::Progress(Progress {
            attempt: 1,
            step: 7,
            step_time: 1_000_000,
            checkpoint: None,
            words: Text::cut("total=9 loss=0.5"),
        });
        let frames = [
            hello(Versions { oldest: 1, newest }),
            FromSupervisor::Started { attempt: 1 }.encode(),
            progress.encode_for(newest).unwrap(),
        ];
        serve(&node.volume(uid), says(frames.concat()));
    }
    let seen = |total, metrics| SupervisorState {
        progress: Some(ChildProgress {
            attempt: 1,
            step: (7, DateTime::from_timestamp(1_000_000, 0).unwrap()),
            checkpoint: None,
            total,
            metrics,
        }),
        ..running(1)
    };
    let loss = ProgressMetric {
        name: "loss".to_owned(),
        value: "0.5".to_owned(),
    };
    let old = SupervisorState {
        takes_requests: false,
        ..seen(None, Vec::new())
    };
    node.sees(&[Some(old), Some(seen(Some(9), vec![loss]))])
        .await;
}
