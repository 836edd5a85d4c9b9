//! Bearer tokens of users, nodes and components, and the webhook that reviews them.
//!
//! A token names its user: `user:NAME[:GROUP,...]`, `node:NAME` or `component:NAME`. The API server
//! issues the tokens of service accounts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::control_plane::config_file;

/// Limit of a token review in bytes.
const MOST_BYTES: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(5);

/// The webhook, which answers until this process ends.
#[derive(Debug)]
pub(crate) struct TokenReviewer {
    address: SocketAddr,
}

impl TokenReviewer {
    /// Listens on a free port of the loopback interface.
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen for token reviews")?;
        let address = listener.local_addr()?;
        // A thread instead of a task, because the cluster outlives the runtime of the test that
        // started it.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The server retries if an answer is missing.
                let _ = answer(stream);
            }
        });
        Ok(Self { address })
    }

    /// Writes the kubeconfig with which the API server finds this webhook.
    pub(crate) fn kubeconfig(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("tokens.kubeconfig");
        let cluster = json!({"server": format!("http://{}/", self.address)});
        std::fs::write(&path, config_file(&cluster, &json!({})).to_string())?;
        Ok(path)
    }
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse()?;
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    ensure!(length <= MOST_BYTES, "a token review of {length} bytes");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let answer = review(serde_json::from_slice(&body)?).to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    )?;
    Ok(())
}

/// Fills the status of a `TokenReview`.
fn review(mut review: Value) -> Value {
    let user = review["spec"]["token"].as_str().and_then(spelled);
    review["status"] = match user {
        Some(user) => {
            json!({"authenticated": true, "user": user, "audiences": review["spec"]["audiences"]})
        }
        None => json!({"authenticated": false}),
    };
    review
}

/// The user named by a token.
fn spelled(token: &str) -> Option<Value> {
    let (kind, rest) = token.split_once(':')?;
    let parts: Vec<&str> = rest.split(':').collect();
    match (kind, parts.as_slice()) {
        ("component", [name]) => Some(json!({"username": format!("system:{name}"), "groups": []})),
        ("node", [name]) => {
            Some(json!({"username": format!("system:node:{name}"), "groups": ["system:nodes"]}))
        }
        ("user", [name, ..]) => {
            // Names of groups can contain colons: system:nodes.
            let groups = rest
                .split_once(':')
                .map_or_else(Vec::new, |(_, groups)| groups.split(',').collect());
            Some(json!({"username": name, "groups": groups}))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_user_and_groups() {
        let nodes = spelled("user:hollow:system:nodes,other").unwrap();
        assert_eq!(
            nodes,
            json!({"username": "hollow", "groups": ["system:nodes", "other"]})
        );
        assert_eq!(spelled("user:u").unwrap()["groups"], json!([]));
        assert_eq!(
            spelled("component:kube-scheduler").unwrap()["username"],
            "system:kube-scheduler"
        );
        assert_eq!(spelled("node:n").unwrap()["username"], "system:node:n");
    }

    #[test]
    fn a_token_of_another_form_is_nobodys() {
        for token in ["", "secret", "node:a:b", "root:x"] {
            let answer = review(json!({"spec": {"token": token}}));
            assert_eq!(answer["status"], json!({"authenticated": false}), "{token}");
        }
    }

    #[test]
    fn the_webhook_answers_over_http() {
        let reviewer = TokenReviewer::start().unwrap();
        let mut stream = TcpStream::connect(reviewer.address).unwrap();
        let body = json!({"spec": {"token": "user:me", "audiences": ["api"]}}).to_string();
        write!(
            stream,
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        let review: Value = serde_json::from_str(body).unwrap();
        assert_eq!(review["status"]["user"]["username"], "me");
        assert_eq!(review["status"]["audiences"], json!(["api"]));
    }
}
