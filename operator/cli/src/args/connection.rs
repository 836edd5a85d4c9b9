use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as Group};

/// How to reach the cluster; names and meaning are kubectl's.
#[derive(Clone, Debug, Default, Group)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// Kubeconfig. Default: $KUBECONFIG, else ~/.kube/config, else the service account of the pod.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: the current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Cluster of the kubeconfig. Default: the cluster of the context.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// User of the kubeconfig. Default: the user of the context.
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to impersonate, with --as; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
    /// Bearer token. Overrides the credentials of the user.
    #[arg(long, global = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Address of the API server. Overrides the address of the cluster.
    #[arg(short, long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Timeout of one request, such as 5s or 2m; 0 disables the timeout.
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub request_timeout: Duration,
    /// Do not verify the certificate of the API server.
    #[arg(long, global = true)]
    pub insecure_skip_tls_verify: bool,
    /// File with the certificate authority of the API server.
    #[arg(long, global = true, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// Name in the certificate of the API server. Default: the host of its address.
    #[arg(long, global = true, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// Cache folder of kubectl, for the commands that run kubectl.
    #[arg(long, global = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// The flags of the command line, for kubectl.
    #[arg(skip)]
    pub given: Vec<OsString>,
}

impl Connection {
    /// The flags that a command line has, for kubectl.
    pub(super) fn words(matches: &ArgMatches) -> Vec<OsString> {
        let flags = Self::augment_args(clap::Command::new("options"));
        let of_line = Some(ValueSource::CommandLine);
        let given = flags
            .get_arguments()
            .map(|flag| (flag, flag.get_id().as_str()));
        let given = given.filter(|(_, id)| matches.value_source(id) == of_line);
        let words = given.flat_map(|(flag, id)| {
            let name = format!("--{}=", flag.get_long().unwrap_or_default());
            let values = matches.get_raw(id).into_iter().flatten();
            values.map(move |value| [name.as_ref(), value].into_iter().collect())
        });
        words.collect()
    }
}

/// A duration in Go's format; a number alone is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed: kube::core::Duration = text
        .parse()
        .map_err(|why| format!("not a duration such as 5s or 2m: {why}"))?;
    if parsed.is_negative() {
        return Err("a duration must not be negative".to_owned());
    }
    Ok(parsed.into())
}
