//! Minimal HTTP for loopback interfaces: one request per connection.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEADLINE: Duration = Duration::from_secs(5);

/// Body of a successful GET.
pub async fn get(address: &str, path: &str) -> Result<String> {
    request(address, "GET", path, "").await
}

/// Body of a successful POST of a JSON body.
pub async fn post(address: &str, path: &str, body: &serde_json::Value) -> Result<String> {
    request(address, "POST", path, &body.to_string()).await
}

async fn request(address: &str, method: &str, path: &str, body: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // With HTTP/1.0, the body ends with the connection and is never chunked.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let what = || format!("{method} http://{address}{path}");
    let answer = tokio::time::timeout(DEADLINE, exchange)
        .await
        .with_context(what)?
        .with_context(what)?;
    let (head, content) = answer.split_once("\r\n\r\n").with_context(what)?;
    let code: u16 = head
        .split(' ')
        .nth(1)
        .and_then(|c| c.parse().ok())
        .with_context(what)?;
    ensure!(
        (200..300).contains(&code),
        "{} {body}: {code} {content}",
        what()
    );
    Ok(content.to_owned())
}
