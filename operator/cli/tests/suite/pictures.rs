//! The pictures of screens in `docs/pictures`. `UPDATE_GOLDEN=1` draws them.

use std::path::Path;

use anstyle_svg::{Term, WIN10_CONSOLE};
use lockstep_api::TrainingWorkload;
use lockstep_cli::status::status;
use lockstep_cli::top::top;
use lockstep_cli::view::{RenderOptions, View};
use serde_json::{Value, json};

use crate::queueing::{answer, reserves, waits};
use crate::screens::{objects, restarting, with_status};
use crate::support::{now, workload};

/// Columns of the terminal. Wider pictures are too small to read on a page.
const COLUMNS: usize = 130;

/// A restarting, a running and a waiting workload.
fn workloads() -> [TrainingWorkload; 3] {
    let running = json!({"phase": "Running", "reason": "AllMembersReady", "ready": "8/8", "attempt": 1,
        "accounting": {"accelerators": 64}});
    let waiting = json!({"phase": "Pending", "reason": "Unschedulable", "ready": "0/2"});
    [
        with_status("llama", 4, &restarting()),
        with_status("segment", 8, &running),
        with_status("tuning", 2, &waiting),
    ]
    .map(workload)
}

/// Each command with its screen.
fn screens() -> [(&'static str, String); 3] {
    let options = RenderOptions {
        color: true,
        width: Some(COLUMNS),
        ..RenderOptions::plain(now())
    };
    let workloads = workloads();
    let short = "insufficient nvidia.com/gpu: 1 pod needs 8 more";
    let waiting: [(&str, i32, Value); 3] = [
        ("segment", 500, reserves(&["n1"])),
        ("tuning", 100, waits("Unschedulable", short)),
        (
            "ablation",
            100,
            waits("QuotaExceeded", "exceeded quota: compute"),
        ),
    ];
    [
        ("queue", answer(&waiting).screen(&options)),
        (
            "status llama",
            status(&objects(&restarting()), now()).screen(&options),
        ),
        ("top", top(&workloads, &[], Some(128)).screen(&options)),
    ]
}

#[test]
fn pictures_of_screens_are_what_the_commands_print() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    for (command, screen) in screens() {
        let verb = command.split(' ').next().unwrap();
        let path = folder.join(format!("{verb}.svg"));
        let text = format!("$ kubectl lockstep {command}\n{screen}");
        let drawn = Term::new().palette(WIN10_CONSOLE).render_svg(&text);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &drawn).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(
            kept == drawn,
            "{verb}.svg shows another screen: UPDATE_GOLDEN=1"
        );
    }
}
