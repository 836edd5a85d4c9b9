use super::*;
use crate::ClusterModel;
use crate::nodes::node::Node;
use crate::test_support::mk_resources;
use lockstep_api::NodeState;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use proptest::prelude::*;

/// CPU, memory in GiB, pods and accelerators.
type Numbers = [i64; 4];

const NODE: Numbers = [12, 12, 8, 2];

fn resources([cpu, memory, pods, gpus]: Numbers) -> crate::Resources {
    mk_resources(&[
        ("cpu", &cpu.to_string()),
        ("memory", &format!("{memory}Gi")),
        ("pods", &pods.to_string()),
        ("nvidia.com/gpu", &gpus.to_string()),
    ])
}

fn pod(uid: &str, holds: Numbers) -> Pod {
    Pod {
        bound: NodeName::read(Some("n")),
        requests: Arc::new(resources(holds)),
        ..Pod::bare("ml", uid, uid.parse().unwrap())
    }
}

fn model(offers: Numbers, pods: impl IntoIterator<Item = Pod>) -> ClusterModel {
    let mut model = ClusterModel::default();
    model.upsert_node(Node {
        allocatable: resources(offers),
        state: NodeState::default(),
        ..Node::bare("n".parse().unwrap())
    });
    for pod in pods {
        model.upsert_pod(pod);
    }
    model
}

fn requested(snapshot: &Snapshot, members: &[Numbers]) -> RequestedAmounts {
    let amounts = |member: &Numbers| snapshot.dims().amounts(&resources(*member));
    RequestedAmounts {
        members: members.iter().map(amounts).collect(),
        ..RequestedAmounts::default()
    }
}

/// True if these pods make no difference to these members on a node with other pods.
fn comes_unnoticed(come: Vec<Pod>, members: &[Numbers], others: &[Numbers]) -> bool {
    let present = others
        .iter()
        .enumerate()
        .map(|(n, holds)| pod(&format!("there-{n}"), *holds));
    let mut model = model(NODE, present);
    let before = model.snapshot();
    for pod in come {
        model.upsert_pod(pod);
    }
    let (now, requested) = (model.snapshot(), requested(&before, members));
    let forth = requested.make_no_difference(&before, &now);
    assert_eq!(forth, requested.make_no_difference(&now, &before));
    forth
}

const TRAINER: Numbers = [4, 4, 1, 1];
const SMALL: Numbers = [1, 1, 1, 0];

#[test]
fn what_takes_cpu_that_the_accelerators_cannot_use_makes_no_difference() {
    let comes =
        |member, others: &[Numbers]| comes_unnoticed(vec![pod("p", SMALL)], &[member], others);
    assert!(comes(TRAINER, &[]));
    assert!(
        comes(TRAINER, &[TRAINER, TRAINER]),
        "no accelerator is left"
    );
    assert!(
        comes(TRAINER, &[SMALL, SMALL, SMALL]),
        "enough for both is left"
    );
    assert!(
        !comes(TRAINER, &[SMALL, SMALL, SMALL, SMALL]),
        "one would be too many"
    );
    assert!(!comes([6, 4, 1, 1], &[]), "members need all CPUs");
    assert!(
        !comes(TRAINER, &[[9, 4, 1, 1]]),
        "when this goes there are more CPUs"
    );
    assert!(!comes([1, 1, 1, 0], &[]), "the gang wants no accelerators");
    assert!(comes([1, 1, 1, 9], &[]), "members do not fit there at all");
}

#[test]
fn what_takes_accelerators_or_is_a_member_or_waits_makes_a_difference() {
    let comes = |pod| comes_unnoticed(vec![pod], &[TRAINER], &[]);
    assert!(!comes(pod("p", TRAINER)));
    assert!(!comes(Pod {
        owner: Some("w".parse().unwrap()),
        member: Some(Member::new("g", 0, 0)),
        ..pod("p", SMALL)
    }));
    assert!(!comes(Pod {
        bound: None,
        nominated: NodeName::read(Some("n")),
        ..pod("p", SMALL)
    }));
}

