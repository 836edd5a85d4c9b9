//! Elections with a scripted server under paused time.

mod server;

use std::sync::Arc;

use fastrand::Rng;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::task::JoinSet;

use self::server::{BAD, Server, Weather};
use super::*;
use crate::api::Pace;
use crate::api::clients::{Clients, Deadlines, Transports};
use crate::api::metrics::RequestMetrics;
use crate::clock::SystemClock;
use crate::lease::Tenure;

const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

/// Interval between the writes of a process.
const WORK: Duration = Duration::from_millis(100);

/// A process that takes part in the election and writes while allowed.
struct Process {
    tenure: Tenure,
    release: CancellationToken,
    election: JoinSet<Result<(), LeaseLost>>,
    _work: JoinSet<()>,
}

impl Process {
    fn start(server: &Server, who: &'static str) -> Self {
        Self::named(server, who, who, true)
    }

    /// A process that the server can distinguish from another with the same identity. Writes only
    /// if `works`.
    fn named(server: &Server, who: &'static str, identity: &'static str, works: bool) -> Self {
        let (leadership, tenure) = watch::channel(None);
        let tenure = Tenure::new(tenure);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let client = server.client(who);
        let transports = Transports {
            read: client.clone(),
            write: client.clone(),
            lease: client,
        };
        let deadlines = Deadlines {
            read: Duration::from_secs(30),
            write: Duration::from_secs(8),
        };
        let clients = Clients::new(
            &transports,
            deadlines,
            tenure.clone(),
            &clock,
            Pace::new(32),
            &RequestMetrics::default(),
        );
        let candidate = Candidate {
            client: clients.lease.clone(),
            namespace: "ns".into(),
            name: "l".into(),
            identity: identity.into(),
            timing: TIMING,
            clock: &SystemClock,
        };
        let release = CancellationToken::new();
        let mut election = JoinSet::new();
        election.spawn(candidate.run(leadership, release.clone()));
        let mut work = JoinSet::new();
        let objects: Api<ConfigMap> = Api::namespaced(clients.write, "ns");
        if works {
            work.spawn(async move {
                let patch = Patch::Merge(json!({"data": {}}));
                loop {
                    // The fence refuses the write while the process does not lead.
                    let _ = objects.patch("x", &PatchParams::default(), &patch).await;
                    tokio::time::sleep(WORK).await;
                }
            });
        }
        server.0.lock().tenures.push((who, tenure.clone()));
        Self {
            tenure,
            release,
            election,
            _work: work,
        }
    }

    fn leads(&self) -> bool {
        self.tenure.check(now()).is_ok()
    }

    fn term(&self) -> Option<i32> {
        self.tenure.check(now()).ok().map(|held| held.term)
    }

    /// Waits until it leads.
    async fn led(&self) {
        until(|| self.leads()).await;
    }

    /// How its election ended, if it has.
    fn ended(&mut self) -> Option<Result<(), LeaseLost>> {
        self.election.try_join_next().map(|ended| ended.unwrap())
    }

    /// How its election ends within this time.
    async fn ends(&mut self, within: Duration) -> Result<(), LeaseLost> {
        let ended = tokio::time::timeout(within, self.election.join_next()).await;
        ended.expect("it ends in time").unwrap().unwrap()
    }
}

/// A server and its leader.
async fn leader() -> (Server, Process) {
    let server = Server::after("");
    let process = Process::start(&server, "a");
    process.led().await;
    (server, process)
}

