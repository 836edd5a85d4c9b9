//! Every message of conditions and events, in one file to read: `golden/messages.txt`.
//!
//! Short stories produce the messages. Of messages that differ only in names and numbers, the first
//! is kept. `UPDATE_GOLDEN=1` rewrites the file.

mod checkpoints;
mod gangs;
mod kueue;
mod queue;
mod restarts;
mod signals;
mod sites;
mod solo;
mod supervision;
mod unusual;
mod victims;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, reasons};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::workload::TrainingWorkloadStatus;
use lockstep_lifecycle::EventType;
use lockstep_scheduler::messages::demand::DemandEvent;
use lockstep_sim::api::{Verb, Write};
use lockstep_sim::{Key, WatchedKind};
use serde_json::Value;

/// Reasons outside conditions and events, and their place.
const ELSEWHERE: [(&str, &str); 1] = [(
    "FailedMember",
    "a node that is avoided, in the status of the gang",
)];

/// Place of a message: kind with condition or event, reason, and the message without its variable
/// parts.
type Shape = (String, String, String);

/// Messages by shape, with the first example of each.
#[derive(Default)]
struct Said(BTreeMap<Shape, String>);

impl Said {
    fn note(&mut self, place: String, reason: &str, message: &str) {
        let shape = (place, reason.to_owned(), shape(message));
        self.0.entry(shape).or_insert_with(|| message.to_owned());
    }

    fn conditions(&mut self, kind: &str, conditions: &[Condition]) {
        for c in conditions {
            let place = format!("{kind} {}={}", c.type_, c.status.as_str());
            self.note(place, &c.reason, &c.message);
        }
    }

    /// Collects the messages of a cluster.
    fn hear(&mut self, log: &[Write]) {
        let mut before: BTreeMap<Key, TrainingWorkloadStatus> = BTreeMap::new();
        let mut groups: BTreeMap<Key, PodGroupStatus> = BTreeMap::new();
        for write in log.iter().filter(|w| w.verb == Verb::UpdateStatus) {
            let conditions = write.object["status"]["conditions"].clone();
            match write.kind {
                WatchedKind::TrainingWorkload => {
                    let spec = serde_json::from_value(write.object["spec"].clone()).unwrap();
                    let status: TrainingWorkloadStatus =
                        serde_json::from_value(write.object["status"].clone()).unwrap();
                    self.conditions("TrainingWorkload", &status.conditions);
                    if let Some(progress) = &status.progress {
                        self.note(
                            "TrainingWorkload progress".to_owned(),
                            "",
                            &progress.summary,
                        );
                    }
                    let old = before.entry(write.key.clone()).or_default();
                    for event in lockstep_lifecycle::transitions(&spec, old, &status) {
                        let kind = match event.type_ {
                            EventType::Normal => "Normal",
                            EventType::Warning => "Warning",
                        };
                        self.note(format!("Event {kind}"), &event.reason, &event.note);
                    }
                    *old = status;
                }
                WatchedKind::PodGroup => {
                    let conditions: Vec<Condition> =
                        serde_json::from_value(conditions).unwrap_or_default();
                    self.conditions("PodGroup", &conditions);
                    let status: PodGroupStatus =
                        serde_json::from_value(write.object["status"].clone()).unwrap();
                    let old = groups.entry(write.key.clone()).or_default();
                    if let Some(event) = DemandEvent::between(old, &status) {
                        let kind = if event.warning { "Warning" } else { "Normal" };
                        self.note(format!("Event {kind}"), event.reason, &event.note);
                    }
                    *old = status;
                    let target = &write.object["status"]["moveTarget"];
                    if let (Some(reason), Some(message)) =
                        (target["reason"].as_str(), target["message"].as_str())
                    {
                        self.note("PodGroup moveTarget".to_owned(), reason, message);
                    }
                }
                WatchedKind::KueueWorkload if write.who == "controller" => {
                    let conditions: Vec<Condition> =
                        serde_json::from_value(conditions).unwrap_or_default();
                    self.conditions("Workload of Kueue", &conditions);
                }
                WatchedKind::Pod if write.who == "scheduler" => self.victim(&conditions),
                _ => {}
            }
        }
    }

    /// Collects the message to a foreign victim.
    fn victim(&mut self, conditions: &Value) {
        for c in conditions.as_array().into_iter().flatten() {
            let text = |key: &str| c[key].as_str().unwrap_or_default();
            if text("type") == "DisruptionTarget" {
                self.note(
                    "Pod DisruptionTarget=True".into(),
                    text("reason"),
                    text("message"),
                );
            }
        }
    }