#[test]
fn a_pod_with_anti_affinity_in_the_namespace_of_a_gang_makes_a_difference() {
    let term = serde_json::json!({"topologyKey": "zone", "labelSelector": {}});
    let hermit = Pod {
        anti_affinity: Some([serde_json::from_value(term).unwrap()].into()),
        ..pod("p", SMALL)
    };
    let mut model = model(NODE, []);
    let before = model.snapshot();
    model.upsert_pod(hermit);
    let with = |namespace: &str, avoided: &str| RequestedAmounts {
        namespaces: [namespace.into()].into(),
        avoided: vec![(avoided.into(), LabelSelector::default())],
        ..requested(&before, &[TRAINER])
    };
    let same =
        |requested: RequestedAmounts| requested.make_no_difference(&before, &model.snapshot());
    assert!(same(with("web", "web")));
    assert!(!same(with("ml", "web")), "it may keep members away");
    assert!(!same(with("web", "ml")), "members may avoid it");
}

#[test]
fn a_node_that_changes_or_is_reserved_makes_a_difference() {
    let mut model = model(NODE, []);
    let before = model.snapshot();
    let mut requested = requested(&before, &[TRAINER]);
    assert!(requested.make_no_difference(&before, &model.snapshot()));
    model.upsert_pod(pod("p", SMALL));
    requested.reserved.insert(0);
    assert!(!requested.make_no_difference(&before, &model.snapshot()));
    requested.reserved.clear();
    assert!(requested.make_no_difference(&before, &model.snapshot()));
    let changed = Node {
        allocatable: resources(NODE),
        ..Node::bare("n".parse().unwrap())
    };
    model.upsert_node(changed);
    assert!(!requested.make_no_difference(&before, &model.snapshot()));
}

fn left<'n>(taken: impl Iterator<Item = &'n Numbers>) -> Numbers {
    let mut left = NODE;
    for each in taken {
        for (left, taken) in left.iter_mut().zip(each) {
            *left -= taken;
        }
    }
    left
}

fn parts(all: &[Numbers]) -> Vec<Vec<Numbers>> {
    let chosen = |bits: usize| {
        let each = all.iter().enumerate();
        each.filter(|(n, _)| bits & (1 << n) != 0)
            .map(|(_, one)| *one)
            .collect()
    };
    (0..1_usize << all.len()).map(chosen).collect()
}

/// Counts of members of each kind that fit together, at most three of each.
fn fitting(left: Numbers, members: &[Numbers]) -> Vec<Vec<i64>> {
    let mut counts: Vec<Vec<i64>> = vec![Vec::new()];
    for _ in members {
        let longer = counts
            .iter()
            .flat_map(|c| (0..4).map(move |n| [c.as_slice(), &[n]].concat()));
        counts = longer.collect();
    }
    counts.retain(|counts| {
        let requested =
            |dim: usize| -> i64 { members.iter().zip(counts).map(|(m, n)| m[dim] * n).sum() };
        (0..4).all(|dim| requested(dim) == 0 || requested(dim) <= left[dim])
    });
    counts
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (0..8i64, 0..8i64, 0..2i64, 0..3i64)
        .prop_map(|(cpu, memory, pods, gpus)| [cpu, memory, pods, gpus])
}

fn small() -> impl Strategy<Value = Numbers> {
    (0..4i64, 0..3i64, 0..2i64).prop_map(|(cpu, memory, pods)| [cpu, memory, pods, 0])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn irrelevant_pods_do_not_change_the_members_that_fit(
        stay in proptest::collection::vec(numbers(), 0..3),
        come in proptest::collection::vec(small(), 1..3),
        members in proptest::collection::vec(numbers(), 1..3),
    ) {
        let pods = (0..).zip(&come).map(|(n, holds): (i32, _)| pod(&format!("come-{n}"), *holds));
        if !comes_unnoticed(pods.collect(), &members, &stay) {
            return Ok(());
        }
        let members: Vec<Numbers> = members.into_iter().filter(|m| (0..4).all(|d| m[d] <= NODE[d])).collect();
        for stay in parts(&stay) {
            let without = fitting(left(stay.iter()), &members);
            for come in parts(&come) {
                let with = fitting(left(stay.iter().chain(&come)), &members);
                prop_assert_eq!(&without, &with, "{:?} and {:?} there, for {:?}", stay, come, members);
            }
        }
    }
}
