//! Pseudonyms, the same in a whole archive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use lockstep_api::names::{MANAGED_BY, WHOLE};
use serde_json::Value;

use super::content::{Content, NameKind, TRUSTED};
use super::texts::{LEFT_OUT, output, without_addresses};

/// Names that many clusters have, those of Lockstep, and words of its messages.
const KEPT: [&str; 31] = [
    "agent",
    "amd64",
    "arm64",
    "container",
    "cpu",
    "default",
    "default-scheduler",
    "error",
    "false",
    "gang",
    "gpu",
    "kube-node-lease",
    "kube-public",
    "kube-system",
    "kubelet",
    "linux",
    "lockstep",
    "lockstep-agent",
    "lockstep-leader",
    "lockstep-manager",
    "manager",
    "memory",
    "node",
    "nvidia",
    "pod",
    "spot",
    "success",
    "train",
    "true",
    MANAGED_BY,
    WHOLE,
];
/// Fields whose content is hidden in texts, too.
const HIDDEN: [&str; 5] = ["annotations", "args", "command", "message", "value"];
/// Fields with names of objects that are not copied.
const NAMES: [&str; 6] = [
    "claimName",
    "resourceClaimName",
    "runtimeClassName",
    "secretName",
    "serviceAccountName",
    "storageClassName",
];
/// Fields of which each text is hidden or a name.
const WHOLE_FIELDS: [&str; 14] = [
    "addresses",
    "envFrom",
    "hostAliases",
    "hostIP",
    "hostIPs",
    "imagePullSecrets",
    "podIP",
    "podIPs",
    "resourceClaims",
    "runtimeClassName",
    "storageClassName",
    "valueFrom",
    "volumeMounts",
    "volumes",
];
/// Lengths of text that is hidden in other texts: shorter text is too common, longer text is not quoted.
const HIDDEN_LENGTHS: std::ops::RangeInclusive<usize> = 4..=1024;
/// Shortest text of a volume, an address and the like that is hidden.
const SHORTEST: usize = 3;
/// Longest number that is no name, such as the index of a member.
const NUMBER: usize = 6;

/// What the archive must not contain.
#[derive(Clone, Debug, Default)]
pub struct Found {
    names: BTreeMap<String, NameKind>,
    hidden: BTreeSet<String>,
}

impl Found {
    pub fn name(&mut self, kind: NameKind, name: &str) {
        let kept = match kind {
            NameKind::Value => is_common(name),
            NameKind::Class => KEPT.contains(&name) || name.starts_with("system-"),
            _ => KEPT.contains(&name) || TRUSTED.contains(&name),
        };
        if kept || name.is_empty() {
            return;
        }
        let known = self.names.entry(name.to_owned()).or_insert(kind);
        *known = kind.min(*known);
    }

    /// The names of a copied string.
    pub fn content(&mut self, content: Content, text: &str) {
        match content {
            Content::Name(kind) => self.name(kind, text),
            Content::Image => self.name(NameKind::Image, repository(text).0),
            Content::Group => {
                let (namespace, name) = text.split_once('/').unwrap_or(("", text));
                self.name(NameKind::Namespace, namespace);
                self.name(NameKind::PodGroup, name);
            }
            Content::Plain | Content::Text | Content::Checked => {}
        }
    }

    /// Text of a dropped field that may be quoted in a message: environment, arguments, annotations,
    /// messages of containers, volumes, addresses. Notes names of objects that are not copied, too.
    pub fn dropped(&mut self, field: &str, value: &Value) {
        match value {
            _ if WHOLE_FIELDS.contains(&field) => self.whole(field, value),
            Value::String(text) if HIDDEN.contains(&field) => self.hide(text),
            Value::String(text) if NAMES.contains(&field) => self.name(NameKind::Name, text),
            Value::Array(all) => all.iter().for_each(|v| self.dropped(field, v)),
            Value::Object(all) => {
                for (name, value) in all {
                    let field = if field == "annotations" { field } else { name };
                    self.dropped(field, value);
                }
            }
            _ => {}
        }
    }

    fn whole(&mut self, field: &str, value: &Value) {
        match value {
            Value::String(text) if text.len() < SHORTEST => {}
            Value::String(text) if field == "name" || NAMES.contains(&field) => {
                self.name(NameKind::Name, text);
            }
            Value::String(text) if !is_common(text) => {
                self.hidden.insert(text.clone());
            }
            Value::Array(all) => all.iter().for_each(|v| self.whole(field, v)),
            Value::Object(all) => all.iter().for_each(|(name, v)| self.whole(name, v)),
            _ => {}
        }
    }

    fn hide(&mut self, text: &str) {
        let assigned = text.split_once('=').map(|(_, value)| value);
        for text in [Some(text), assigned].into_iter().flatten() {
            let text = text.trim_end_matches(['.', ' ', '\n']);
            if HIDDEN_LENGTHS.contains(&text.len()) && !is_common(text) {
                self.hidden.insert(text.to_owned());
            }
        }
    }
}

