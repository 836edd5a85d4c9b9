//! Replicas of several shapes that must each share a domain.
//!
//! A *pattern* of a domain is a number of replicas per shape that it takes together. With domains
//! instead of nodes, and replicas instead of pods, [`super::mixture`] searches a pattern for each
//! domain. Domains whose nodes have the same patterns of pods are of one kind.

use super::{
    kinds::Kinds,
    mixture::{Effort, Mixture, MixtureFit},
    pack::pack,
    patterns::{Kind, KindIx, NodeState, Pattern},
    replicas::{Replica, Replicas, number, slots_in},
    shape_pods::ShapePods,
};
use crate::{
    infeasible::Infeasible,
    problem::{Amounts, Assignment, DomainIx, ShapeIx},
};

/// Most steps to find out whether a domain holds a pattern. With more steps for each, fewer planted
/// gangs are placed, because none are left for the last domains.
const PATTERN_STEPS: u64 = 250;

/// Most patterns of a domain to pack. With more, placements remain correct, but infeasibility can no
/// longer be proved.
const PATTERNS: usize = 256;

/// The search does not know whether the replicas fit.
struct Undecided;

/// Places the needed replicas. `order`: the shapes, largest replica first. `None` if the replicas do
/// not fit.
///
/// # Errors
///
/// [`Infeasible::GaveUp`] if it is unknown whether they fit. `free` is then undefined.
pub(super) fn place_by_patterns(
    replicas: &Replicas<'_>,
    free: &mut [i64],
    order: &[ShapeIx],
) -> Result<Option<Vec<Assignment>>, Infeasible> {
    let steps = &replicas.instance.steps;
    let before = steps.spent();
    let search = ReplicaPatterns::new(replicas, order);
    // A later search of the same decision needs steps, too.
    let result = steps.share(steps.left() / 10 * 9, || search.place(free));
    result.map_err(|Undecided| Infeasible::GaveUp {
        steps: steps.spent() - before,
    })
}

struct ReplicaPatterns<'r, 'p> {
    replicas: &'r Replicas<'p>,
    /// Replicas without running members to place, by shape.
    to_place: Vec<ShapePods>,
}

impl<'r, 'p> ReplicaPatterns<'r, 'p> {
    fn new(replicas: &'r Replicas<'p>, order: &[ShapeIx]) -> Self {
        let to_place = order.iter().map(|&shape| {
            let needed = replicas.groups[shape].needed.iter();
            let count = needed.filter(|r| r.domain.is_none()).count() as u32;
            ShapePods { shape, count }
        });
        Self {
            to_place: to_place.collect(),
            replicas,
        }
    }

    fn place(&self, free: &mut [i64]) -> Result<Option<Vec<Assignment>>, Undecided> {
        let Replicas {
            instance, domains, ..
        } = self.replicas;
        // Running members on nodes without a domain leave replicas of other sizes.
        if self
            .to_place
            .iter()
            .any(|replicas| self.has_odd_replica(replicas.shape))
        {
            return Err(Undecided);
        }
        let steps = &instance.steps;
        let mut mixture = Mixture::of_domains(instance, &self.to_place, domains.len());
        let mut nodes = Kinds::new(instance, &[]);
        for (domain, in_domain) in domains.iter().enumerate() {
            if in_domain.is_empty() {
                continue;
            }
            let Some(kind) = self.kind(&mut nodes, free, domain)? else {
                return Ok(None);
            };
            mixture.learn(&instance.domain_kinds.borrow());
            mixture.set(domain, kind);
        }
        steps.spend(nodes.steps);
        let verdict = mixture.fits(steps.left(), Effort::Full);
        steps.spend(mixture.steps());
        match verdict {
            MixtureFit::Fits => self.put(free, &mixture).map(Some),
            MixtureFit::DoesNotFit => Ok(None),
            MixtureFit::Undecided => Err(Undecided),
        }
    }

    fn has_odd_replica(&self, shape: ShapeIx) -> bool {
        let size = self.replicas.instance.demand.shapes[shape].replica_size;
        let needed = &self.replicas.groups[shape].needed;
        let odd = |replica: &Replica| replica.domain.is_none() && replica.missing != size;
        needed.iter().any(odd)
    }

    /// Kind of a domain by its patterns. `None` if the pods of replicas with running members there
    /// do not fit, and an error if that is unknown.
    fn kind(
        &self,
        nodes: &mut Kinds<'_>,
        free: &mut [i64],
        domain: DomainIx,
    ) -> Result<Option<KindIx>, Undecided> {
        let started = self.started(domain);
        let state = self.state(nodes, free, domain, &started);
        let mut table = self.replicas.instance.domain_kinds.borrow_mut();
        if let Some(kind) = table.lookup(&state) {
            return Ok(Some(kind));
        }
        let mut patterns = DomainPatterns::new(self, free, domain, &started);
        patterns.extend(0);
        let (maximal, complete) = (patterns.maximal, patterns.complete);
        match (maximal.is_empty(), complete) {
            (true, true) => Ok(None),
            (true, false) => Err(Undecided),
            _ => Ok(Some(table.kind(state, || Kind::of(&maximal, complete)))),
        }
    }

