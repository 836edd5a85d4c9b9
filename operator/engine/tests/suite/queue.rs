//! Guarantees of the queue over long random runs: reservations delay no more than necessary, no
//! gang starves, and no two gangs evict each other in turn.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::serve::{Served, as_blockers, serve};
use lockstep_engine::{
    Amounts, Blocker, Cluster, ClusterNode, Demand, GangPlacement, NodeIx, Pods, PreemptionOptions,
    Unit, Units, VictimOrder, amounts_by_node, place, preempt,
    queue::{self, QueuePosition},
};
use proptest::prelude::*;
use smallvec::smallvec;

const CPUS: i64 = 8;
const GPUS: i64 = 4;

/// A gang of equal pods: CPUs and GPUs of one pod, number of pods, and run time.
type Job = (i64, i64, u32, u32);

fn cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(2, 0);
    for ix in 0..nodes {
        let spec = ClusterNode {
            allocatable: smallvec![CPUS, GPUS],
            domains: vec![],
            schedulable: true,
        };
        cluster.upsert_node(ix, &spec);
    }
    cluster
}

fn job() -> impl Strategy<Value = Job> {
    (0..=3i64, 0..=GPUS, 1..4u32, 1..6u32).prop_filter("asks for something", |j| j.0 + j.1 > 0)
}

fn demand(job: Job, priority: i32) -> Demand {
    Demand::homogeneous([job.0, job.1].as_slice(), job.2, priority)
}