/// Replaces names and hidden text.
#[derive(Debug, Default)]
pub struct Pseudonyms {
    /// By name, or hidden text.
    replaced: HashMap<String, String>,
    /// First words of these texts.
    first: HashSet<String>,
    longest: usize,
    /// True if texts may contain output of programs.
    logs: bool,
}

impl Pseudonyms {
    /// Numbers the names of each kind in their order. Without `pseudonyms`, names stay.
    pub fn new(found: &Found, pseudonyms: bool, logs: bool) -> Self {
        let mut replaced: HashMap<String, String> = HashMap::new();
        for (kind, prefix) in NameKind::ALL {
            let of_kind = found.names.iter().filter(|(_, of)| **of == kind);
            let names: Vec<&String> = of_kind.map(|(name, _)| name).collect();
            // Numbers of equal length keep the order that settles ties.
            let width = names.len().to_string().len();
            for (number, name) in (1..).zip(names) {
                let pseudonym = format!("{prefix}-{number:0width$}");
                let new = if pseudonyms { pseudonym } else { name.clone() };
                replaced.insert(name.clone(), new);
            }
        }
        for text in &found.hidden {
            replaced
                .entry(text.clone())
                .or_insert_with(|| LEFT_OUT.to_owned());
        }
        Self {
            first: replaced.keys().map(|k| word(k, 0).to_owned()).collect(),
            longest: replaced.keys().map(String::len).max().unwrap_or_default(),
            replaced,
            logs,
        }
    }

    /// Sets the pseudonym of a pod group, whose name depends on that of its workload.
    pub fn set(&mut self, name: String, pseudonym: String) {
        self.replaced.insert(name, pseudonym);
    }

    /// Lines `PSEUDONYM<TAB>NAME`.
    pub fn table(&self) -> String {
        let names = self.replaced.iter().filter(|(_, new)| *new != LEFT_OUT);
        let lines: BTreeSet<String> = names
            .map(|(name, new)| format!("{new}\t{name}\n"))
            .collect();
        lines.into_iter().collect()
    }

    pub fn replace(&self, content: Content, text: &mut String) {
        *text = match content {
            Content::Plain => return,
            Content::Name(_) => match self.replaced.get(text.as_str()) {
                Some(new) => new.clone(),
                None => return,
            },
            Content::Image => {
                let (name, version) = repository(text);
                let new = self.replaced.get(name).map_or(name, String::as_str);
                format!("{new}{version}")
            }
            Content::Group => {
                let new = |name| self.replaced.get(name).map_or(name, String::as_str);
                let (namespace, name) = text.split_once('/').unwrap_or(("", text));
                format!("{}/{}", new(namespace), new(name))
            }
            Content::Text | Content::Checked => self.text(text),
        };
    }

    /// A text with pseudonyms, longest names first, and without output of programs.
    pub fn text(&self, text: &str) -> String {
        let end = if self.logs { None } else { output(text) };
        let mut out = without_addresses(&self.named(&text[..end.unwrap_or(text.len())]));
        if end.is_some() {
            out.push_str(LEFT_OUT);
        }
        out
    }

    fn named(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while let Some(next) = text[at..].chars().next() {
            if let Some((end, new)) = self.at(text, at) {
                out.push_str(new);
                at = end;
            } else {
                out.push(next);
                at += next.len_utf8();
            }
        }
        out
    }

    /// End and replacement of the longest name that begins here.
    fn at(&self, text: &str, at: usize) -> Option<(usize, &str)> {
        if !is_edge(text, at) || !self.first.contains(word(text, at)) {
            return None;
        }
        let ends = (at + 1..=text.len().min(at + self.longest)).rev();
        let mut ends = ends.filter(|end| is_edge(text, *end));
        ends.find_map(|end| Some((end, self.replaced.get(&text[at..end])?.as_str())))
    }
}

/// True for text that identifies nothing.
fn is_common(text: &str) -> bool {
    let is_number = text.len() <= NUMBER && text.bytes().all(|b| b.is_ascii_digit());
    is_number || KEPT.contains(&text) || TRUSTED.contains(&text)
}

/// Name of an image, and its tag and digest. Text of another form is a name.
fn repository(image: &str) -> (&str, &str) {
    if is_digest(image) {
        return ("", image);
    }
    let end = match image.rfind('@') {
        Some(at) if is_digest(&image[at + 1..]) => at,
        _ => image.len(),
    };
    let tag = image[..end]
        .rfind(':')
        .filter(|at| is_tag(&image[at + 1..end]));
    image.split_at(tag.unwrap_or(end))
}

