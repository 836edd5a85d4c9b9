//! Generates the container runtime interface in Rust without protoc: the agent's client, a server
//! for its tests, and a kubelet's client for tests with real runtimes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tonic_prost_build::{Builder, configure};

const AGENT: &str = "operator/agent/proto/api.proto";
const KUBELET: &str = "tests/kubelet/proto/kubelet.proto";
/// File name that the code generator gives package `runtime.v1`.
const GENERATED: &str = "runtime.v1.rs";

/// Path from the root and content of the generated files.
pub fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let client = || configure().build_server(false);
    let server = configure()
        .build_client(false)
        .generate_default_stubs(true)
        .extern_path(".runtime.v1", "crate::cri::api");
    let mut out = Vec::new();
    for (folder, proto, builder) in [
        ("operator/agent/src/cri/generated", AGENT, client()),
        ("operator/agent/src/tests/cri/generated", AGENT, server),
        ("tests/kubelet/src/runtime/cri/generated", KUBELET, client()),
    ] {
        out.push((
            Path::new(folder).join(GENERATED),
            generate(&root.join(proto), builder).context(proto)?,
        ));
    }
    Ok(out)
}

fn generate(proto: &Path, builder: Builder) -> Result<String> {
    let include = proto.parent().context("the folder of the proto file")?;
    let descriptors = protox::compile([proto], [include])?;
    let out = tempfile::tempdir().context("temporary folder")?;
    builder.out_dir(out.path()).compile_fds(descriptors)?;
    std::fs::read_to_string(out.path().join(GENERATED)).context("the generated code")
}
