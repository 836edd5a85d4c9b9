//! An API server whose objects can be watched, changed and cut off.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use crate::dashboard_fixture::Lists;
use crate::server::{Request, read, refusal};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    All,
    /// Namespace `ml` only.
    Tenant,
    /// Lists of all kinds, and no watch.
    NoWatch,
    None,
}

pub struct LiveServer {
    pub address: String,
    state: Arc<Served>,
}

struct Served {
    rights: Rights,
    lists: Mutex<Lists>,
    /// Path and connection of each open watch.
    watches: Mutex<Vec<(String, TcpStream)>>,
    down: AtomicBool,
    /// Kind whose lists wait, and how many have come.
    held: Mutex<Option<(&'static str, usize)>>,
    released: Condvar,
    version: AtomicU64,
}

impl LiveServer {
    pub fn start(lists: Lists, rights: Rights) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Served {
            rights,
            lists: Mutex::new(lists),
            watches: Mutex::default(),
            down: AtomicBool::new(false),
            held: Mutex::default(),
            released: Condvar::new(),
            version: AtomicU64::new(1),
        });
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.answer(stream));
            }
        });
        Self { address, state }
    }

    /// Changes an object of a list.
    pub fn change(&self, path: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let version = self.state.version.fetch_add(1, Ordering::SeqCst) + 1;
        let mut lists = self.state.lists.lock().unwrap();
        let items = lists.get_mut(path).unwrap();
        let object = items
            .iter_mut()
            .find(|o| o["metadata"]["name"] == name)
            .unwrap();
        change(object);
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let event = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
        for (watched, stream) in self.state.watches.lock().unwrap().iter_mut() {
            if *watched == path {
                let _ = stream.write_all(event.as_bytes());
            }
        }
    }

    /// Ends all connections and answers no more.
    pub fn cut(&self) {
        self.state.down.store(true, Ordering::SeqCst);
        for (_, stream) in self.state.watches.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lists of this kind wait until `release`.
    pub fn hold(&self, kind: &'static str) {
        *self.state.held.lock().unwrap() = Some((kind, 0));
    }

    /// Ends `hold`. Returns how many lists have come.
    pub fn release(&self) -> usize {
        let held = self.state.held.lock().unwrap().take();
        self.state.released.notify_all();
        held.map_or(0, |(_, lists)| lists)
    }

    pub fn restore(&self) {
        self.state.down.store(false, Ordering::SeqCst);
    }
}

impl Served {
    fn answer(&self, mut stream: TcpStream) {
        if self.down.load(Ordering::SeqCst) {
            return;
        }
        let Some(request) = read(&stream) else {
            return;
        };
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let watches = query.contains("watch=true");
        let refused = self.refused(&request, path, watches);
        if watches && refused.is_none() {
            let head =
                "HTTP/1.1 200 X\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(head.as_bytes());
            let open = stream.try_clone().unwrap();
            self.watches
                .lock()
                .unwrap()
                .push((all_namespaces(path).0, open));
            // Until the client or the test ends it.
            let _ = stream.read(&mut [0; 1]);
            return;
        }
        let mut kind = self.held.lock().unwrap();
        if let Some((_, lists)) = kind.as_mut().filter(|(kind, _)| path.ends_with(kind)) {
            *lists += 1;
            kind = self.released.wait_while(kind, |k| k.is_some()).unwrap();
        }
        drop(kind);
        let (code, object) = refused.unwrap_or_else(|| self.found(&request, path, query));
        let text = object.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        let _ = stream.write_all((head + &text).as_bytes());
    }

    fn refused(&self, request: &Request, path: &str, watches: bool) -> Option<(u16, Value)> {
        let reviews = path.contains("selfsubject") || path == "/version" || path == "/apis";
        let allowed = match self.rights {
            Rights::All => true,
            Rights::NoWatch => !watches,
            Rights::Tenant => path.contains("/namespaces/ml/"),
            Rights::None => false,
        };
        if allowed || reviews {
            return None;
        }
        let verb = match request.method.as_str() {
            "GET" if watches => "watch",
            "GET" => "list",
            _ => "create",
        };
        let place = match path
            .split_once("/namespaces/")
            .and_then(|(_, rest)| rest.split_once('/'))
        {
            Some((namespace, _)) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let resource = path.rsplit('/').next().unwrap_or_default();
        let group = path
            .strip_prefix("/apis/")
            .and_then(|p| p.split('/').next());
        let group = group.unwrap_or_default();
        let message = format!(
            "{resource} is forbidden: User \"ana\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
        );
        Some(refusal(403, "Forbidden", &message))
    }

    fn found(&self, request: &Request, path: &str, query: &str) -> (u16, Value) {
        if path.ends_with("/selfsubjectreviews") {
            return (
                201,
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
                "status": {"userInfo": {"username": "ana"}}}),
            );
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let mut review = request.body.clone();
            review["status"] = json!({"allowed": true});
            return (201, review);
        }
        if path == "/version" {
            return (
                200,
                json!({"major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            );
        }
        if path == "/apis" {
            return (
                200,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
            );
        }
        let (path, namespace) = all_namespaces(path);
        let lists = self.lists.lock().unwrap();
        let parameters = form_urlencoded::parse(query.as_bytes());
        let labels: Vec<String> = parameters
            .filter(|(name, _)| name == "labelSelector")
            .map(|(_, value)| value.into_owned())
            .collect();
        let here = |object: &&Value| {
            let own = object["metadata"]["namespace"].as_str();
            let selected = |selector: &String| match selector.split_once('=') {
                Some((key, value)) => object["metadata"]["labels"][key] == value,
                None => selector.is_empty() || object["metadata"]["labels"].get(selector).is_some(),
            };
            (namespace.is_none() || own == namespace.as_deref()) && labels.iter().all(selected)
        };
        if let Some(items) = lists.get(&path) {
            let items: Vec<&Value> = items.iter().filter(here).collect();
            let version = self.version.load(Ordering::SeqCst).to_string();
            return (
                200,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version},
                "items": items}),
            );
        }
        let object = path.rsplit_once('/').and_then(|(list, name)| {
            let mut items = lists.get(list)?.iter().filter(here);
            items.find(|o| o["metadata"]["name"] == name)
        });
        match object {
            Some(object) => (200, object.clone()),
            None => refusal(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ),
        }
    }
}

/// The path without its namespace, and the namespace.
fn all_namespaces(path: &str) -> (String, Option<String>) {
    let parts = path.split_once("/namespaces/").and_then(|(before, after)| {
        let (namespace, after) = after.split_once('/')?;
        Some((format!("{before}/{after}"), Some(namespace.to_owned())))
    });
    parts.unwrap_or_else(|| (path.to_owned(), None))
}
