//! Fields of log lines.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use lockstep_common::log::{LogArgs, LogFormat};
use lockstep_manager::run;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fake_api::FakeApi;
use crate::smoke::{PODS, WORKLOADS, deps, node, within, workload};

/// Captured log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The fields of the span in each line of a module.
fn spans(lines: &Lines, module: &str) -> Vec<Value> {
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let all = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let of_module = all.filter(|line: &Value| line["target"].as_str().unwrap().starts_with(module));
    of_module.map(|mut line| line["span"].take()).collect()
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_reconcile_name_its_workload_and_lines_of_a_cycle_its_number() {
    let lines = Lines::default();
    let args = LogArgs {
        log_format: LogFormat::Json,
        log_level: "debug".parse().unwrap(),
    };
    let written = lines.clone();
    let (log, _handle) = args.log(move || written.clone(), false);
    let _here = tracing::dispatcher::set_default(&log);
    let api = FakeApi::new();
    for name in ["n1", "n2"] {
        api.put("api/v1/nodes", node(name));
    }
    api.put(WORKLOADS, workload("llama"));
    let stop = CancellationToken::new();
    let manager = run(deps(&api, "a", &stop));
    let story = async {
        within(api.until(PODS, |pods| pods.len() == 2)).await;
        within(api.until(WORKLOADS, |w| w[0]["status"]["phase"] == "Starting")).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(manager, story);
    ended.unwrap();
    let reconciles = spans(&lines, "lockstep_manager::workload");
    for span in &reconciles {
        assert_eq!(
            (&span["name"], &span["workload"]),
            (&json!("reconcile"), &json!("ml/llama"))
        );
    }
    assert!(
        reconciles.iter().any(|span| span["attempt"] == 1),
        "{reconciles:?}"
    );
    let cycles = spans(&lines, "lockstep_manager::scheduler");
    assert!(!cycles.is_empty());
    for span in &cycles {
        assert_eq!(span["name"], "cycle");
        assert!(span["number"].as_u64().unwrap() > 0, "{span}");
    }
}