    /// Missing pods of each shape's replicas with running members in a domain.
    fn started(&self, domain: DomainIx) -> Pattern {
        let missing = |replicas: &ShapePods| {
            let started = self.started_of(replicas.shape, domain);
            started.map(|r| i64::from(r.missing)).sum()
        };
        self.to_place.iter().map(missing).collect()
    }

    fn started_of(&self, shape: ShapeIx, domain: DomainIx) -> impl Iterator<Item = &Replica> {
        let needed = self.replicas.groups[shape].needed.iter();
        needed.filter(move |replica| replica.domain == Some(domain))
    }

    /// What decides the patterns of a domain: pods of started replicas, and the kinds of its nodes.
    fn state(
        &self,
        nodes: &mut Kinds<'_>,
        free: &[i64],
        domain: DomainIx,
        started: &Pattern,
    ) -> NodeState {
        let (mut kinds, mut others) = (Vec::new(), Vec::new());
        for &node in &self.replicas.domains[domain] {
            let left = self.replicas.instance.free_on(free, node);
            let kind = nodes.of(node, left);
            if nodes.all[kind].complete {
                kinds.push(kind as i64);
            } else {
                // The known patterns of such nodes may be equal although the nodes differ.
                others.extend([-1, node as i64]);
                others.extend(left);
            }
        }
        kinds.sort_unstable();
        let all = started.iter().copied().chain(kinds).chain(others);
        all.collect()
    }

    /// Pods of a pattern and of started replicas.
    fn pods(&self, pattern: &[i64], started: &[i64]) -> Vec<ShapePods> {
        let shapes = &self.replicas.instance.demand.shapes;
        let each = self.to_place.iter().zip(pattern).zip(started);
        let pods = each.map(|((of_shape, &replicas), &started)| {
            let size = i64::from(shapes[of_shape.shape].replica_size);
            let count = (replicas * size + started) as u32;
            ShapePods { count, ..*of_shape }
        });
        pods.filter(|pods| pods.count > 0).collect()
    }

    fn pack(
        &self,
        free: &mut [i64],
        domain: DomainIx,
        pods: &[ShapePods],
    ) -> Result<Vec<Assignment>, Infeasible> {
        let Replicas {
            instance, domains, ..
        } = self.replicas;
        instance.steps.spend(domains[domain].len() as u64);
        pack(instance, free, &domains[domain], pods)
    }

    /// Places the replicas as the search has found.
    fn put(&self, free: &mut [i64], mixture: &Mixture<'_>) -> Result<Vec<Assignment>, Undecided> {
        let Replicas {
            instance,
            domains,
            groups,
            ..
        } = self.replicas;
        // Fuller domains get larger patterns.
        let dim = self.to_place.first();
        let dim = dim.map_or(0, |w| instance.scarce[w.shape].dim);
        let mut order: Vec<DomainIx> = (0..domains.len()).collect();
        order.sort_by_cached_key(|&domain| {
            let nodes = domains[domain].iter();
            let each = nodes.map(|&node| instance.free_on(free, node)[dim]);
            each.sum::<i64>()
        });
        let mut fresh: Vec<_> = self
            .to_place
            .iter()
            .map(|replicas| {
                let needed = groups[replicas.shape].needed.iter();
                needed.filter(|replica| replica.domain.is_none())
            })
            .collect();
        let mut assigned = Vec::new();
        for (domain, pattern) in mixture.pattern_by_node(&order) {
            let pods = self.pods(&pattern, &self.started(domain));
            let mut packed = self.pack(free, domain, &pods).map_err(|_| Undecided)?;
            packed.sort_unstable();
            for ((group, fresh), &count) in self.to_place.iter().zip(&mut fresh).zip(&pattern) {
                let fresh = fresh.by_ref().take(count as usize);
                let replicas = self.started_of(group.shape, domain).chain(fresh);
                let of_shape = packed.iter().filter(|a| a.shape == group.shape);
                assigned.extend(number(of_shape.copied(), replicas.copied()));
            }
        }
        Ok(assigned)
    }
}

/// Enumerates the maximal patterns of a domain, in descending order.
struct DomainPatterns<'r, 'p> {
    search: &'r ReplicaPatterns<'r, 'p>,
    free: &'r mut [i64],
    domain: DomainIx,
    started: &'r Pattern,
    /// Upper bound of replicas of each shape.
    most: Pattern,
    /// Free capacity of all nodes together.
    capacity: Amounts,
    /// Most counts of each shape, but the last, to try.
    rows: i64,
    pattern: Pattern,
    /// Number of packed patterns.
    packed: usize,
    maximal: Vec<Pattern>,
    /// False if some patterns are unknown.
    complete: bool,
}

