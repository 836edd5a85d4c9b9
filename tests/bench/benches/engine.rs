//! Time of the engine's decisions by size of the cluster.

use std::{hint::black_box, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use lockstep_bench::{
    questions::{ROWS, SIZES},
    scenes::{idle, training},
};

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for row in &ROWS {
        for nodes in SIZES {
            let question = (row.question)(nodes);
            group.bench_function(BenchmarkId::new(row.name, nodes), |b| {
                b.iter(|| black_box(&question).ask());
            });
        }
    }
    group.finish();
}

fn index(c: &mut Criterion) {
    let mut group = c.benchmark_group("index");
    for nodes in SIZES {
        let cluster = idle(nodes).cluster;
        let pod = training(1);
        group.bench_function(BenchmarkId::new("pod_comes_and_goes", nodes), |b| {
            let mut cluster = cluster.clone();
            b.iter(|| {
                cluster.add_pod(black_box(nodes / 2), &pod);
                cluster.remove_pod(black_box(nodes / 2), &pod);
            });
        });
        group.bench_function(BenchmarkId::new("copy", nodes), |b| {
            b.iter_batched(
                || (),
                |()| black_box(cluster.clone()),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    // Short, because the spread is computed over whole runs.
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = decisions, index
}
criterion_main!(benches);
