//! Decided nodes that cannot take pods now: NotReady, cordoned, tainted, or without the requested
//! devices.
//!
//! Each of these can pass within seconds. So a placement, an intent or a reservation stays on such a
//! node until the node is lost, after `nodeLostSeconds`. Only new decisions avoid the node.

use lockstep_api::Reach;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_engine::NodeIx;

use crate::context::Context;
use crate::gang::state::GangState;
use crate::gang::unusable::UnusableNodes;
use crate::input::TemplateInput;
use crate::memory::Memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecidedNode {
    Usable,
    Unusable,
    Lost,
}

pub(super) fn find_unusable_nodes(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &GangState,
) -> UnusableNodes {
    let mut out = UnusableNodes::default();
    let members = gang
        .fully_bound()
        .is_none()
        .then(|| gang.assigned_members());
    for (member, node) in members.into_iter().flatten() {
        if gang.finished().contains(member) || gang.stays_on(member, node) {
            continue;
        }
        let node = Node {
            name: node.as_str(),
            group: &member.group,
            replaced: gang.is_being_replaced(member),
        };
        match node.judge(context, memory, gang) {
            DecidedNode::Usable => {}
            DecidedNode::Unusable => drop(out.waiting.insert(member.clone())),
            DecidedNode::Lost => drop(out.lost.insert(member.clone())),
        }
    }
    for reserved in gang.status.reservation.iter().flat_map(|r| &r.nodes) {
        let unusable = |group: &String| {
            let node = Node {
                name: &reserved.node,
                group,
                replaced: false,
            };
            node.judge(context, memory, gang) == DecidedNode::Unusable
        };
        if reserved.members.keys().any(unusable) {
            out.reserved.insert(reserved.node.clone());
        }
    }
    out
}

/// True if the node of the target can take a new pod of the member now.
pub(super) fn takes(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &GangState,
    (member, name): (&Member, &NodeName),
) -> bool {
    let node = Node {
        name: name.as_str(),
        group: &member.group,
        replaced: true,
    };
    node.judge(context, memory, gang) == DecidedNode::Usable
        && !gang.excluded().contains(name.as_str())
}

/// A node that was decided for members of a group.
struct Node<'n> {
    name: &'n str,
    group: &'n str,
    /// True if an incident replaces the pod of the member.
    replaced: bool,
}

impl Node<'_> {
    fn judge(&self, context: &Context<'_>, memory: &mut Memory, gang: &GangState) -> DecidedNode {
        let (cluster, input) = (context.cluster, &gang.input);
        let mut templates = input.workload.templates.iter();
        let ordinal = cluster.ordinal(self.name);
        let node = ordinal.and_then(|ix| Some((ix, cluster.node(ix)?)));
        let (Some((ix, node)), Some(template)) = (node, templates.find(|t| t.group == self.group))
        else {
            return DecidedNode::Lost;
        };
        let admits = memory.eligible(input, template, cluster).contains(ix);
        let key = (gang.uid().to_owned(), self.name.to_owned());
        if admits && offers(context, ix, template) {
            memory.unusable_since.remove(&key);
            return DecidedNode::Usable;
        }
        let since = match node.state.reach {
            _ if node.state.deleting => return DecidedNode::Lost,
            Reach::OutOfService | Reach::Gone => return DecidedNode::Lost,
            Reach::Silent { since: None } => return DecidedNode::Unusable,
            Reach::Silent { since: Some(since) } => since,
            // A member that needs another pod anyway leaves a node that is being drained.
            Reach::Responding if self.replaced && !admits => return DecidedNode::Lost,
            Reach::Responding => *memory.unusable_since.entry(key).or_insert(context.now),
        };
        let lost = input.workload.node_lost.to_std().unwrap_or_default();
        if context.due(since, lost) {
            DecidedNode::Lost
        } else {
            DecidedNode::Unusable
        }
    }
}

/// True if the node offers enough for one pod, whatever other pods hold.
fn offers(context: &Context<'_>, node: NodeIx, template: &TemplateInput) -> bool {
    let Ok(requests) = &template.requests else {
        return true;
    };
    let offered = context.cluster.free_capacity().allocatable(node);
    let amounts = context.amounts(requests);
    let mut each = amounts.iter().zip(offered);
    each.all(|(requested, offered)| requested <= offered)
}

impl GangState {
    /// True if a pod of the member is bound to the node and is not being replaced.
    pub(crate) fn stays_on(&self, member: &Member, node: &NodeName) -> bool {
        let mut pods = self.bound_pods(member, node);
        pods.any(|pod| !self.replaced(member, pod))
    }

    pub(crate) fn is_being_replaced(&self, member: &Member) -> bool {
        let domains = &self.input.workload.members.domains;
        let mut incidents = domains.iter().filter_map(|d| d.incident.as_ref());
        incidents.any(|incident| incident.members.contains(member))
    }

    /// True if the node of an unbound member may take pods again.
    pub(crate) fn awaits_node(&self) -> bool {
        !self.unusable.waiting.is_empty()
    }
}
