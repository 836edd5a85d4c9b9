//! What a workload waits for while Kueue has not admitted it.

use super::notes;
use crate::facts::Facts;
use crate::kueue::Unadmitted;
use crate::ledger::Ledger;
use crate::objects::kueue::name;
use crate::plan::Surplus;
use crate::view::Target;

/// `None` if the workload is not held for quota.
pub(super) fn wait(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let quota = ledger.kueue.as_ref().filter(|quota| !quota.admitted)?;
    let queue = &quota.queue;
    let ending = notes::still_ending(facts).unwrap_or_default();
    let why = facts.admission(queue).err();
    let why = message(facts, why.unwrap_or(Unadmitted::Waiting(None)));
    Some(format!("queue {queue} of Kueue: {why}{ending}"))
}

fn message(facts: &Facts<'_>, why: Unadmitted) -> String {
    let name = name(facts.view);
    match why {
        Unadmitted::Unread => "Kueue's objects are not read yet".to_owned(),
        Unadmitted::NotServed => "the API server does not serve Kueue's API".to_owned(),
        Unadmitted::TooManyGroups(groups) => {
            format!("{groups} groups have members, and Kueue allows 8 pod sets")
        }
        Unadmitted::NoPriorityClass(class) => {
            format!("no WorkloadPriorityClass \"{class}\" exists")
        }
        Unadmitted::NoWorkload => {
            let target = Target::Object(Surplus::KueueWorkload.kind(), name.clone());
            match facts.rejections(&target).first() {
                Some(rejected) => format!("cannot create Workload {name}: {}", rejected.message),
                None => format!("Workload {name} is being created"),
            }
        }
        Unadmitted::Outdated => format!("Workload {name} is being replaced"),
        Unadmitted::Finished(why) => {
            format!("Workload {name} has ended ({why}); suspend and resume to request quota again")
        }
        Unadmitted::Deactivated(why) => {
            let separator = if why.is_empty() { "" } else { ": " };
            format!("Workload {name} is deactivated{separator}{why}")
        }
        Unadmitted::Evicted(why) => format!("evicted: {why}"),
        Unadmitted::Waiting(None) => format!("Workload {name} waits for quota"),
        Unadmitted::NoFlavor(flavor) => format!("no ResourceFlavor \"{flavor}\" exists"),
        Unadmitted::Waiting(Some(why)) | Unadmitted::Conflict(why) => why,
    }
}
