//! An API server with prepared answers, one connection each.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// The workloads of the namespace in most tests.
pub const WORKLOADS: &str = "/apis/training.lockstep.dev/v1alpha1/namespaces/ml/trainingworkloads";

/// A received request: method, path with query, body.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Value,
}

/// The server; it ends with the test.
pub struct ApiServer {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl ApiServer {
    /// Answers every request with the function's status code and object.
    pub fn start(answer: impl Fn(&Request) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else {
                    continue;
                };
                seen.lock().unwrap().push(request.clone());
                let (code, object) = answer(&request);
                let text = match &object {
                    Value::String(text) => text.clone(),
                    object => object.to_string(),
                };
                let head = format!(
                    "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    text.len()
                );
                let _ = (&stream).write_all((head + &text).as_bytes());
            }
        });
        Self { address, requests }
    }

    /// A server with these lists by path, without query.
    pub fn with(lists: &[(&str, Vec<Value>)]) -> Self {
        let lists: BTreeMap<String, Vec<Value>> = lists
            .iter()
            .map(|(path, items)| ((*path).to_owned(), items.clone()))
            .collect();
        Self::start(move |request| {
            let path = request.path.split('?').next().unwrap_or_default();
            find_entry(&lists, path, |_| true)
        })
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answer of a server with these lists by path: the selected objects of a list, or one of its
/// objects.
pub fn find_entry<P: Borrow<str> + Ord>(
    lists: &BTreeMap<P, Vec<Value>>,
    path: &str,
    selected: impl Fn(&Value) -> bool,
) -> (u16, Value) {
    if let Some(items) = lists.get(path) {
        let items: Vec<&Value> = items.iter().filter(|o| selected(o)).collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
        return (200, list);
    }
    let found = path.rsplit_once('/').and_then(|(list, name)| {
        let mut items = lists.get(list)?.iter();
        items.find(|o| o["metadata"]["name"] == name)
    });
    let missing = "the server could not find the requested resource";
    found.map_or_else(
        || refusal(404, "NotFound", missing),
        |object| (200, object.clone()),
    )
}

/// A refusal in the API server's format.
pub fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, status)
}

pub fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
