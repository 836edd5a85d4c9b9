use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

use super::show::{WallClock, write};
use crate::args::{Connection, DashboardArgs};
use crate::cluster::{ClusterReader, LiveView, context_name};
use crate::dashboard::recorded::recorded;
use crate::dashboard::view::ReaderFacts;
use crate::file;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::serve::listen;

/// How long a browser may take to read the file with the address.
const BROWSER: Duration = Duration::from_secs(20);
/// A watch without a word for this time has failed.
const SILENCE: Duration = Duration::from_secs(90);

pub async fn dashboard(
    connection: &Connection,
    args: &DashboardArgs,
    clock: WallClock,
) -> Result<Outcome> {
    if args
        .view
        .as_ref()
        .is_some_and(|view| !view.starts_with("#/"))
    {
        bail!("--view does not begin with #/");
    }
    let (live, mut tasks, source) = match &args.snapshot {
        Some(path) => {
            let live = LiveView::of_file(recorded(file::read_snapshot(path)?), clock);
            let source = format!("snapshot {}", path.display());
            (Arc::new(live), JoinSet::new(), source)
        }
        None => read_cluster(connection, args, clock).await?,
    };
    let (mut address, server) = listen(live, args.port).await?;
    if let Some(view) = &args.view {
        // The page shows the view and removes the token from its address.
        let encoded: String = form_urlencoded::byte_serialize(view.as_bytes()).collect();
        address = format!("{address}&view={encoded}");
    }
    write(&format!(
        "Serving {address}  ({source}; read-only)  Ctrl-C ends it\n"
    ))?;
    if args.open {
        tasks.spawn(remove(open(&address)?));
    }
    server.await?;
    Ok(Outcome::Done)
}

async fn read_cluster(
    connection: &Connection,
    args: &DashboardArgs,
    clock: WallClock,
) -> Result<(Arc<LiveView>, JoinSet<()>, String)> {
    let cluster = ClusterReader::connect_with(connection, Some(SILENCE)).await?;
    let mut namespace = args.scope.namespace.clone();
    if namespace.is_none() {
        match cluster.selected(None, "").await {
            Err(Problem::NotAllowed { .. }) if !args.scope.all_namespaces => {
                namespace = Some(cluster.namespace().to_owned());
            }
            // Pages say what is missing.
            Ok(_) | Err(Problem::NotAllowed { .. } | Problem::NotInstalled { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let facts = ReaderFacts {
        context: context_name(connection),
        user: cluster.user().await,
        server: cluster.server().to_owned(),
    };
    let user = facts.user.as_deref().unwrap_or("unknown");
    let mut source = format!("context {}, user {user}", facts.context);
    if let Some(namespace) = &namespace {
        source = format!("{source}, namespace {namespace}");
    }
    let (live, tasks) = LiveView::start(cluster, facts, namespace, clock).await;
    Ok((live, tasks, source))
}

/// Opens the address in a browser, by a file that only this user can read: other users of the
/// machine see the arguments of programs.
fn open(address: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("lockstep-dashboard-{}.html", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let page = address.replace('&', "&amp;").replace('"', "&quot;");
    let page = format!("<meta http-equiv=\"refresh\" content=\"0; url={page}\">\n");
    let written = options
        .open(&path)
        .and_then(|mut f| f.write_all(page.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut command = Command::new(program);
    command
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        note!("warning: cannot run {program}: {error}");
    }
    Ok(path)
}

async fn remove(path: PathBuf) {
    tokio::time::sleep(BROWSER).await;
    // The file may be gone.
    let _ = std::fs::remove_file(path);
}