fn now() -> Instant {
    SystemClock.monotonic()
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

async fn until(holds: impl Fn() -> bool) {
    let soon = now() + secs(40);
    while !holds() {
        assert!(now() < soon, "it does not come to that within 40 s");
        tokio::time::sleep(WORK).await;
    }
}

async fn pass(s: u64) {
    tokio::time::sleep(secs(s)).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_pauses_writes_at_its_deadline_and_resumes_in_its_term() {
    for weather in BAD {
        let (server, mut a) = leader().await;
        pass(7).await;
        let before = server.spec();
        server.writes("a", weather);
        let until = a.tenure.check(now()).unwrap().valid_until;
        tokio::time::sleep_until(until).await;
        let paused = now();
        for _ in 0..25 {
            assert!(!a.leads(), "{weather:?}");
            pass(1).await;
        }
        assert!(a.ended().is_none(), "{weather:?}");
        server.back("a");
        let fair = now();
        a.led().await;
        // The write in flight, the following read and the pause: at most 5 s, 5 s and 2 s.
        assert!(
            now() - fair < secs(13),
            "{weather:?}: after {:?}",
            now() - fair
        );
        assert_eq!(a.term(), Some(5), "{weather:?}");
        for field in ["holderIdentity", "leaseTransitions", "acquireTime"] {
            assert_eq!(server.spec()[field], before[field], "{weather:?}");
        }
        pass(5).await;
        let work = server.work("a");
        let in_pause = work.iter().filter(|at| **at >= paused && **at < fair);
        assert_eq!(in_pause.count(), 0, "{weather:?}");
        assert!(work.iter().any(|at| *at < paused) && work.iter().any(|at| *at > fair));
        assert_eq!(server.0.lock().overlaps, 0);
    }
}

/// Its next attempt conflicts with its own write.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_after_its_timeout_does_not_stop_the_leader() {
    // At any time within an attempt: the write takes 5 s, the read 5 s, the pause 2 s.
    for late in 6..30 {
        let (server, mut a) = leader().await;
        pass(7).await;
        server.away("a");
        pass(late).await;
        let version = server.version();
        server.land();
        assert_eq!(
            server.version(),
            version + 1,
            "one renewal lands, {late} s late"
        );
        // An unanswered write gives no right to act.
        assert!(!a.leads() || late < 10, "{late}");
        server.back("a");
        let fair = now();
        a.led().await;
        assert!(now() - fair < secs(13), "{late}: after {:?}", now() - fair);
        pass(30).await;
        assert!(a.ended().is_none(), "{late}");
        assert_eq!((a.term(), server.holder()), (Some(5), "a".to_owned()));
        assert_eq!(server.spec()["leaseTransitions"], 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_gives_no_right() {
    let (server, a) = leader().await;
    server.writes("a", Weather::Lost);
    let until = a.tenure.check(now()).unwrap().valid_until;
    let version = server.version();
    tokio::time::sleep_until(until).await;
    assert!(server.version() > version, "renewals are carried out");
    for _ in 0..30 {
        assert!(!a.leads());
        pass(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_leader_exits_without_further_writes_when_a_standby_takes_its_lease() {
    for reads in [Weather::Held, Weather::Refused(500)] {
        let (server, mut a) = leader().await;
        let mut b = Process::start(&server, "b");
        pass(20).await;
        server.writes("a", Weather::Held);
        server.reads("a", reads);
        let until = a.tenure.check(now()).unwrap().valid_until;
        b.led().await;
        let taken = now();
        assert!(taken > until, "{taken:?} {until:?}");
        pass(10).await;
        // Earlier requests of the first process have no effect.
        let version = server.version();
        server.land();
        assert_eq!(
            (server.version(), server.holder()),
            (version, "b".to_owned())
        );
        server.back("a");
        let ended = a.ends(secs(13)).await;
        assert!(ended.is_err(), "{ended:?}");
        pass(30).await;
        let last = server.work("a").into_iter().max().unwrap();
        let first = server.work("b").into_iter().min().unwrap();
        assert!(
            last < until && taken <= first,
            "{last:?} {until:?} {first:?}"
        );
        assert!(b.ended().is_none() && b.leads());
        assert_eq!(b.term(), Some(6));
        assert_eq!(server.0.lock().overlaps, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_waits_the_whole_duration_after_a_renewal_that_lands_late() {
    let (server, _a) = leader().await;
    let b = Process::start(&server, "b");
    pass(20).await;
    server.away("a");
    pass(13).await;
    server.land();
    let landed = now();
    b.led().await;
    assert!(now() - landed >= TIMING.lease, "after {:?}", now() - landed);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_answers_exits_after_four_durations_without_late_writes() {
    for weather in BAD {
        let (server, mut a) = leader().await;
        server.writes("a", weather);
        let until = a.tenure.check(now()).unwrap().valid_until;
        let renewed = until - TIMING.renew;
        tokio::time::sleep_until(renewed + secs(59)).await;
        assert!(a.ended().is_none(), "{weather:?}");
        let ended = a.ends(secs(14)).await;
        assert!(ended.is_err(), "{weather:?}: {ended:?}");
        assert!(server.work("a").into_iter().all(|at| at < until));
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_leader_stops_in_time_and_releases_the_lease_if_reachable() {
    for away in [false, true] {
        let (server, mut a) = leader().await;
        server.away("a");
        pass(25).await;
        assert!(!a.leads());
        if !away {
            server.back("a");
        }
        a.release.cancel();
        // A write and a read in flight, and the release.
        assert!(a.ends(secs(12)).await.is_ok());
        let holder = if away { "a" } else { "" };
        assert_eq!(server.holder(), holder);
        // No earlier request makes it the holder again.
        if !away {
            server.land();
            assert_eq!(server.holder(), "");
        }
    }
}

/// A standby that reads the lease takes it as soon as allowed.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_not_answered_and_finds_the_lease_its_own_tries_again_at_once() {
    let (server, a) = leader().await;
    server.writes("a", Weather::Held);
    pass(12).await;
    let tries = || server.0.lock().held.len();
    let so_far = tries();
    until(|| tries() > so_far).await;
    assert!(!a.leads());
    pass(4).await;
    server.writes("a", Weather::Fair);
    let fair = now();
    a.led().await;
    assert!(now() - fair < secs(2), "after {:?}", now() - fair);
}

/// Another client has changed or recreated the Lease. The holder notices it when it renews.
#[tokio::test(start_paused = true)]
async fn a_leader_that_learns_that_another_holds_the_lease_ends_at_once() {
    for holder in ["thief", ""] {
        let (server, mut a) = leader().await;
        pass(7).await;
        server.change(&json!({"holderIdentity": holder}));
        let taken = now();
        let ended = a.ends(secs(30)).await;
        assert!(ended.is_err(), "{ended:?}");
        let took = now() - taken;
        assert!(took <= TIMING.retry + WORK, "after {took:?}");
        assert!(!a.leads());
    }
}

/// Identities are pod names. If two processes share one, only the number of the term distinguishes
/// them.
#[tokio::test(start_paused = true)]
async fn of_two_processes_of_one_identity_the_one_whose_term_is_over_ends() {
    let server = Server::after("");
    let mut first = Process::named(&server, "first", "a", true);
    first.led().await;
    pass(7).await;
    let mut second = Process::named(&server, "second", "a", true);
    second.led().await;
    let ended = first.ends(secs(5)).await;
    assert!(ended.is_err(), "{ended:?}");
    pass(30).await;
    assert!(second.ended().is_none() && second.leads());
    assert_eq!(server.spec()["leaseTransitions"], 6);
}

/// As with SIGSTOP, or on a machine without free CPU time.
#[tokio::test(start_paused = true)]
async fn an_answer_that_waited_while_the_process_stood_still_gives_no_right() {
    for (stall, another) in [(12, false), (40, false), (40, true)] {
        let (server, mut a) = leader().await;
        server.writes("a", Weather::Held);
        until(|| !server.0.lock().held.is_empty()).await;
        let sent = now();
        server.land();
        server.back("a");
        if another {
            server.change(&json!({"holderIdentity": "b", "leaseTransitions": 6}));
        }
        // The process is suspended, and then all of its tasks run at once.
        tokio::time::advance(secs(stall)).await;
        let went_on = now();
        if another {
            assert!(a.ends(secs(5)).await.is_err());
        } else {
            a.led().await;
            pass(1).await;
            assert!(a.ended().is_none());
        }
        let work = server.work("a");
        let (before, after): (Vec<Instant>, Vec<Instant>) =
            work.iter().partition(|at| **at <= sent);
        assert!(!before.is_empty());
        assert_eq!(after.is_empty(), another, "{stall} s");
        // Not before it has renewed the lease.
        assert!(after.iter().all(|at| *at > went_on), "{stall} s");
        assert_eq!(server.holder(), if another { "b" } else { "a" });
    }
}

/// Three candidates whose requests are answered, delayed, lost or refused at random. Any of them
/// may crash at any time and is then replaced.
#[tokio::test(start_paused = true)]
async fn no_process_leads_when_another_acquires_the_lease_despite_random_request_failures() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (mut resumed, mut terms) = (0, 0);
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let server = Server::default();
        let mut processes = NAMES.map(|name| Process::named(&server, name, name, false));
        let mut led: [Option<i32>; 3] = [None; 3];
        let mut paused: [Option<i32>; 3] = [None; 3];
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(random.u64(1..8000))).await;
            let one = random.usize(0..3);
            let mut weather = || match random.u8(0..8) {
                0 | 1 => Weather::Held,
                2 => Weather::Lost,
                3 => Weather::Refused(500),
                _ => Weather::Fair,
            };
            let (writes, reads) = (weather(), weather());
            server.writes(NAMES[one], writes);
            server.reads(NAMES[one], reads);
            if random.u8(0..6) == 0 {
                server.land();
            }
            for (at, process) in processes.iter_mut().enumerate() {
                let crashes = random.u8(0..100) == 0;
                if process.ended().is_some() || crashes {
                    let mut state = server.0.lock();
                    state.tenures.retain(|(who, _)| *who != NAMES[at]);
                    drop(state);
                    *process = Process::named(&server, NAMES[at], NAMES[at], false);
                    (led[at], paused[at]) = (None, None);
                    continue;
                }
                let term = process.term();
                if term.is_none() {
                    paused[at] = led[at].or(paused[at]);
                } else if term == paused[at] {
                    resumed += 1;
                    paused[at] = None;
                }
                led[at] = term;
            }
            let leading = processes.iter().filter(|p| p.leads()).count();
            assert!(leading <= 1, "seed {seed}: {leading} lead");
            assert_eq!(server.0.lock().overlaps, 0, "seed {seed}");
        }
        terms += server.0.lock().terms;
    }
    assert!(
        resumed > 50 && terms > 80,
        "{resumed} pauses, {terms} terms"
    );
}
