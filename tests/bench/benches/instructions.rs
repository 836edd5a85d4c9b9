//! Instruction counts of the engine's decisions, which do not depend on the load of the machine.
//! Needs valgrind.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use lockstep_bench::{
    questions::{self, Answer, Question},
    scenes::{idle, training},
};
use lockstep_engine::Cluster;

#[library_benchmark]
#[benches::gang_of_a_fifth(args = [100, 1_000, 5_000, 15_000], setup = questions::gang_of_a_fifth)]
#[benches::thousand_pods(args = [100, 1_000, 5_000, 15_000], setup = questions::thousand_pods)]
#[benches::replicas(args = [100, 1_000, 5_000, 15_000], setup = questions::replicas)]
#[benches::no_fit(args = [100, 1_000, 5_000, 15_000], setup = questions::no_fit)]
#[benches::replace(args = [100, 1_000, 5_000, 15_000], setup = questions::replace)]
#[benches::preempt_10(args = [100, 1_000, 5_000, 15_000], setup = questions::preempt_10)]
#[benches::preempt_50(args = [100, 1_000, 5_000, 15_000], setup = questions::preempt_50)]
#[benches::preempt_500(args = [100, 1_000, 5_000, 15_000], setup = questions::preempt_500)]
#[benches::preempt_driver(args = [100, 1_000, 5_000, 15_000], setup = questions::preempt_driver)]
#[benches::preempt_rack(args = [100, 1_000, 5_000, 15_000], setup = questions::preempt_rack)]
#[benches::by_gangs(args = [10, 50, 150, 500], setup = questions::preempt_by_gangs)]
#[benches::by_pods(args = [1, 2, 4, 8], setup = questions::preempt_by_pods)]
fn decide(question: Question) -> Answer {
    black_box(&question).ask()
}

fn cluster(nodes: usize) -> (Cluster, usize) {
    (idle(nodes).cluster, nodes / 2)
}

#[library_benchmark]
#[benches::pod_comes_and_goes(args = [100, 1_000, 5_000, 15_000], setup = cluster)]
fn index((mut cluster, node): (Cluster, usize)) -> Cluster {
    let pod = training(1);
    cluster.add_pod(black_box(node), &pod);
    cluster.remove_pod(black_box(node), &pod);
    cluster
}

library_benchmark_group!(name = instructions, benchmarks = [decide, index]);
main!(library_benchmark_groups = instructions);