fn is_digest(text: &str) -> bool {
    let (algorithm, hex) = text.split_once(':').unwrap_or_default();
    ["sha256", "sha384", "sha512"].contains(&algorithm)
        && !hex.is_empty()
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

/// Letters and digits from a position on, or one other character.
fn word(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    let end = rest.find(|c: char| !c.is_alphanumeric());
    let one = rest.chars().next().map_or(0, char::len_utf8);
    &rest[..end.unwrap_or(rest.len()).max(one)]
}

/// True between two characters that are not both letters or digits.
fn is_edge(text: &str, at: usize) -> bool {
    let within = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.is_char_boundary(at)
        && !(within(text[..at].chars().next_back()) && within(text[at..].chars().next()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pseudonyms(names: &[(NameKind, &str)], hidden: &Value) -> Pseudonyms {
        let mut found = Found::default();
        for (kind, name) in names {
            found.name(*kind, name);
        }
        found.dropped("spec", hidden);
        Pseudonyms::new(&found, true, false)
    }

    #[test]
    fn names_in_messages_are_replaced_whole_and_the_longest_first() {
        let names = [
            (NameKind::Workload, "llama"),
            (NameKind::Pod, "llama-workers-0"),
            (NameKind::Group, "workers"),
            (NameKind::Node, "llama"),
            (NameKind::Image, "reg.example/team/trainer"),
        ];
        let of = pseudonyms(&names, &json!({}));
        for (text, expected) in [
            ("pod llama-workers-0 of llama", "pod pod-1 of node-1"),
            ("llama-workers-7 llamas", "node-1-group-1-7 llamas"),
            ("workers/0/1-3, größe", "group-1/0/1-3, größe"),
            (
                "image \"reg.example/team/trainer:1\"",
                "image \"image-1:1\"",
            ),
        ] {
            assert_eq!(of.text(text), expected);
        }
        let mut image = "reg.example/team/trainer:1@sha256:0".to_owned();
        of.replace(Content::Image, &mut image);
        assert_eq!(image, "image-1:1@sha256:0");
        for image in [
            "https://u:t0k@reg.corp/x:1",
            "u:t0k@reg/x:1",
            "u:t0k@reg:5000",
            "u:t0k@reg",
        ] {
            let mut found = Found::default();
            found.content(Content::Image, image);
            let mut copied = image.to_owned();
            Pseudonyms::new(&found, true, false).replace(Content::Image, &mut copied);
            assert!(
                ["image-1", "image-1:1", "image-1:5000"].contains(&copied.as_str()),
                "{copied}"
            );
        }
        assert!(of.table().contains("node-1\tllama\n"), "{}", of.table());
    }

    #[test]
    fn numbers_and_common_words_are_no_values_of_labels() {
        let names = [
            (NameKind::Value, "12"),
            (NameKind::Value, "gang"),
            (NameKind::Class, "system-node-critical"),
            (NameKind::Namespace, "system-vault"),
            (NameKind::Node, "40"),
        ];
        let of = pseudonyms(&names, &json!({}));
        let text = "12 gang system-node-critical";
        assert_eq!(of.text(text), text);
        assert_eq!(of.text("system-vault 40"), "namespace-1 node-1");
    }

    #[test]
    fn pseudonyms_keep_the_order_of_names() {
        let names: Vec<String> = (0..12).map(|n| format!("n{n:02}")).collect();
        let names: Vec<_> = names.iter().map(|n| (NameKind::Node, n.as_str())).collect();
        let of = pseudonyms(&names, &json!({}));
        assert_eq!(of.text("n01 n11 12 default"), "node-02 node-12 12 default");
    }

    #[test]
    fn what_is_left_out_is_not_quoted_in_messages() {
        let hidden = json!({"args": ["--key=s3cr3t", "run"],
            "state": {"message": "no access: pass.word"}, "volumes": [{"persistentVolumeClaim": {"claimName": "data"}}, {"nfs": {"server": "nfs.corp"}}],
            "volumeMounts": [{"name": "abc", "mountPath": "/mnt/x"}], "addresses": [{"address": "n1.corp"}],
            "imagePullSecrets": [{"name": "pull-key"}], "storageClassName": "gold",
            "env": [{"name": "TOKEN", "value": "hunter2"}, {"valueFrom": {"secretKeyRef": {"name": "token-a"}}}]});
        let of = pseudonyms(&[(NameKind::Pod, "p")], &hidden);
        for (text, expected) in [
            (
                "run TOKEN hunter2 s3cr3t",
                "run TOKEN [left out] [left out]",
            ),
            ("claim \"data\" not found", "claim \"name-2\" not found"),
            ("denied (no access: pass.word)", "denied ([left out])"),
            (
                "2 of 4: container t of pod p ended with exit code 1 (Error): older.word",
                "2 of 4: container t of pod pod-1 ended with exit code 1 (Error): [left out]",
            ),
            (
                "container t waits: ErrImagePull: x",
                "container t waits: ErrImagePull: [left out]",
            ),
            (
                "pod p failed (Evicted): x",
                "pod pod-1 failed (Evicted): [left out]",
            ),
            (
                "container t ended (Error): key=older rank 0 waits: barrier",
                "container t ended (Error): [left out]",
            ),
            ("hook failed: x", "hook failed: [left out]"),
            (
                "/mnt/x of nfs.corp, n1.corp",
                "[left out] of [left out], [left out]",
            ),
            (
                "pull-key, abc, token-a, gold",
                "name-4, name-1, name-5, name-3",
            ),
        ] {
            assert_eq!(of.text(text), expected);
        }
    }
}
