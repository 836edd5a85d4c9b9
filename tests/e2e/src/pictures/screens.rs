//! Output of `kubectl lockstep` on a terminal, as pictures of text.

use std::path::Path;
use std::time::Duration;

use anstyle_svg::{Term, WIN10_CONSOLE};
use anyhow::Result;
use lockstep_cluster::Cluster;
use lockstep_cluster::process::{run, workspace_binary};
use lockstep_e2e::wrapped::wrapped;

use crate::story::SHOWN;

/// Limit for a command.
const PATIENCE: Duration = Duration::from_mins(1);

/// Column after which lines are wrapped. Wider pictures are too small to read on a page.
const COLUMNS: usize = 150;

/// Runs the verbs for users and writes a picture of each into a folder.
pub async fn take(cluster: &Cluster, out: &Path) -> Result<()> {
    let (namespace, name) = SHOWN;
    for (file, args) in [
        ("list", &["list", "-A"][..]),
        ("queue", &["queue"]),
        ("status", &["status", name, "-n", namespace]),
        ("top", &["top"]),
    ] {
        let kubeconfig = cluster.kubeconfig().display().to_string();
        // Colours although the output is no terminal.
        let env = [("KUBECONFIG", &*kubeconfig), ("CLICOLOR_FORCE", "1")];
        let said = run(&workspace_binary("kubectl-lockstep")?, args, &env, PATIENCE).await?;
        let screen = format!("$ kubectl lockstep {}\n{said}", args.join(" "));
        let path = out.join(format!("{file}.svg"));
        let term = Term::new().palette(WIN10_CONSOLE);
        std::fs::write(&path, term.render_svg(&wrapped(&screen, COLUMNS)))?;
        println!("{}", path.display());
    }
    Ok(())
}
