//! MPIJob, and the launcher, hostfile and keys of MPI in other kinds.

use serde_json::{Value, json};

use crate::draft::{Draft, int, text};
use crate::error::{ConvertError, Result};
use crate::field::{Field, FieldsAt, mapped, noted, part};
use crate::hosts::{hosts, rename, roles};
use crate::kubeflow::{OBJECT, REPLICA_SPEC, RUN_POLICY, Roles, add_roles, apply_run_policy};
use crate::template::{self, add_variables, append, mount, show_files, training_container};

const FIELDS: &[Field] = &[
    mapped("slotsPerWorker", "slots in the hostfile"),
    noted(
        "cleanPodPolicy",
        "/spec",
        "not converted. At the end of a workload Lockstep terminates the pods that run, as with Running, and keeps finished pods.",
    ),
    mapped(
        "mainContainer",
        "annotation `kubectl.kubernetes.io/default-container` of the launcher",
    ),
    mapped(
        "sshAuthMountPath",
        "mount of the Secret with the SSH keys; default `/root/.ssh`",
    ),
    noted(
        "waitForWorkers",
        "/spec/groups",
        "not converted. Members start together, and ssh retries until the workers answer.",
    ),
    noted(
        "launcherCreationPolicy",
        "/spec/groups",
        "not converted. Members start together, and ssh retries until the workers answer.",
    ),
    mapped(
        "runLauncherAsWorker",
        "the launcher is in the hostfile, too",
    ),
    mapped(
        "mpiImplementation",
        "form of the hostfile and names of the variables: OpenMPI, Intel, MPICH",
    ),
];

pub const TABLE: &[FieldsAt] = &[
    part("spec.mpiReplicaSpecs.*.template", template::FIELDS),
    part("spec.mpiReplicaSpecs.*", REPLICA_SPEC),
    part("spec.runPolicy", RUN_POLICY),
    part("spec", FIELDS),
    part("", OBJECT),
];

/// Volume of the launcher with the hostfile.
const HOSTFILE: &str = "mpi-hostfile";
const FOLDER: &str = "/etc/mpi";
/// Script of mpi-operator that lists the running workers.
const DISCOVERY: &str = "/etc/mpi/discover_hosts.sh";

/// How the processes of a job find each other.
pub struct Mpi {
    /// Names of the groups.
    pub launcher: String,
    pub workers: Vec<String>,
    pub slots: i64,
    pub implementation: String,
    pub keys: String,
}

pub fn convert(draft: &mut Draft) -> Result<()> {
    add_roles(
        draft,
        &Roles {
            field: "mpiReplicaSpecs",
            names: &["Launcher", "Worker"],
            container: "mpi",
            port: "mpi-port",
            restart_policy: "OnFailure",
        },
    )?;
    rename(draft, &roles(draft), true)?;
    apply_run_policy(draft)?;
    let spec = draft.origin["spec"].clone();
    if let Some(main) = text(&spec, "mainContainer") {
        draft.groups_mut()?[0]["template"]["metadata"]["annotations"][template::TRAINING] =
            json!(main);
    }
    let mut workers = vec!["worker".to_owned()];
    if spec["runLauncherAsWorker"] == true {
        workers.insert(0, "launcher".to_owned());
    }
    workers.retain(|name| draft.groups().iter().any(|g| g["name"] == **name));
    if text(&draft.origin, "apiVersion") == Some("kubeflow.org/v1") {
        draft.note(
            "/spec/groups/0/template",
            "apiVersion: kubeflow.org/v1",
            "version 1 starts processes with kubectl exec. Here mpirun uses ssh: the image needs ssh and sshd.",
        );
    }
    if spec["mpiReplicaSpecs"].to_string().contains(DISCOVERY) {
        draft.note(
            "/spec/groups/0/template",
            DISCOVERY,
            "not written. A change of the members restarts all of them: start the program with the hostfile instead of --host-discovery-script.",
        );
    }
    let mpi = Mpi {
        launcher: "launcher".to_owned(),
        workers,
        slots: int(&spec, "spec", "slotsPerWorker")?.unwrap_or(1),
        implementation: text(&spec, "mpiImplementation")
            .unwrap_or("OpenMPI")
            .to_owned(),
        keys: text(&spec, "sshAuthMountPath")
            .unwrap_or("/root/.ssh")
            .to_owned(),
    };
    connect(draft, &mpi)
}

