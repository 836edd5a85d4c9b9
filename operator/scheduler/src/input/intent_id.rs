//! Id and owner of a preemption intent.

use lockstep_api::names::short_hash;
use lockstep_api::scheduling::Preemption;

use crate::input::PodGroupInput;

/// A hash of the intent's content, which reveals a forged or changed intent.
pub fn intent_id(intent: &Preemption) -> String {
    let Preemption {
        preemptor_uid,
        decided_at,
        placement,
        victims,
        ..
    } = intent;
    let mut parts = vec![
        preemptor_uid.clone(),
        placement.clone(),
        decided_at.timestamp_millis().to_string(),
    ];
    parts.extend(victims.iter().map(|v| format!("{}/{}", v.kind, v.uid)));
    short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// True if the intent is unchanged and belongs to this pod group's current placement.
pub(crate) fn is_own(group: &PodGroupInput, intent: &Preemption) -> bool {
    let placement = group.status.placement.as_ref();
    intent.preemptor_uid == group.uid.as_str()
        && intent.id == intent_id(intent)
        && placement.is_some_and(|p| p.id == intent.placement)
}
