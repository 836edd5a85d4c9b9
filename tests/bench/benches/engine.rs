//! Speed of the engine's decisions by the size of the cluster.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use lockstep_bench::scenes::{Scene, busy, gang, idle, training};
use lockstep_engine::{Demand, Options, Running, Scope, Shape, Topology, TopologyMode, place, preempt};

const SIZES: [usize; 4] = [100, 1_000, 5_000, 15_000];

fn placement(c: &mut Criterion) {
    let mut group = c.benchmark_group("place");
    for nodes in SIZES {
        let Scene { cluster, .. } = idle(nodes);
        let members = (nodes as u32 / 5).max(10);
        group.bench_function(BenchmarkId::new("gang_of_a_fifth", nodes), |b| {
            b.iter(|| place(black_box(&cluster), &gang(8, members)));
        });
        group.bench_function(BenchmarkId::new("gang_of_1000_one_gpu_each", nodes), |b| {
            b.iter(|| place(black_box(&cluster), &gang(1, 1_000)));
        });
        let replicas = by_replica(gang(8, members / 4 * 4), 4);
        group.bench_function(BenchmarkId::new("replicas_of_four_each_in_one_rack", nodes), |b| {
            b.iter(|| place(black_box(&cluster), &replicas));
        });
        let Scene { cluster: full, .. } = busy(nodes, 50);
        group.bench_function(BenchmarkId::new("no_fit", nodes), |b| {
            b.iter(|| place(black_box(&full), &gang(8, members)));
        });
        let lost = one_lost(members);
        group.bench_function(BenchmarkId::new("replace_one_member", nodes), |b| {
            b.iter(|| place(black_box(&cluster), &lost));
        });
    }
    group.finish();
}

fn preemption(c: &mut Criterion) {
    let mut group = c.benchmark_group("preempt");
    group.sample_size(20);
    for nodes in SIZES {
        for gangs in [10, 50, 500] {
            let Scene { cluster, units } = busy(nodes, gangs);
            let demand = gang(8, (nodes as u32 / 10).max(10));
            group.bench_function(BenchmarkId::new(format!("{gangs}_gangs_running"), nodes), |b| {
                b.iter(|| preempt(black_box(&cluster), &units, &demand, &Options::default()));
            });
        }
        let Scene { cluster, units } = busy(nodes, 50);
        let mut two = gang(8, (nodes as u32 / 10).max(10));
        two.shapes.push(Shape::new([2_000, 8 << 30, 1, 0].as_slice(), 1));
        two.min_count += 1;
        group.bench_function(BenchmarkId::new("gang_with_a_driver", nodes), |b| {
            b.iter(|| preempt(black_box(&cluster), &units, &two, &Options::default()));
        });
        let demand = gang(8, 8);
        let rack = Demand { topology: Some(one_rack(Scope::Gang)), ..demand };
        group.bench_function(BenchmarkId::new("8_nodes_of_one_rack", nodes), |b| {
            b.iter(|| preempt(black_box(&cluster), &units, &rack, &Options::default()));
        });
    }
    group.finish();
}

fn index(c: &mut Criterion) {
    let mut group = c.benchmark_group("index");
    for nodes in SIZES {
        let Scene { cluster, .. } = idle(nodes);
        let pod = training(1);
        group.bench_function(BenchmarkId::new("pod_comes_and_goes", nodes), |b| {
            let mut cluster = cluster.clone();
            b.iter(|| {
                cluster.add_pod(black_box(nodes / 2), &pod);
                cluster.remove_pod(black_box(nodes / 2), &pod);
            });
        });
        group.bench_function(BenchmarkId::new("copy", nodes), |b| {
            b.iter_batched(|| (), |()| black_box(cluster.clone()), BatchSize::LargeInput);
        });
    }
    group.finish();
}

fn one_rack(scope: Scope) -> Topology {
    Topology { key: 0, mode: TopologyMode::Required, scope }
}

fn by_replica(mut demand: Demand, size: u32) -> Demand {
    demand.shapes[0].replica_size = size;
    demand.topology = Some(one_rack(Scope::Replica));
    demand
}

/// A gang all of whose members but one run, on the first nodes.
fn one_lost(members: u32) -> Demand {
    let mut demand = gang(1, members);
    demand.shapes[0].running = (0..members as usize - 1).map(|node| Running { replica: 0, node, count: 1 }).collect();
    demand
}

criterion_group!(benches, placement, preemption, index);
criterion_main!(benches);