/// Gives the launcher a hostfile, all members the keys of ssh, and workers without a command sshd.
pub fn connect(draft: &mut Draft, mpi: &Mpi) -> Result<()> {
    let groups = draft
        .groups()
        .iter()
        .filter(|g| mpi.workers.iter().any(|w| g["name"] == **w));
    if !draft.groups().iter().any(|g| g["name"] == *mpi.launcher) {
        let name = mpi.launcher.clone();
        return Err(ConvertError::NoLauncher { name });
    }
    let hosts: Vec<String> = groups.flat_map(|group| hosts(draft, group)).collect();
    let line = |host: &String| match mpi.implementation.as_str() {
        "OpenMPI" => format!("{host} slots={}\n", mpi.slots),
        _ => format!("{host}:{}\n", mpi.slots),
    };
    let hostfile: String = hosts.iter().map(line).collect();
    let secret = format!("{}-ssh", draft.name());
    for group in draft.groups_mut()? {
        let launches = group["name"] == *mpi.launcher;
        let works = mpi.workers.iter().any(|w| group["name"] == **w);
        if !launches && !works {
            continue;
        }
        let template = &mut group["template"];
        mount(
            template,
            &json!({"name": "mpi-ssh", "secret": {"secretName": secret, "defaultMode": 0o600}}),
            &mpi.keys,
        );
        if launches {
            add_hostfile(template, &hostfile);
            if let Some(container) = training_container(template) {
                add_variables(container, &variables(mpi));
            }
        } else if let Some(container) = training_container(template)
            && container.get("command").is_none()
            && container.get("args").is_none()
        {
            container["command"] = json!(["/usr/sbin/sshd", "-De"]);
        }
    }
    draft.set("/spec/successPolicy/groups", json!([mpi.launcher]));
    let label = std::mem::take(&mut draft.label);
    draft.note(
        "/spec",
        "SSH keys",
        &format!(
            "create Secret {secret} first: ssh-keygen -t ed25519 -N '' -f key && kubectl create secret generic {secret} --from-file=id_rsa=key --from-file=id_rsa.pub=key.pub --from-file=authorized_keys=key.pub"
        ),
    );
    draft.label = label;
    Ok(())
}

fn add_hostfile(template: &mut Value, hostfile: &str) {
    let file = ("hostfile".to_owned(), hostfile.to_owned());
    show_files(template, HOSTFILE, "mpi-", &[file]);
    if let Some(container) = training_container(template) {
        let mount = json!({"name": HOSTFILE, "mountPath": FOLDER});
        append(container, "volumeMounts", mount);
    }
}

fn variables(mpi: &Mpi) -> Vec<(&'static str, String)> {
    let hostfile = format!("{FOLDER}/hostfile");
    let retry = "-o ConnectionAttempts=10".to_owned();
    match mpi.implementation.as_str() {
        "Intel" => vec![
            ("I_MPI_HYDRA_HOST_FILE", hostfile),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", retry),
            ("I_MPI_PERHOST", mpi.slots.to_string()),
        ],
        "MPICH" => vec![
            ("HYDRA_HOST_FILE", hostfile),
            ("HYDRA_LAUNCH_EXTRA_ARGS", retry),
        ],
        _ => vec![
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "true".to_owned()),
            ("OMPI_MCA_orte_default_hostfile", hostfile),
            ("OMPI_MCA_plm_rsh_args", retry),
            ("OMPI_MCA_orte_set_default_slots", mpi.slots.to_string()),
        ],
    }
}
