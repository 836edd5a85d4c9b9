//! The faults that tests inject between a component and the API server.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams, WatchParams};
use kube::{Api, Client, Error};
use lockstep_cluster::proxy::{Fault, Proxy};
use lockstep_common::api_server::kube_config;
use lockstep_common::connection::{connect, connect_http2};
use lockstep_e2e::cluster;

/// Deadline of a client that gets no answer.
const UNANSWERED: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_millis(300);

/// ConfigMaps of the default namespace, through a proxy and directly.
struct Maps {
    proxy: Proxy,
    through: Api<ConfigMap>,
    direct: Api<ConfigMap>,
}

impl Maps {
    async fn of(client: impl Fn(kube::Config) -> kube::Result<Client>) -> Result<Self> {
        let cluster = cluster().await?;
        let proxy = Proxy::start(cluster).await?;
        let kubeconfig = proxy.kubeconfig(cluster.kubeconfig())?;
        let mut config = kube_config(Some(&kubeconfig)).await?;
        config.default_retry = false;
        Ok(Self {
            through: Api::default_namespaced(client(config)?),
            direct: Api::default_namespaced(cluster.client().await?),
            proxy,
        })
    }

    async fn create(&self, name: &str) -> kube::Result<ConfigMap> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        self.through.create(&PostParams::default(), &map).await
    }
}

async fn every_fault_does_what_it_says(
    protocol: &str,
    client: impl Fn(kube::Config) -> kube::Result<Client>,
) -> Result<()> {
    let maps = Maps::of(client).await?;
    let name = |fault: &str| format!("fault-{fault}-{protocol}");
    maps.create(&name("none")).await?;

    maps.proxy.inject(|_| Fault::Refuse(7));
    let refused = maps.create(&name("refused")).await;
    ensure!(
        matches!(&refused, Err(Error::Api(status)) if status.code == 429),
        "{refused:?}"
    );

    for (name, fault, is_stored) in [
        (name("cut"), Fault::Cut, false),
        (name("lost"), Fault::LoseAnswer, true),
    ] {
        maps.proxy.inject(move |_| fault);
        let answer = maps.create(&name).await;
        ensure!(
            answer.is_err() && !matches!(answer, Err(Error::Api(_))),
            "{fault:?}: {answer:?}"
        );
        let stored = maps.direct.get_opt(&name).await?.is_some();
        ensure!(stored == is_stored, "{fault:?}: stored is {stored}");
    }

    for (name, fault, is_stored) in [
        (name("hung"), Fault::Hang, false),
        (name("late"), Fault::Delay(2 * UNANSWERED), false),
        (name("withheld"), Fault::WithholdAnswer, true),
    ] {
        maps.proxy.inject(move |_| fault);
        let answer = tokio::time::timeout(UNANSWERED, maps.create(&name)).await;
        ensure!(answer.is_err(), "{fault:?}: {answer:?}");
        let stored = maps.direct.get_opt(&name).await?.is_some();
        ensure!(stored == is_stored, "{fault:?}: stored is {stored}");
    }

    maps.proxy.inject(|_| Fault::Delay(DELAY));
    maps.create(&name("delayed")).await?;

    maps.proxy.inject(|call| {
        if call.is_watch {
            Fault::EndAfter(DELAY)
        } else {
            Fault::None
        }
    });
    let watch = maps.through.watch(&WatchParams::default(), "0").await?;
    let events: Vec<kube::Result<_>> = watch.collect().await;
    let events: Vec<_> = events.into_iter().collect::<kube::Result<_>>()?;
    ensure!(!events.is_empty(), "no event before the watch ended");

    maps.proxy.clear();
    maps.create(&name("cleared")).await.map(drop)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_acts_on_a_client_of_http1() -> Result<()> {
    every_fault_does_what_it_says("http1", connect).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_acts_on_a_client_of_http2() -> Result<()> {
    every_fault_does_what_it_says("http2", connect_http2).await
}
