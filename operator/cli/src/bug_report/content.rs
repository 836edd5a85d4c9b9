//! What the fields of an archive contain.

/// Components of Kubernetes and Lockstep whose events have no output of programs.
pub(super) const TRUSTED: [&str; 5] = [
    "default-scheduler",
    "lockstep.dev/agent",
    "lockstep.dev/manager",
    "node-controller",
    "taint-eviction-controller",
];

/// What a field contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Copied as it is.
    Plain,
    Name(NameKind),
    Image,
    /// `namespace/name` of a pod group.
    Group,
    /// Text in which names are replaced.
    Text,
    /// Text that is copied if Kubernetes or Lockstep has written it.
    Checked,
}

impl Content {
    pub(super) fn parse(word: &str, logs: bool) -> Option<Self> {
        Some(match word {
            "" => Self::Plain,
            "image" => Self::Image,
            "qualified" => Self::Group,
            "checked" if !logs => Self::Checked,
            "output" if !logs => return None,
            "text" | "checked" | "output" => Self::Text,
            kind => Self::Name(NameKind::parse(kind)?),
        })
    }
}

/// Kind of a name. A name of several kinds has the pseudonym of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKind {
    Node,
    Namespace,
    Workload,
    PodGroup,
    Pod,
    Group,
    Container,
    Class,
    Image,
    User,
    Name,
    Value,
}

impl NameKind {
    pub(super) const ALL: [(Self, &str); 12] = [
        (Self::Node, "node"),
        (Self::Namespace, "namespace"),
        (Self::Workload, "workload"),
        (Self::PodGroup, "podgroup"),
        (Self::Pod, "pod"),
        (Self::Group, "group"),
        (Self::Container, "container"),
        (Self::Class, "class"),
        (Self::Image, "image"),
        (Self::User, "user"),
        (Self::Name, "name"),
        (Self::Value, "value"),
    ];

    fn parse(word: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, prefix)| *prefix == word);
        found.map(|(kind, _)| *kind)
    }
}