    fn page(&self) -> String {
        let mut out = String::new();
        let mut last = "";
        for ((place, reason, _), message) in &self.0 {
            if place != last {
                let gap = if last.is_empty() { "" } else { "\n" };
                let _ = writeln!(out, "{gap}{place}");
                last = place;
            }
            let message = if message.is_empty() { "-" } else { message };
            let _ = writeln!(out, "  {reason}: {message}");
        }
        out
    }
}

/// A message without numbers, and without names that contain numbers.
fn shape(message: &str) -> String {
    let words = message.split(' ');
    let plain = words.map(|w| {
        let differs = w.chars().any(|c| c.is_ascii_digit());
        if differs { "N" } else { w }
    });
    plain.collect::<Vec<_>>().join(" ")
}

/// Messages of all stories, which are played once.
fn said() -> &'static Said {
    static SAID: LazyLock<Said> = LazyLock::new(play_all);
    &SAID
}

fn play_all() -> Said {
    let mut said = Said::default();
    let solo = [
        solo::STORIES,
        restarts::STORIES,
        supervision::STORIES,
        checkpoints::STORIES,
        signals::STORIES,
        kueue::STORIES,
    ];
    for (_, play) in solo.into_iter().flatten() {
        let world = play();
        said.hear(&world.store().log);
    }
    let gangs = [gangs::STORIES, queue::STORIES, victims::STORIES];
    for (_, play) in gangs.into_iter().flatten() {
        let world = play();
        said.hear(&world.store().log);
    }
    for (reason, message) in unusual::spoken() {
        said.note(
            "PodGroup PodGroupInitiallyScheduled=False".into(),
            reason,
            &message,
        );
    }
    said
}

/// The values of the table of reasons.
fn reasons() -> Vec<String> {
    let source = include_str!("../../../../../api/src/condition.rs");
    let table = source.split_once("pub mod reasons {").unwrap().1;
    let table = table.split_once("\n}\n").unwrap().0;
    let constants = table.lines().filter(|l| l.trim().starts_with("pub const"));
    constants
        .map(|l| l.split('"').nth(1).unwrap().to_owned())
        .collect()
}

#[test]
fn what_people_read_is_what_the_golden_file_says() {
    crate::matches_golden("messages.txt", &said().page());
}