impl<'r, 'p> DomainPatterns<'r, 'p> {
    fn new(
        search: &'r ReplicaPatterns<'r, 'p>,
        free: &'r mut [i64],
        domain: DomainIx,
        started: &'r Pattern,
    ) -> Self {
        let Replicas {
            instance, domains, ..
        } = search.replicas;
        let most: Pattern = search
            .to_place
            .iter()
            .zip(started)
            .map(|(replicas, started)| {
                let slots = slots_in(instance, free, &domains[domain], replicas.shape) as i64;
                let size = i64::from(instance.demand.shapes[replicas.shape].replica_size);
                ((slots - started).max(0) / size).min(i64::from(replicas.count))
            })
            .collect();
        let mut capacity: Amounts = Amounts::from_elem(0, instance.cluster.dims());
        for &node in &domains[domain] {
            for (sum, free) in capacity.iter_mut().zip(instance.free_on(free, node)) {
                *sum += free.max(&0);
            }
        }
        let others = most.len().saturating_sub(1) as u32;
        let rows = (1..=PATTERNS as i64).take_while(|r| {
            let all = r.checked_pow(others);
            all.is_some_and(|all| all <= PATTERNS as i64)
        });
        Self {
            capacity,
            rows: rows.last().unwrap_or(1),
            pattern: Pattern::from_elem(0, most.len()),
            search,
            domain,
            started,
            most,
            free,
            packed: 0,
            maximal: Vec::new(),
            complete: true,
        }
    }

    /// Enumerates all counts of the shapes from a position on.
    fn extend(&mut self, at: usize) {
        if at + 1 == self.most.len() {
            self.extend_last(at);
            return;
        }
        let stride = (self.most[at] + 1 + self.rows - 1) / self.rows;
        self.complete &= stride == 1;
        for count in (0..=self.most[at]).rev().step_by(stride as usize) {
            self.pattern[at] = count;
            self.extend(at + 1);
            if !self.may_pack() {
                break;
            }
        }
    }

    /// Finds the largest count of the last shape.
    fn extend_last(&mut self, at: usize) {
        // A pattern with more replicas of earlier shapes holds at least as many of the last.
        let earlier = self.maximal.iter();
        let dominating = earlier.filter(|f| (0..at).all(|s| f[s] >= self.pattern[s]));
        let dominated = dominating.map(|f| f[at]).max().unwrap_or(-1);
        let most = self.most_beside(at);
        let (mut fit, mut too_many) = (dominated, most + 1);
        let mut next = most;
        while fit + 1 < too_many {
            self.pattern[at] = next;
            if self.holds() {
                fit = next;
            } else {
                too_many = next;
            }
            next = fit + (too_many - fit) / 2;
        }
        if fit > dominated {
            self.pattern[at] = fit;
            self.maximal.push(self.pattern.clone());
        }
    }

    /// Upper bound of replicas of the last shape beside the other shapes, by the capacity of the
    /// whole domain. Negative if these exceed the capacity.
    fn most_beside(&mut self, at: usize) -> i64 {
        self.pattern[at] = 0;
        let shapes = &self.search.replicas.instance.demand.shapes;
        let mut left = self.capacity.clone();
        for pods in self.search.pods(&self.pattern, self.started) {
            for (left, each) in left.iter_mut().zip(&shapes[pods.shape].request) {
                *left -= each * i64::from(pods.count);
            }
        }
        if left.iter().any(|&left| left < 0) {
            return -1;
        }
        let shape = &shapes[self.search.to_place[at].shape];
        let requested = left
            .iter()
            .zip(&shape.request)
            .filter(|&(_, &each)| each > 0);
        let size = i64::from(shape.replica_size);
        let most = requested.map(|(left, each)| left / each / size).min();
        most.unwrap_or(0).min(self.most[at])
    }

    /// False once the limits are reached.
    fn may_pack(&mut self) -> bool {
        let steps = &self.search.replicas.instance.steps;
        let may = self.packed < PATTERNS && steps.left() > 0;
        self.complete &= may;
        may
    }

    /// True if the domain holds the pattern.
    fn holds(&mut self) -> bool {
        if !self.may_pack() {
            return false;
        }
        self.packed += 1;
        let pods = self.search.pods(&self.pattern, self.started);
        let instance = self.search.replicas.instance;
        let pack = || self.search.pack(self.free, self.domain, &pods);
        match instance.steps.share(PATTERN_STEPS, pack) {
            Ok(assigned) => {
                for a in assigned {
                    let shape = &instance.demand.shapes[a.shape];
                    instance.take(self.free, a.node, shape, -i64::from(a.count));
                }
                true
            }
            Err(reason) => {
                self.complete &= !matches!(reason, Infeasible::GaveUp { .. });
                false
            }
        }
    }
}