/// Runs `check` on random values. Returns their number.
fn over<S: Strategy>(strategy: &S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) -> u32 {
    let mut runner = crate::runs::runner();
    assert_eq!(
        runner
            .run(strategy, check)
            .map_err(|error| error.to_string()),
        Ok(())
    );
    runner.config().cases
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
struct Run {
    /// Start of each gang.
    started: BTreeMap<usize, u32>,
    /// First reservation of the first gang of the queue.
    first_reserved: Option<GangPlacement>,
    /// Time by which the work on these nodes at that time had ended.
    first_free: u32,
}

/// Share of a gang's namespace. The first gang has the largest, so it is last while it holds
/// nothing.
fn share(ix: usize) -> u64 {
    match ix {
        0 => 1000,
        ix => ix as u64 % 3,
    }
}

/// Runs a queue in discrete time, from free capacity only. Asserts that reservations are disjoint
/// and fit next to all work that stays. `known`: longest run time that is known in advance.
fn run(nodes: usize, running: &[Job], queued: &[(Job, u32)], rounds: u32, known: u32) -> Run {
    let mut free = cluster(nodes);
    let mut ends: Vec<(u32, Demand, GangPlacement, bool)> = Vec::new();
    for &job in running {
        let demand = demand(job, 0);
        if let Ok(placement) = place(&free, &demand) {
            free.reserve(&demand.shapes, &placement);
            ends.push((job.3, demand, placement, job.3 <= known));
        }
    }
    let demands: Vec<Demand> = queued.iter().map(|(job, _)| demand(*job, 0)).collect();
    let mut reserved = BTreeMap::new();
    let mut out = Run::default();
    for now in 0..rounds {
        ends.retain(|(end, demand, placement, _)| {
            if *end == now {
                free.release(&demand.shapes, placement);
            }
            *end != now
        });
        let waiting: Vec<(QueuePosition<i64, usize>, &Demand, bool)> = (0..queued.len())
            .filter(|ix| !out.started.contains_key(ix) && queued[*ix].1 <= now)
            .map(|ix| {
                let position = QueuePosition::new(0, i64::from(queued[ix].1), ix);
                let position = if reserved.contains_key(&ix) {
                    position.holding()
                } else {
                    position.with_share(share(ix))
                };
                (position, &demands[ix], true)
            })
            .collect();
        let runs = ends.iter().flat_map(|(end, demand, placement, said)| {
            as_blockers(demand, placement, said.then_some(i64::from(*end)))
        });
        let blockers: Vec<Blocker> = runs.collect();
        let time = |ix: usize| queued[ix].0.3;
        let end = |ix: usize| (time(ix) <= known).then_some(i64::from(now + time(ix)));
        for (ix, served) in serve(&free, &blockers, &waiting, &mut reserved, end) {
            if let Served::Placed(placement) = served {
                free.reserve(&demands[ix].shapes, &placement);
                out.started.insert(ix, now);
                let demand = demands[ix].clone();
                ends.push((now + time(ix), demand, placement, time(ix) <= known));
            }
        }
        assert_disjoint(nodes, &demands, &reserved);
        if now == 0 {
            out.first_reserved = reserved.get(&0).cloned();
            let on = |p: &GangPlacement| -> BTreeSet<NodeIx> {
                p.assignments.iter().map(|a| a.node).collect()
            };
            let kept = out.first_reserved.iter().flat_map(&on).collect();
            let there = ends.iter().filter(|(_, _, p, _)| !on(p).is_disjoint(&kept));
            out.first_free = there.map(|(end, ..)| *end).max().unwrap_or(0);
        }
    }
    out
}

/// Asserts that each node offers its total reservation.
fn assert_disjoint(nodes: usize, demands: &[Demand], reserved: &BTreeMap<usize, GangPlacement>) {
    let mut sum = vec![Amounts::from_slice(&[0, 0]); nodes];
    for (&ix, kept) in reserved {
        for (node, amounts) in amounts_by_node(&demands[ix].shapes, kept) {
            for (sum, amount) in sum[node].iter_mut().zip(amounts) {
                *sum += amount;
            }
        }
    }
    assert!(
        sum.iter().all(|s| s[0] <= CPUS && s[1] <= GPUS),
        "{reserved:?}"
    );
}

#[test]
fn a_gang_starts_by_the_time_its_reserved_nodes_become_free() {
    let waited = std::cell::Cell::new(0u32);
    let backfilled = std::cell::Cell::new(0u32);
    let sooner = std::cell::Cell::new(0u32);
    let by_deadline = std::cell::Cell::new(0u32);
    let strategy = (
        2..5usize,
        prop::collection::vec(job(), 3..8),
        job(),
        prop::collection::vec((job(), 0..10u32), 1..16),
        0..6u32,
    );
    let cases = over(&strategy, |(nodes, running, head, followers, known)| {
        let mut queued = vec![(head, 0)];
        queued.extend(followers);
        let ran = run(nodes, &running, &queued, 12, known);
        let again = run(nodes, &running, &queued, 12, known);
        prop_assert_eq!(&ran, &again, "it depends on luck");
        let blind = run(nodes, &running, &queued, 12, 0);
        if ran.first_reserved.is_none() {
            return Ok(());
        }
        let start = ran.started.get(&0).copied();
        prop_assert!(start.is_some_and(|at| at <= ran.first_free), "{ran:?}");
        waited.set(waited.get() + 1);
        by_deadline.set(by_deadline.get() + u32::from(ran.started != blind.started));
        sooner.set(sooner.get() + u32::from(start < Some(ran.first_free)));
        let before = ran
            .started
            .iter()
            .any(|(&ix, &at)| ix > 0 && Some(at) < start);
        backfilled.set(backfilled.get() + u32::from(before));
        Ok(())
    });
    let (waited, backfilled, sooner) = (waited.get(), backfilled.get(), sooner.get());
    assert!(waited > cases / 5, "the first waited in {waited} runs");
    assert!(
        backfilled > cases / 20,
        "others ran before it in {backfilled} runs"
    );
    assert!(sooner > cases / 50, "it started sooner in {sooner} runs");
    let by_deadline = by_deadline.get();
    assert!(
        by_deadline > cases / 50,
        "deadlines mattered in {by_deadline} runs"
    );
}

#[test]
fn a_large_gang_starts_after_the_running_jobs_despite_many_small_followers() {
    let waited = std::cell::Cell::new(0u32);
    let strategy = (
        2..5usize,
        prop::collection::vec(job(), 3..8),
        prop::collection::vec((job(), 1..10u32), 4..16),
    );
    let cases = over(&strategy, |(nodes, running, followers)| {
        let large: Job = (CPUS / 2, GPUS, nodes as u32, 1);
        let mut queued = vec![(large, 0)];
        queued.extend(followers);
        let started = run(nodes, &running, &queued, 12, 0).started;
        let longest = running.iter().map(|j| j.3).max().unwrap_or(0);
        prop_assert!(
            started.get(&0).is_some_and(|&at| at <= longest),
            "{started:?}"
        );
        waited.set(waited.get() + u32::from(started.get(&0) != Some(&0)));
        Ok(())
    });
    assert!(waited.get() > cases / 2);
}

#[test]
fn a_gang_too_large_for_an_empty_cluster_blocks_no_other_gang() {
    let free = cluster(2);
    let giant = Demand::homogeneous([1, GPUS].as_slice(), 3, 10);
    let small = Demand::homogeneous([1, 1].as_slice(), 2, 10);
    let queue = [
        (QueuePosition::new(10, 0, 0), &giant, true),
        (QueuePosition::new(10, 1, 1), &small, true),
    ];
    let served = serve(&free, &[], &queue, &mut BTreeMap::new(), |_| None);
    assert!(matches!(served[0], (0, Served::Impossible(_))));
    assert!(matches!(served[1], (1, Served::Placed(_))));
}

#[test]
fn work_of_lower_priority_may_use_the_room_that_the_blocked_gang_can_take_back() {
    let mut free = cluster(2);
    free.add_pod(0, &[0, GPUS]);
    let runs = Blocker {
        node: 0,
        request: smallvec![0, GPUS],
        ends: None,
    };
    let large = Demand::homogeneous([1, GPUS].as_slice(), 2, 100);
    let small = Demand::homogeneous([1, 1].as_slice(), 1, 10);
    let mut queue = [
        (QueuePosition::new(100, 0, 0), &large, true),
        (QueuePosition::new(10, 0, 1), &small, true),
    ];
    let second = |queue: &[_]| {
        let (runs, mut reserved) = (std::slice::from_ref(&runs), BTreeMap::new());
        let served = serve(&free, runs, queue, &mut reserved, |_| None);
        served[1].1.clone()
    };
    assert!(matches!(second(&queue), Served::Placed(_)));
    queue[1].2 = false;
    assert!(
        matches!(second(&queue), Served::Impossible(_)),
        "not when it may not be evicted"
    );
}

#[test]
fn the_share_of_a_namespace_precedes_age_and_does_not_move_gangs_with_capacity() {
    let new = |queued_at, id| QueuePosition::new(10, queued_at, id);
    let mut turns = [
        new(10, 0).with_share(7),
        new(50, 1).with_share(3),
        new(40, 2).with_share(3),
        new(90, 3).with_share(9).holding(),
        new(80, 4).holding().with_share(9),
        QueuePosition::new(20, 99, 5).with_share(99),
    ];
    turns.sort_unstable();
    assert_eq!(turns.map(|turn| turn.id), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn turns_go_by_priority_then_age_and_a_preempted_gang_keeps_its_age() {
    let mut turns = [
        QueuePosition::new(10, 50, 0),
        QueuePosition::new(100, 90, 1),
        QueuePosition::new(10, 20, 2),
        QueuePosition::new(10, 20, 1),
    ];
    turns.sort_unstable();
    assert_eq!(
        turns.iter().map(|turn| turn.id).collect::<Vec<_>>(),
        [1, 1, 2, 0]
    );
    assert!(
        QueuePosition::new(0, 99, 0) < QueuePosition::growth(100, 1, 1),
        "what a gang needs comes before what another would like besides"
    );
    // If the gang queued at 20 is preempted at any later time, it is still ahead of the gang queued
    // at 50.
    assert!(QueuePosition::new(10, 20, 2) < QueuePosition::new(10, 50, 0));
}

#[test]
fn a_preemption_priority_below_its_own_is_not_heeded() {
    assert_eq!(queue::victim_priority(50, Some(80)), 80);
    assert_eq!(queue::victim_priority(50, Some(10)), 50);
    assert_eq!(queue::victim_priority(50, None), 50);
}

#[test]
fn work_is_protected_until_it_has_had_its_run_time() {
    assert!(queue::within_min_runtime(1_000, 1_299, 300));
    assert!(!queue::within_min_runtime(1_000, 1_300, 300));
    assert!(
        !queue::within_min_runtime(i64::MIN, i64::MAX, 300),
        "times far apart do not overflow"
    );
}

/// A gang in a run with preemption. All gangs cost the same.
#[derive(Clone, Debug)]
struct Gang {
    demand: Demand,
    standing: i32,
    placed: Option<GangPlacement>,
}

fn unit(gang: &Gang) -> Unit {
    let assigned = gang.placed.iter().flat_map(|p| &p.assignments);
    let nodes: Vec<NodeIx> = assigned
        .flat_map(|s| std::iter::repeat_n(s.node, s.count as usize))
        .collect();
    Unit {
        pods: vec![Pods {
            request: gang.demand.shapes[0].request.clone(),
            nodes,
        }],
        priority: gang.standing,
        gang: true,
        cost: 1,
        pdbs: smallvec![],
        start: 0,
        cascade: None,
        eligible: None,
        preempts: true,
    }
}

#[test]
fn over_long_runs_no_gang_evicts_its_preemptor_and_evictions_end() {
    let evicting = std::cell::Cell::new(0u32);
    let gang = (
        job(),
        prop::sample::select(vec![0, 10, 20, 30]),
        prop::option::of(0..40i32),
    );
    let strategy = (2..4usize, prop::collection::vec(gang, 3..8), any::<bool>());
    let cases = over(&strategy, |(nodes, raw, strict)| {
        let order = if strict {
            VictimOrder::StrictPriority
        } else {
            VictimOrder::LeastWork
        };
        let options = PreemptionOptions {
            order,
            ..PreemptionOptions::default()
        };
        let mut gangs: Vec<Gang> = raw
            .into_iter()
            .map(|(job, priority, standing)| Gang {
                demand: demand(job, priority),
                standing: queue::victim_priority(priority, standing),
                placed: None,
            })
            .collect();
        let mut free = cluster(nodes);
        let mut evicted: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut quiet = false;
        for _ in 0..=gangs.len() * gangs.len() {
            let mut turns: Vec<QueuePosition<i64, usize>> = (0..gangs.len())
                .filter(|&g| gangs[g].placed.is_none())
                .map(|g| QueuePosition::new(gangs[g].demand.priority, g as i64, g))
                .collect();
            // Least important first: the worst order for running work.
            turns.sort_unstable_by(|a, b| b.cmp(a));
            quiet = true;
            for turn in turns {
                let running: Vec<usize> = (0..gangs.len())
                    .filter(|&g| gangs[g].placed.is_some())
                    .collect();
                let units = Units {
                    units: running.iter().map(|&g| unit(&gangs[g])).collect(),
                    ..Units::default()
                };
                let Ok(answer) = preempt(&free, &units, &gangs[turn.id].demand, &options) else {
                    continue;
                };
                quiet = false;
                for victim in answer.victims {
                    let victim = running[victim];
                    prop_assert!(
                        !evicted.contains(&(victim, turn.id)),
                        "{victim} and {} in turn",
                        turn.id
                    );
                    evicted.insert((turn.id, victim));
                    let placed = gangs[victim].placed.take();
                    free.release(&gangs[victim].demand.shapes, &placed.unwrap_or_default());
                }
                free.reserve(&gangs[turn.id].demand.shapes, &answer.placement);
                gangs[turn.id].placed = Some(answer.placement);
            }
            if quiet {
                break;
            }
        }
        prop_assert!(quiet, "still evicting: {evicted:?}");
        evicting.set(evicting.get() + u32::from(!evicted.is_empty()));
        Ok(())
    });
    assert!(
        evicting.get() > cases / 5,
        "somebody was evicted in {} runs",
        evicting.get()
    );
}