#[test]
fn every_reason_of_the_table_is_said_in_some_story() {
    let said = said();
    let heard = |reason: &str| said.0.keys().any(|(_, r, _)| r == reason);
    let missing: Vec<String> = reasons()
        .into_iter()
        .filter(|r| heard(r) == ELSEWHERE.iter().any(|(e, _)| e == r))
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// Fields that are clear without a path: of the spec itself, and of the message's gang.
const BARE_FIELDS: [&str; 2] = ["activeDeadlineSeconds", "minCount"];

/// Phrases that promise an action at a later time.
const PROMISES: [&str; 9] = [
    "retry",
    "grows from",
    "tried again",
    "next search",
    "available by",
    "withdrawn at",
    "not evicted before",
    "not requesting capacity before",
    "not before",
];

/// Field names in a message: `failurePolicy.limits.maxRestarts`.
fn fields(message: &str) -> impl Iterator<Item = &str> {
    let words = message.split([' ', '/', '=']);
    let bare = words.map(|w| w.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
    bare.filter(|w| {
        let plain = w.chars().all(|c| c.is_ascii_alphabetic() || c == '.');
        let starts_small = w.starts_with(|c: char| c.is_ascii_lowercase());
        plain && starts_small && w.chars().any(|c| c.is_ascii_uppercase())
    })
}

/// True if a message has a time in the format of object fields.
fn has_time(message: &str) -> bool {
    let words = message.split(' ');
    let mut words = words.map(|w| w.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
    words.any(|w| w.parse::<DateTime<Utc>>().is_ok())
}

/// Missing information of a message, if any: the time of a retry, the field that sets a limit, or
/// the path of a field.
fn leaves_to_guess(message: &str) -> Option<&'static str> {
    let promises = PROMISES.iter().any(|p| message.contains(p));
    if promises && !has_time(message) {
        return Some("when");
    }
    let after = message.split(" within ").skip(1);
    let mut limits = after.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if limits.next().is_some() && fields(message).next().is_none() {
        return Some("which field sets the limit");
    }
    let mut brackets = message.split('(').skip(1).filter_map(|rest| {
        let word = rest.split([' ', ')', ',']).next()?;
        fields(word).next()
    });
    let bare = brackets.any(|f| !f.contains('.') && !BARE_FIELDS.contains(&f));
    bare.then_some("where the field is")
}

/// True if a message has a number or names an object, so that a waiting user can look at it.
fn is_definite(message: &str) -> bool {
    message.contains(|c: char| c.is_ascii_digit() || c == '/')
}

#[test]
fn a_message_without_a_number_or_an_object_is_noticed() {
    assert!(!is_definite("waiting for capacity"));
    assert!(is_definite(
        "insufficient nvidia.com/gpu: 1 pod needs 8 more"
    ));
}

#[test]
fn a_message_that_leaves_a_time_or_a_field_to_guess_is_noticed() {
    for (message, guess) in [
        ("tried again after a pause", Some("when")),
        ("tried again at 2026-11-18T11:08:47Z", None),
        (
            "not started within 20 min",
            Some("which field sets the limit"),
        ),
        (
            "not started within 20 min (failurePolicy.startDeadlineSeconds)",
            None,
        ),
        (
            "may not be evicted (minRuntimeSeconds)",
            Some("where the field is"),
        ),
        (
            "may not be evicted (scheduler.preemption.minRuntimeSeconds)",
            None,
        ),
    ] {
        assert_eq!(leaves_to_guess(message), guess, "{message}");
    }
}

/// Words outside the vocabulary of users, and remains of values printed as code.
const HOUSE_WORDS: [&str; 5] = ["epoch", "incident", "room", "seat", "None"];
/// Remains of empty parts, and of values printed as code.
const GAPS: [&str; 6] = ["  ", ": ;", "()", "{}", ": :", "Some("];

/// Why a message is unclear.
fn reads_ill(place: &str, reason: &str, message: &str) -> Option<String> {
    if message.ends_with(['.', ' ']) {
        return Some("ends in a full stop or a space".to_owned());
    }
    if let Some(guess) = leaves_to_guess(message) {
        return Some(format!("does not say {guess}"));
    }
    if reason == reasons::UNSCHEDULABLE && !is_definite(message) {
        return Some("has no number and no object".to_owned());
    }
    if let Some(gap) = GAPS.iter().find(|gap| message.contains(**gap)) {
        return Some(format!("has {gap:?}"));
    }
    let is = |house: &&&str| {
        let word = |w: &str| w.trim_matches(|c: char| !c.is_alphanumeric()) == **house;
        message.split(' ').any(word)
    };
    if let Some(house) = HOUSE_WORDS.iter().find(is) {
        return Some(format!("says {house:?}"));
    }
    // A Stalled or Failed workload needs an action, so a bare state does not suffice.
    let bad = place.ends_with("Stalled=True") || place.ends_with("Failed=True");
    (bad && message.len() <= 10).then(|| "is a bare state".to_owned())
}

#[test]
fn messages_read_well() {
    for ((place, reason, _), message) in &said().0 {
        let ill = reads_ill(place, reason, message);
        assert_eq!(ill, None, "{place} {reason}: {message}");
    }
}

#[test]
fn every_rule_about_messages_finds_its_mistake() {
    let place = "TrainingWorkload Stalled=True";
    let well = "spec.priorityClassName: no PriorityClass \"hihg\" exists";
    assert_eq!(reads_ill(place, "InvalidPriorityClass", well), None);
    for (message, ill) in [
        ("all pods are gone.", "ends in a full stop or a space"),
        ("all pods are gone ", "ends in a full stop or a space"),
        ("tried again after a pause", "does not say when"),
        ("no  pod is left", "has \"  \""),
        ("pod a: ; node b", "has \": ;\""),
        ("pod a () has ended", "has \"()\""),
        ("pod {} has ended", "has \"{}\""),
        ("pod a: : ended", "has \": :\""),
        ("ended with Some(3)", "has \"Some(\""),
        ("attempt of epoch 3", "says \"epoch\""),
        ("after the incident: all restart", "says \"incident\""),
        ("there is no room, anywhere", "says \"room\""),
        ("a seat is taken", "says \"seat\""),
        ("ended with code None", "says \"None\""),
        ("stalled", "is a bare state"),
    ] {
        assert_eq!(
            reads_ill(place, "Reason", message).as_deref(),
            Some(ill),
            "{message}"
        );
    }
    let vague = reads_ill(
        "PodGroup X=False",
        reasons::UNSCHEDULABLE,
        "waiting for capacity",
    );
    assert_eq!(vague.as_deref(), Some("has no number and no object"));
}
